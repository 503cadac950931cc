"""What errors say is one line that any log or terminal can show."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from feeder.cli import main
from feeder.errors import BadRecord, printable


def test_what_cannot_be_printed_is_escaped() -> None:
    assert printable("train-00001: 3 x 4 \\ 'é' 図") == "train-00001: 3 x 4 \\ 'é' 図"
    assert printable("a\nb\x1b[31m\udcff\x00\u2028") == r"a\nb\x1b[31m\udcff\x00\u2028"


def test_a_bad_record_is_one_line_and_keeps_its_name() -> None:
    error = pickle.loads(pickle.dumps(BadRecord("a\nb", 3, "empty")))
    assert str(error) == r"a\nb: record 3: empty"
    assert error.shard == "a\nb"


def test_names_of_files_do_not_break_the_lines_of_a_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "photos"
    (folder / "a").mkdir(parents=True)
    for name in (b"1\n2\x1b.jpg", b"3\xff.jpg"):
        with open(os.fsencode(folder) + b"/a/" + name, "wb"):
            pass
    (folder / "a" / "4.jpg").write_bytes(b"<html>")
    assert main(["verify", str(folder), "--index-dir", str(tmp_path / "index")]) == 1
    lines = capsys.readouterr().out.splitlines()
    found = sorted(line for line in lines if "\t" in line and not line.startswith(" "))
    assert found == [
        "photos/a/1\\n2\\x1b.jpg\t0\timage is empty (0 bytes) (a/1\\n2\\x1b.jpg)",
        "photos/a/3\\udcff.jpg\t0\timage is empty (0 bytes) (a/3\\udcff.jpg)",
        "photos/a/4.jpg\t0\tnot an image: starts with b'<html>'",
    ]
