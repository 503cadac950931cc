from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from feeder.trainer import plot
from feeder.trainer.chrono import PHASES
from feeder.trainer.config import TrainConfig
from feeder.trainer.evaluate import EvalResult
from feeder.trainer.optimizer import make_schedule
from feeder.trainer.record import METRICS, Record
from feeder.trainer.watch import Finished


def _rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / METRICS).read_text().splitlines()]


def _run(folder: Path, config: TrainConfig, first: int, last: int) -> None:
    schedule = make_schedule(config, 40, 5)
    with Record(folder, config, schedule, first, 40) as record:
        for step in range(first + 1, last + 1):
            record.step(Finished(step, 2.0 / step, 0.5, 1.0, 3.0, 0.0), dict.fromkeys(PHASES, 0.25))
        record.evaluated(last, EvalResult(images=23, bad=1, accuracy=0.5, loss=1.5))
        record.end(last, {"steps": last})


def test_lines(config: TrainConfig, tmp_path: Path) -> None:
    _run(tmp_path / "log", config, 0, 3)
    start, one, two, three, evaluated, end = _rows(tmp_path / "log")
    assert (start["kind"], start["step"], start["config"]["batch_size"]) == ("start", 0, 20)
    assert [row["step"] for row in (one, two, three)] == [1, 2, 3]
    peak = config.peak_rate
    assert [row["rate"] for row in (one, two, three)] == pytest.approx([0, peak / 5, 2 * peak / 5])
    assert (two["loss"], two["grad_norm"], two["weight_norm"], two["spent_s"]["input"]) == (
        1.0,
        1.0,
        3.0,
        0.25,
    )
    assert (evaluated["kind"], evaluated["images"], evaluated["bad"]) == ("eval", 23, 1)
    assert end == {"kind": "end", "step": 3, "steps": 3}


def test_a_resumed_run_takes_the_place_of_what_came_after(config: TrainConfig, tmp_path: Path) -> None:
    _run(tmp_path, config, 0, 8)
    with open(tmp_path / METRICS, "a") as file:
        file.write('{"kind": "step", "ste')  # killed
    _run(tmp_path, config, 5, 9)
    rows = _rows(tmp_path)
    assert [row["step"] for row in rows if row["kind"] == "step"] == list(range(1, 10))
    assert [row["step"] for row in rows if row["kind"] == "start"] == [0, 5]
    rates = [row["rate"] for row in rows if row["kind"] == "step"]
    whole = make_schedule(config, 40, 5)
    assert rates == pytest.approx([float(whole(step)) for step in range(9)])
    _run(tmp_path, config, 0, 2)  # another run, from the beginning
    assert [row["step"] for row in _rows(tmp_path) if row["kind"] == "step"] == [1, 2]


def test_tensorboard(config: TrainConfig, tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX", reason="tensorboardX is not installed")
    _run(tmp_path, config, 0, 2)
    (events,) = tmp_path.glob("events.out.tfevents.*")
    for name in (b"train/loss", b"train/rate", b"seconds/input", b"eval/accuracy"):
        assert name in events.read_bytes()


def test_plot(config: TrainConfig, tmp_path: Path) -> None:
    assert plot.available() == (importlib.util.find_spec("matplotlib") is not None)
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    _run(tmp_path, config, 0, 40)
    assert plot.plot(tmp_path).read_bytes().startswith(b"\x89PNG")


def test_smoothing_is_a_running_mean() -> None:
    assert plot._smooth([4.0, 2.0]) == [4.0, 2.0]
    values = [float(value) for value in range(60)]
    assert plot._smooth(values)[10] == pytest.approx((8 + 9 + 10) / 3)
