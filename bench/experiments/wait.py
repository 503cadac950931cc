"""How long does the `tiny` training wait for its input? The worker on one core, the trainer on another.

    make experiment-wait                                              # about six minutes
    python -m bench.experiments.wait --worker-python PYTHON --tiny    # proves the code, shows nothing

A client on the trainer's core first takes two epochs as fast as it can: the worker's rate, in the second of
them with all images in its cache. Then come runs of `feeder train --config tiny`, whose rate is that of a
step that input does not hold up. Where the worker outpaces the step, what is left to wait for is the loop's
own work: taking a batch and handing it to the device. A row of JSON for each goes to ROWS, and a table of
them to README.md beside.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import feeder
from bench.experiments.lars import SCALE, end_on_sigterm, prepare, thrifty, worker
from bench.harness import environment
from feeder.errors import ConfigError
from feeder.trainer.config import load_config
from feeder.trainer.loop import train
from feeder.trainer.table import table

__all__ = ["main", "markdown", "measure"]

ROWS = Path(__file__).resolve().parent.parent / "results" / "wait" / "rows.jsonl"

CONFIG = load_config("tiny")
PICTURES = dataclasses.replace(
    SCALE, classes=CONFIG.classes, images=1024, holdout=0.0, tested=CONFIG.classes, side=512
)

Row = Mapping[str, Any]


def measure(address: str, *, runs: int, steps: int) -> list[Row]:
    """Rows of the worker's rate and of each run.

    Args:
        address: of a worker that serves "train".
        runs: how many.
        steps: of each, more than the warm-up of `tiny`.
    """
    rows: list[Row] = [{"kind": "worker", "images_per_s": round(_rate(address), 1)}]
    config = dataclasses.replace(CONFIG, steps=steps)
    for number in range(runs):
        _progress(f"run {number + 1} of {runs}")
        cpu = time.process_time()
        result = train(dataclasses.replace(config, seed=number), address, "train")
        done = result.steps
        rows.append(
            {
                "kind": "run",
                "steps": done,
                "input_wait": round(result.input_wait, 6),
                "input_ms_per_step": round(1e3 * result.spent_s["input"] / done, 4),
                "step_ms": round(1e3 * result.spent_s["step"] / done, 3),
                "cpu_seconds": round(time.process_time() - cpu, 1),
                "images_per_s": round(result.images_per_s, 1),
                "load_average": round(os.getloadavg()[0], 2),
            }
        )
    _progress("")
    return rows


def _rate(address: str) -> float:
    """Images a second of a client that does nothing with them, in its second epoch."""
    with feeder.connect(address) as client:
        stream = client.stream(
            "train",
            batch_size=CONFIG.batch_size,
            image_size=CONFIG.image_size,
            sampler=CONFIG.sampler,
            epochs=2,
        )
        began, images = 0.0, 0
        for batch in stream:
            if began:
                images += len(batch.labels)
            elif batch.position.epoch == 1:
                began = time.monotonic()
        return images / (time.monotonic() - began)


def markdown(rows: Sequence[Row]) -> str:
    """The page."""
    machine, worker_row, *runs = rows
    waits = [run["input_wait"] for run in runs]
    lines = [("run", "load", "step, ms", "waiting a step, ms", "share of the time")]
    lines += [
        (
            f"{number + 1}",
            f"{run['load_average']:g}",
            f"{run['step_ms']:.1f}",
            f"{run['input_ms_per_step']:.3f}",
            f"{run['input_wait']:.2%}",
        )
        for number, run in enumerate(runs)
    ]
    return (
        "# Waiting for input\n\n"
        "Made by `make experiment-wait` from [rows.jsonl](rows.jsonl). "
        f"{machine['cpu']}, {machine['date'][:10]}, commit {machine['commit']}"
        f"{' with changes' if machine['dirty'] else ''}.\n\n"
        f"`feeder train --config tiny`, {runs[0]['steps']:,} steps of {CONFIG.batch_size} images of "
        f"{CONFIG.image_size} pixels: the worker with its one thread on core {machine['cores_used'][0]}, the "
        f"trainer on core {machine['cores_used'][1]}. The worker alone gives "
        f"{worker_row['images_per_s']:,.0f} images/s from its cache, the trainer takes "
        f"{statistics.median(run['images_per_s'] for run in runs):,.0f} (median). Waiting is the time in "
        "which the device had nothing to do and no batch had come: median "
        f'{statistics.median(waits):.2%}, at most {max(waits):.2%}. "Load" is the machine\'s load average '
        "at the end of the run: with neighbours on the two cores it is above 2, and both sides get less than "
        "a core.\n\n"
        f"{table(lines)}\n"
    )


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures.

    Raises:
        ConfigError: there is one core only.
    """
    end_on_sigterm()
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--worker-python", default=sys.executable, metavar="PYTHON", help="has feeder[worker]"
    )
    parser.add_argument("--folder", type=Path, default=Path("build/experiment-wait"), help="for the pictures")
    parser.add_argument("--rows", type=Path, default=ROWS, help="where rows go (%(default)s)")
    parser.add_argument("--runs", type=int, default=7, metavar="N", help="(%(default)s)")
    parser.add_argument("--steps", type=int, default=CONFIG.steps, metavar="N", help="of each (%(default)s)")
    parser.add_argument("--tiny", action="store_true", help="seconds instead of minutes; shows nothing")
    args = parser.parse_args(arguments)
    runs, steps, pictures = args.runs, args.steps, PICTURES
    if args.tiny:
        runs, steps = 1, (CONFIG.warmup_steps or 0) + 1
        pictures = dataclasses.replace(PICTURES, images=10 * CONFIG.classes)
    cores = sorted(os.sched_getaffinity(0))[-2:]
    if len(cores) < 2:
        raise ConfigError("worker and trainer need a core each, and one can be used")
    folder = args.folder.resolve()
    sets = {"train": prepare(pictures, folder / "data", args.worker_python)["train"]}
    thrifty(folder / "compiled")
    head = environment(cores, {})
    os.sched_setaffinity(0, cores[:1])  # which the worker inherits
    with worker(sets, args.worker_python, folder / "worker.log") as address:
        os.sched_setaffinity(0, cores[1:])
        rows = [head, *measure(address, runs=runs, steps=steps)]
    args.rows.parent.mkdir(parents=True, exist_ok=True)
    args.rows.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (args.rows.parent / "README.md").write_text(page := markdown(rows))
    print(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
