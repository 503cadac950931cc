"""`feeder doctor` where there is nothing to look at; real trainings are in tests/service/test_doctor.py."""

from __future__ import annotations

import json

import pytest

from feeder.cli import main

NOBODY = "127.0.0.1:1,127.0.0.1:2"


def test_workers_that_do_not_answer_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", NOBODY]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert [line.split()[2] for line in said.err.splitlines()] == NOBODY.split(",")
    assert main(["doctor", NOBODY, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["findings"], found["workers"], list(found["failed"])) == ([], [], NOBODY.split(","))


@pytest.mark.parametrize("seconds", ["0", "0.5", "nan", "soon", "1e9"])
def test_seconds_that_make_no_sense_are_refused(capsys: pytest.CaptureFixture[str], seconds: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["doctor", NOBODY, "--seconds", seconds])
    assert ended.value.code == 2
    assert "must be in [1, 3600]" in capsys.readouterr().err
