from __future__ import annotations

import io
import time

import pytest

from feeder.trainer.chrono import PHASES, Chrono
from feeder.trainer.progress import Progress
from feeder.trainer.table import table
from feeder.trainer.watch import Finished


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_plain_lines_where_nobody_watches() -> None:
    out = io.StringIO()
    progress = Progress(out, batch_size=64)
    for step in range(1, 101):
        progress.step(Finished(step, 2.5, 0.25, 1.0, 1.0, 100 + step * 0.5), 100, step * 0.1)
    progress.note("done")
    progress.close()
    lines = out.getvalue().splitlines()
    # The first step, one each 10 s, and the last one.
    assert [line.split()[1] for line in lines[:-1]] == [
        "1/100",
        "21/100",
        "41/100",
        "61/100",
        "81/100",
        "100/100",
    ]
    assert lines[0] == "step   1/100  loss 2.500  accuracy  25%"
    assert lines[1] == "step  21/100      128 images/s  wait  20%  loss 2.500  accuracy  25%"
    assert lines[-1] == "done"


def test_one_line_on_a_terminal() -> None:
    out = Terminal()
    progress = Progress(out, batch_size=64)
    for step in range(1, 11):
        progress.step(Finished(step, 2.5, 0.25, 1.0, 1.0, 100 + step), 10, 0.0)
    progress.close()
    assert out.getvalue().count("\n") == 1
    assert out.getvalue().count("\r") == 10


def test_the_longest_line_fits_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    out = Terminal()
    progress = Progress(out, batch_size=5_000)
    for step in (450_359, 450_360):
        progress.step(Finished(step, 10.987, 1.0, 1.0, 1.0, step * 0.1), 450_360, step * 0.1)
    line = out.getvalue().split("\r")[-1].removesuffix("\x1b[K")
    assert line == "step 450360/450360   50,000 images/s  wait 100%  loss 10.987  accuracy 100%"
    assert len(line) <= 79


def test_phases_add_up() -> None:
    began = time.monotonic()
    chrono = Chrono()
    chrono.enter("input")
    time.sleep(0.02)
    chrono.enter("step")
    chrono.move("input", "step", 0.01)
    spent = chrono.spent_s()
    assert set(spent) == set(PHASES)
    assert spent["step"] >= 0.01
    assert spent["input"] >= 0.0099
    assert sum(spent.values()) <= time.monotonic() - began


def test_table() -> None:
    assert (
        table([("run", "value"), ("steps", "700")])
        == "| run   | value |\n| ----- | ----: |\n| steps |   700 |"
    )
    assert table([("a", "b", "long"), ("1", "2", "3")]).splitlines()[-1] == "| 1 | 2 |    3 |"
