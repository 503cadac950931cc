"""What a run leaves behind for people and programs: numbers of each step as JSON lines, the same for
TensorBoard, and a plot.

A line of metrics.jsonl is one of

    {"kind": "start", "step": 0, "planned_steps": ..., "config": {...}}
    {"kind": "step", "step": 1, "loss": ..., "accuracy": ..., "grad_norm": ..., "weight_norm": ...,
     "rate": ..., "spent_s": {...}}
    {"kind": "eval", "step": 700, "images": ..., "bad": ..., "accuracy": ..., "loss": ...}
    {"kind": "end", "step": 700, ...}

where a resumed run starts with a "start" of its own, "rate" is what the step was made with, and "end" has
what feeder.trainer.loop.TrainResult has,
with seconds by phase (feeder.trainer.chrono) counted from the start or resume of the run.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import optax

from feeder.errors import StorageError
from feeder.trainer.chrono import Phase
from feeder.trainer.config import TrainConfig
from feeder.trainer.evaluate import EvalResult
from feeder.trainer.watch import Finished

__all__ = ["METRICS", "Record"]

METRICS = "metrics.jsonl"


class Record:
    """Writes a run down in a folder. A context manager."""

    def __init__(
        self, folder: Path, config: TrainConfig, schedule: optax.Schedule, step: int, planned_steps: int
    ) -> None:
        """
        Args:
            folder: made if it is missing. What an earlier run wrote of steps after `step` is dropped, and
                with step 0 all of it.
            config: of the run.
            schedule: learning rate by step.
            step: steps done before, more than 0 where a run goes on.
            planned_steps: of the whole run.

        Raises:
            StorageError: the folder or the files cannot be written.
        """
        path = folder / METRICS
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _keep(path, step)
            self._file = open(path, "a", buffering=1)  # noqa: SIM115  # closed by close
        except OSError as error:
            raise StorageError(f"{path}: cannot be written: {error.strerror}") from error
        self._first = step
        self._rates = np.asarray(schedule(np.arange(step, planned_steps)))
        self._tensorboard = _summary_writer(folder, step)
        self._write("start", step, {"planned_steps": planned_steps, "config": dataclasses.asdict(config)})

    @property
    def tensorboard(self) -> bool:
        """Whether files for TensorBoard are written: tensorboardX is installed."""
        return self._tensorboard is not None

    def step(self, finished: Finished, spent_s: Mapping[Phase, float]) -> None:
        """Of a step that the device is done with."""
        numbers = {
            "loss": finished.loss,
            "accuracy": finished.accuracy,
            "grad_norm": finished.grad_norm,
            "weight_norm": finished.weight_norm,
            "rate": float(self._rates[finished.step - 1 - self._first]),
        }
        spent = {phase: round(seconds, 6) for phase, seconds in spent_s.items()}
        self._write("step", finished.step, {**numbers, "spent_s": spent})
        shown = {f"train/{name}": value for name, value in numbers.items()}
        self._show(finished.step, shown | {f"seconds/{phase}": value for phase, value in spent.items()})

    def evaluated(self, step: int, result: EvalResult) -> None:
        """Of an evaluation after that step."""
        self._write("eval", step, dataclasses.asdict(result))
        self._show(step, {"eval/accuracy": result.accuracy, "eval/loss": result.loss})

    def end(self, step: int, result: Mapping[str, Any]) -> None:
        """Of the run; the last line."""
        self._write("end", step, result)

    def close(self) -> None:
        """Writes what is left to write."""
        self._file.close()
        if self._tensorboard is not None:
            self._tensorboard.close()

    def __enter__(self) -> Record:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write(self, kind: str, step: int, numbers: Mapping[str, Any]) -> None:
        self._file.write(json.dumps({"kind": kind, "step": step, **numbers}) + "\n")

    def _show(self, step: int, numbers: Mapping[str, float]) -> None:
        if self._tensorboard is not None:
            for name, value in numbers.items():
                self._tensorboard.add_scalar(name, value, step)


def _keep(path: Path, step: int) -> None:
    """Drops lines of later steps, which the resumed run makes again, and the half line of a run that died."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text().splitlines():
        try:
            if step and json.loads(line)["step"] <= step:
                kept.append(f"{line}\n")
        except (ValueError, KeyError, TypeError):
            continue
    beside = path.with_suffix(".tmp")
    beside.write_text("".join(kept))
    os.replace(beside, path)


def _summary_writer(folder: Path, step: int) -> Any:
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(os.fspath(folder), purge_step=step + 1)
