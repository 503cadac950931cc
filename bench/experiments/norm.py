"""How many samples should batch-norm statistics be of? Eight replicas of two samples each, on a CPU.

    make experiment-norm                                              # data and all runs, about 20 minutes
    python -m bench.experiments.norm --worker-python PYTHON --tiny    # proves the code, shows nothing

The same net learns the same pictures at the same batch of 16 on a mesh of 4x2 simulated replicas; only the
span of the statistics differs:

    2     each replica's own two samples: local batch normalisation
    4     groups of two replicas
    16    all of them, as one device would

The rate of each span is tuned on the validation split with one seed; then three other seeds are scored on
pictures that neither training nor tuning saw. A row of JSON for each run goes to ROWS as soon as it is done,
and a run that is there is not made again. At the end a table of them goes to README.md beside.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.experiments.lars import SCALE, TINY, Scale, end_on_sigterm, prepare, thrifty, worker
from bench.harness import environment
from feeder.errors import ConfigError
from feeder.trainer.config import TrainConfig
from feeder.trainer.grid import Grid
from feeder.trainer.table import table
from feeder.trainer.watch import NonFiniteLoss

__all__ = ["main", "markdown", "run"]

ROWS = Path(__file__).resolve().parent.parent / "results" / "norm" / "rows.jsonl"

MESH = Grid(4, 2)
BATCH = 16
SPANS = (2, 4, 16)

FULL = dataclasses.replace(SCALE, image_size=32, depth=8, epochs=5, rates=(0.05, 0.1))
"""About 2,112 pictures to train on, 660 steps a run, 15 runs. Features of the last stage are 2 x 2."""
SMALL = dataclasses.replace(TINY, rates=(0.1,), seeds=(1,))

Row = Mapping[str, Any]


def settings(scale: Scale, span: int, rate: float, seed: int) -> TrainConfig:
    """One run.

    Args:
        scale: sizes.
        span: samples of the batch-norm statistics.
        rate: peak learning rate.
        seed: of weights and data order.
    """
    return TrainConfig(
        classes=scale.classes,
        epochs=scale.epochs,
        warmup_epochs=0.05 * scale.epochs,
        batch_size=BATCH,
        image_size=scale.image_size,
        depth=scale.depth,
        width=scale.width,
        small_stem=True,
        compute_dtype="float32",
        rate=rate,
        decay="poly",
        momentum=0.9,
        weight_decay=1e-4,
        norm_span=span,
        seed=seed,
    )


def best(rows: Sequence[Row], span: int) -> float:
    """The rate with the highest accuracy on the validation split; of equals the smallest."""
    tuning = [row for row in rows if row["kind"] == "tuning" and row["span"] == span]
    return float(max(tuning, key=lambda row: (row["accuracy"], -row["rate"]))["rate"])


def run(scale: Scale, address: str, path: Path) -> list[Row]:
    """Makes the runs that are missing; all rows.

    Raises:
        ConfigError: the file holds rows of another scale.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def keep(row: Row) -> None:
        rows.append(row)
        with open(path, "a") as file:
            file.write(json.dumps(row) + "\n")

    head = {
        "kind": "scale",
        "mesh": str(MESH),
        "batch": BATCH,
        **json.loads(json.dumps(dataclasses.asdict(scale))),
    }
    if not rows:
        keep(head)
        keep(environment(sorted(os.sched_getaffinity(0)), {}))
    elif rows[0] != head:
        raise ConfigError(f"{path}: holds runs of another scale; move it away, or name another with --rows")
    for span in SPANS:
        for rate in scale.rates:
            _one(scale, address, rows, keep, "tuning", span, rate, seed=0)
    for seed in scale.seeds:
        for span in SPANS:
            _one(scale, address, rows, keep, "final", span, best(rows, span), seed)
    return rows


def _one(
    scale: Scale, address: str, rows: Sequence[Row], keep: Any, kind: str, span: int, rate: float, seed: int
) -> None:
    from feeder.trainer.loop import train

    what = {"kind": kind, "span": span, "rate": rate, "seed": seed}
    if any(what.items() <= row.items() for row in rows):
        return
    scored = "validation" if kind == "tuning" else "test"
    began = time.monotonic()
    try:
        result = train(settings(scale, span, rate, seed), address, "train", scored, mesh=MESH)
    except NonFiniteLoss as error:
        outcome: dict[str, Any] = {"diverged": str(error), "accuracy": 1 / scale.classes}
    else:
        assert result.eval is not None
        loss = result.eval.loss if math.isfinite(result.eval.loss) else None
        outcome = {"accuracy": result.eval.accuracy, "eval_loss": loss, "train_loss": result.loss}
    keep({**what, **outcome, "seconds": round(time.monotonic() - began, 1)})
    shown = f"{kind:<6} span {span:>2} rate {rate:<5g} seed {seed}: {outcome['accuracy']:6.1%} on {scored}"
    print(shown, file=sys.stderr, flush=True)


def markdown(rows: Sequence[Row]) -> str:
    """The page."""
    scale, machine = rows[0], rows[1]
    trained = round(scale["images"] * (1 - scale["holdout"]))
    lines = [("span of the statistics", "replicas", "rate", "accuracy", "lowest to highest", "training loss")]
    for span in SPANS:
        final = [row for row in rows if row["kind"] == "final" and row["span"] == span]
        accuracy = [row["accuracy"] for row in final]
        losses = [row["train_loss"] for row in final if "train_loss" in row]
        lines.append(
            (
                f"{span} samples",
                f"{span * MESH.replicas // BATCH}",
                f"{final[0]['rate']:g}",
                f"{statistics.mean(accuracy):.1%}",
                f"{min(accuracy):.1%} to {max(accuracy):.1%}",
                f"{statistics.mean(losses):.3f}" if losses else "diverged",
            )
        )
    return (
        "# Batch normalisation over groups of replicas\n\n"
        "Made by `make experiment-norm` from [rows.jsonl](rows.jsonl). "
        f"{machine['cpu']}, {machine['date'][:10]}, commit {machine['commit']}"
        f"{' with changes' if machine['dirty'] else ''}.\n\n"
        f"ResNet-{scale['depth']} of width {scale['width']} on about {trained:,} synthetic pictures of "
        f"{scale['classes']} classes, batch {BATCH} on {MESH} simulated replicas; accuracy on "
        f"{scale['tested']:,} pictures of their own, mean of {len(scale['seeds'])} seeds.\n\n{table(lines)}\n"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the experiment."""
    lines = (__doc__ or "").splitlines()
    parser = argparse.ArgumentParser(description=lines[0])
    parser.add_argument(
        "--worker-python", default=sys.executable, metavar="PYTHON", help="has feeder[worker]"
    )
    parser.add_argument("--folder", type=Path, default=Path("build/experiment-norm"), help="for the pictures")
    parser.add_argument("--rows", type=Path, default=ROWS, help="where rows go (%(default)s)")
    parser.add_argument("--tiny", action="store_true", help="a few short runs; shows nothing")
    args = parser.parse_args(arguments)
    end_on_sigterm()
    scale = SMALL if args.tiny else FULL
    folder = args.folder.resolve()
    thrifty(folder / "compiled")
    os.environ["XLA_FLAGS"] += f" --xla_force_host_platform_device_count={MESH.replicas}"
    sets = prepare(scale, folder / "data", args.worker_python)
    with worker(sets, args.worker_python, folder / "worker.log") as address:
        rows = run(scale, address, args.rows)
    (args.rows.parent / "README.md").write_text(markdown(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
