"""Does LARS keep the accuracy of a small batch at a large one? Four arms on synthetic pictures, on a CPU.

    make experiment-lars                                            # what is done already is not done again
    python -m bench.experiments.lars --worker-python PYTHON --tiny  # proves the code, shows nothing

Each arm trains the same net from the same pictures for the same epochs, with the same share of warm-up and
the same decay; only the batch and the update rule differ:

    small          momentum SGD at batch 16
    large-scaled   momentum SGD at batch 1,024, the rate of "small" times 64: linear scaling, nothing tuned
    large-tuned    momentum SGD at batch 1,024, its own rate
    large-lars     LARS at batch 1,024, its own eta

"small", "large-tuned" and "large-lars" each get one number tuned over a grid of five on a validation split,
with one seed; then each arm runs with three other seeds (weights and data order) and is scored on pictures
that neither training nor tuning saw. At last each rate of the grid of "small" is scaled and tried at the
large batch, with the seed of tuning: how much depends on which of them tuning chose. A row of JSON for each
run goes to ROWS as soon as it is done.

The net is deep and narrow, and the pictures are tiny, so that all runs fit a CPU and a rate can be too high:
a ResNet-8 takes any rate up to 3.2 at a batch of 512 here, and shows no difference.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
import os
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from bench.experiments.lars_report import ARMS, ROWS, best
from bench.harness import environment
from feeder.errors import ConfigError
from feeder.trainer.config import TrainConfig
from feeder.trainer.loop import train
from feeder.trainer.watch import NonFiniteLoss

__all__ = ["SCALE", "TINY", "Scale", "main", "settings"]

ROOT = Path(__file__).resolve().parent.parent.parent
FEEDER = ("-P", "-m", "feeder")
"""Python's flags for feeder as it is installed; without -P this checkout's, which has no kernel, would do."""

READY = "feeder worker listening on "
READY_TIMEOUT_S = 600.0
STOP_TIMEOUT_S = 20.0


@dataclass(frozen=True)
class Scale:
    """Sizes of the experiment.

    Attributes:
        classes, images, tested: of the pictures; `tested` are made besides, of another seed.
        holdout: share of `images` for the validation split.
        side: longer side in pixels of the pictures in the shards, at most.
        image_size: side in pixels of the random crops.
        small, large: batches.
        epochs: of every run.
        depth, width: of the ResNet.
        seeds: of the final runs; tuning has seed 0.
        rates: grid for momentum SGD, at the small batch.
        large_rates: the same at the large batch.
        etas: grid for LARS.
        lars_rate: its global rate, which batch-norm and bias tensors move with.
    """

    classes: int = 20
    images: int = 2816
    tested: int = 1000
    holdout: float = 0.25
    side: int = 72
    image_size: int = 16
    small: int = 16
    large: int = 1024
    epochs: int = 152
    depth: int = 20
    width: int = 8
    seeds: tuple[int, ...] = (1, 2, 3)
    rates: tuple[float, ...] = (0.0125, 0.025, 0.05, 0.1, 0.2)
    large_rates: tuple[float, ...] = (0.1, 0.2, 0.4, 0.8, 1.6)
    etas: tuple[float, ...] = (0.004, 0.008, 0.016, 0.032, 0.064)
    lars_rate: float = 2.0


SCALE = Scale()
"""2,112 pictures to train on (2 steps an epoch, 304 steps at the large batch), 704 to tune by, 1,000 to score
by."""

TINY = Scale(
    classes=3,
    images=64,
    tested=15,
    small=8,
    large=32,
    epochs=2,
    depth=8,
    width=4,
    seeds=(1, 2),
    rates=(0.05, 0.1),
    large_rates=(0.1, 0.2),
    etas=(0.004, 0.008),
)


def settings(scale: Scale, arm: str, value: float, seed: int) -> TrainConfig:
    """One run of an arm.

    Args:
        scale: sizes.
        arm: a name of ARMS.
        value: what is tuned: the peak rate, or eta for "large-lars".
        seed: of weights and data order.
    """
    common = TrainConfig(
        classes=scale.classes,
        epochs=scale.epochs,
        warmup_epochs=0.05 * scale.epochs,
        batch_size=scale.small if arm == "small" else scale.large,
        image_size=scale.image_size,
        depth=scale.depth,
        width=scale.width,
        small_stem=True,
        compute_dtype="float32",
        rate=value,
        decay="poly",
        momentum=0.9,
        weight_decay=1e-4,
        seed=seed,
    )
    if arm != "large-lars":
        return common
    return dataclasses.replace(
        common, optimizer="lars", lars_form="scaled", rate=scale.lars_rate, trust=value, nesterov=False
    )


def grids(scale: Scale) -> dict[str, tuple[float, ...]]:
    """What is tuned of each arm; the budgets are equal."""
    return {"small": scale.rates, "large-tuned": scale.large_rates, "large-lars": scale.etas}


class Experiment:
    """Runs that are kept as rows: one that is there already is not run again."""

    def __init__(self, scale: Scale, address: str, rows: Path) -> None:
        self._scale = scale
        self._address = address
        self._path = rows
        rows.parent.mkdir(parents=True, exist_ok=True)
        lines = rows.read_text().splitlines() if rows.exists() else []
        self.rows: list[dict[str, Any]] = [json.loads(line) for line in lines]
        head = {"kind": "scale", **json.loads(json.dumps(dataclasses.asdict(scale)))}
        if not self.rows:
            self._keep(head)
            self._keep(environment(sorted(os.sched_getaffinity(0)), {}))
        elif self.rows[0] != head:
            raise ConfigError(
                f"{rows}: holds runs of another scale; move it away, or name another with --rows"
            )

    def run(self) -> None:
        """All runs that are missing."""
        for arm, grid in grids(self._scale).items():
            for value in grid:
                self._one("tuning", arm, value, seed=0)
        tuned = {arm: best(self.rows, arm) for arm in grids(self._scale)}
        tuned["large-scaled"] = tuned["small"] * self._scale.large / self._scale.small
        for seed in self._scale.seeds:
            for arm in ARMS:
                self._one("final", arm, tuned[arm], seed)
        scaled = {rate * self._scale.large / self._scale.small for rate in self._scale.rates}
        for value in sorted(scaled - set(self._scale.large_rates)):  # those have been tried
            self._one("probe", "large-scaled", value, seed=0)

    def _one(self, stage: str, arm: str, value: float, seed: int) -> None:
        what = {"kind": stage, "arm": arm, "value": value, "seed": seed}
        if any(what.items() <= row.items() for row in self.rows):
            return
        config = settings(self._scale, arm, value, seed)
        began, cpu = time.monotonic(), time.process_time()
        scored = "test" if stage == "final" else "validation"
        try:
            result = train(config, self._address, "train", scored)
        except NonFiniteLoss as error:
            outcome: dict[str, Any] = {"diverged": str(error), "accuracy": 1 / config.classes}
        else:
            assert result.eval is not None
            outcome = {
                "accuracy": result.eval.accuracy,
                "eval_loss": _finite(result.eval.loss),
                "train_loss": result.loss,
                "steps": result.steps,
            }
        took = {
            "seconds": round(time.monotonic() - began, 1),
            "cpu_seconds": round(time.process_time() - cpu, 1),
        }
        self._keep({**what, "batch": config.batch_size, **outcome, **took})
        shown = f"{arm:<13} {value:<8g} seed {seed}: {outcome['accuracy']:6.1%} on {scored}"
        print(f"{stage:<6} {shown} ({took['seconds']:g} s)", file=sys.stderr, flush=True)

    def _keep(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        with open(self._path, "a") as file:
            file.write(json.dumps(row) + "\n")


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def prepare(scale: Scale, folder: Path, python: str) -> dict[str, str]:
    """Makes the pictures and packs them, unless it was done; the patterns of the three data sets."""
    stamp = folder / "scale.json"
    wanted = json.dumps([scale.classes, scale.images, scale.holdout, scale.tested, scale.side])
    if not stamp.exists() or stamp.read_text() != wanted:
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        for name, images, seed, share in (
            ("train", scale.images, 0, scale.holdout),
            ("test", scale.tested, 1, 0.0),
        ):
            photos = folder / f"{name}-photos"
            _feeder(
                python,
                *("synth", str(photos), "--images", str(images), "--classes", str(scale.classes)),
                *("--seed", str(seed)),
            )
            _run(python, "-m", "bench.experiments.pictures", str(photos), str(scale.side))
            _feeder(
                python,
                *("pack", str(photos), str(folder / "shards"), "--shards", "2", "--name", name),
                *("--holdout", str(share)),
            )
            shutil.rmtree(photos)
        stamp.write_text(wanted)
    return {name: f"{folder}/shards/{name}-*" for name in ("train", "validation", "test")}


@contextlib.contextmanager
def worker(sets: Mapping[str, str], python: str, log: Path) -> Iterator[str]:
    """Address of a worker that keeps the decoded pictures in memory: each is decoded once, and cropped anew
    by every run."""
    flags = [f"--dataset={name}={pattern}" for name, pattern in sets.items()]
    cache = log.parent / "cache"
    flags += [
        "--listen",
        "127.0.0.1:0",
        "--cache-bytes",
        "256MiB",
        "--cache-dir",
        str(cache),
        "--threads",
        "1",
    ]
    with (
        open(log, "w") as stderr,
        subprocess.Popen(
            [python, *FEEDER, "worker", *flags], stdout=subprocess.PIPE, stderr=stderr, text=True
        ) as process,
    ):
        try:
            assert process.stdout is not None
            with selectors.DefaultSelector() as selector:
                selector.register(process.stdout, selectors.EVENT_READ)
                ready = selector.select(READY_TIMEOUT_S)
            line = process.stdout.readline() if ready else ""
            if not line.startswith(READY):
                raise RuntimeError(f"the worker did not start, see {log}")
            yield line.removeprefix(READY).strip()
        finally:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()


def thrifty(cache: Path) -> None:
    """Makes JAX keep compiled code in a folder, for the runs that differ in their seed only, and use one
    thread for a convolution: such small ones take longer with more."""
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false"
    jax.config.update("jax_compilation_cache_dir", os.fspath(cache))  # type: ignore[no-untyped-call]
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)  # type: ignore[no-untyped-call]


def _feeder(python: str, *command: str) -> None:
    _run(python, *FEEDER, *command)


def _run(*command: str) -> None:
    subprocess.run(command, stdout=subprocess.DEVNULL, cwd=ROOT, check=True)


def end_on_sigterm() -> None:
    """Makes SIGTERM end this process as Ctrl-C does, so that its worker ends, too."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the experiment."""
    end_on_sigterm()
    lines = (__doc__ or "").splitlines()
    parser = argparse.ArgumentParser(description=lines[0])
    parser.add_argument(
        "--worker-python", default=sys.executable, metavar="PYTHON", help="has feeder[worker]"
    )
    parser.add_argument("--folder", type=Path, default=Path("build/experiment-lars"), help="for the pictures")
    parser.add_argument("--rows", type=Path, default=ROWS, help="where rows go (%(default)s)")
    parser.add_argument("--tiny", action="store_true", help="seconds instead of minutes; shows nothing")
    args = parser.parse_args(arguments)
    scale = TINY if args.tiny else SCALE
    folder = args.folder.resolve()
    thrifty(folder / "compiled")
    sets = prepare(scale, folder / "data", args.worker_python)
    with worker(sets, args.worker_python, folder / "worker.log") as address:
        Experiment(scale, address, args.rows).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
