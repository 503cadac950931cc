"""The plot of a run: loss, accuracy and learning rate over its steps.

    python -m feeder.trainer.plot LOG_DIR

It needs matplotlib, which is not among feeder's dependencies: matplotlib brings Pillow along, which would
take the place of a worker's pillow-simd. Where it is installed, a run with --log-dir ends with it.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["available", "plot"]

METRICS = "metrics.jsonl"
PLOT = "run.png"
WINDOW = 50
"""Steps that the strong line is a mean over, at most a twentieth of the run."""

LOSS, ACCURACY, RATE = "#1b7f79", "#b5566b", "#7a7f85"


def available() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def plot(folder: Path) -> Path:
    """Draws run.png in a folder with the metrics.jsonl of a run; returns its path."""
    from matplotlib.figure import Figure  # type: ignore[import-not-found]

    rows = [json.loads(line) for line in (folder / METRICS).read_text().splitlines()]
    steps = [row for row in rows if row["kind"] == "step"]
    evals = [row for row in rows if row["kind"] == "eval"]
    at = [row["step"] for row in steps]
    figure = Figure(figsize=(8, 8), layout="constrained")
    loss, accuracy, rate = figure.subplots(3, 1, sharex=True)
    for axes, name, colour in ((loss, "loss", LOSS), (accuracy, "accuracy", ACCURACY)):
        values = [row[name] for row in steps]
        axes.plot(at, values, color=colour, alpha=0.3, linewidth=0.8)
        axes.plot(at, _smooth(values), color=colour, linewidth=1.6, label="training batches")
        if evals:
            axes.plot(
                [row["step"] for row in evals],
                [row[name] for row in evals],
                "ko",
                markersize=4,
                label="evaluation",
            )
        axes.set_ylabel(name)
        axes.legend(frameon=False)
    accuracy.set_ylim(0, 1)
    rate.plot(at, [row["rate"] for row in steps], color=RATE)
    rate.set_ylabel("learning rate")
    rate.set_xlabel("step")
    for axes in (loss, accuracy, rate):
        axes.spines[["top", "right"]].set_visible(False)
    path = folder / PLOT
    figure.savefig(path, dpi=120)
    return path


def _smooth(values: Sequence[float]) -> list[float]:
    window = max(1, min(WINDOW, len(values) // 20))
    means: list[float] = []
    total = 0.0
    for place, value in enumerate(values):
        total += value - (values[place - window] if place >= window else 0.0)
        means.append(total / min(place + 1, window))
    return means


def _main(arguments: Any) -> int:
    print(plot(Path(arguments[0])))  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
