"""Who can take part in a decode contest, how one gets its input, and the check before anything is timed."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bench.contestant import Contestant, ContestantFailed, rival
from bench.harness import Round
from bench.inputs import DecodeInput
from bench.oracle import Agreement, agreement, expected

__all__ = ["BATCH", "FEEDER", "RIVALS", "Entry", "check", "is_feeder", "load", "run_round", "start"]

BATCH = 64
CHECKED_IMAGES = 128
MOST_MEAN_ABS = 3.0
"""Levels. Another DCT or rounding, or a box for a triangle, stays under 1.5; a wrong window gives over 10."""


@dataclass(frozen=True)
class Entry:
    """Who takes part: the environment in .venv/rivals (None: this one), the script and its variant."""

    name: str
    folder: str | None
    script: str
    variant: str | None = None


FEEDER = {
    "native": Entry("feeder", None, "decode_feeder.py", "native"),
    "seek": Entry("feeder (seek points)", None, "decode_feeder.py", "seek"),
    "portable": Entry("feeder portable", None, "decode_feeder.py", "portable"),
}

RIVALS = (
    Entry("tf.data", "tfdata", "decode_tfdata.py", "plain"),
    Entry("tf.data, antialias", "tfdata", "decode_tfdata.py", "antialias"),
    Entry("DALI", "dali", "decode_dali.py", "plain"),
    Entry("DALI, antialias", "dali", "decode_dali.py", "antialias"),
    Entry("OpenCV", "opencv", "decode_opencv.py"),
    Entry("torchvision", "torchvision", "decode_torchvision.py"),
    Entry("Pillow", "pillow", "decode_pillow.py", "Pillow"),
    Entry("pillow-simd", "pillow_simd", "decode_pillow.py", "pillow-simd"),
    Entry("simplejpeg + pillow-simd", "pillow_simd", "decode_simplejpeg.py"),
    Entry("FFCV", "ffcv", "decode_ffcv.py"),
    Entry("SPDL", "spdl", "decode_spdl.py"),
    Entry("Grain", "grain", "decode_grain.py"),
    Entry("LitData", "litdata", "decode_litdata.py"),
)


def is_feeder(name: str) -> bool:
    """Whether a contestant of this name is feeder itself, in one of its variants."""
    return name.startswith("feeder")


def start(entry: Entry, cores: Sequence[int]) -> Contestant:
    """Starts a contestant's process, pinned to `cores`.

    Raises:
        NotInstalled: its environment is not there.
        ContestantFailed: it cannot be started.
    """
    flags = ["--cores", ",".join(map(str, cores))]
    if entry.variant is not None:
        flags += ["--variant", entry.variant]
    return rival(entry.name, entry.folder, entry.script, *flags)


def load(contestant: Contestant, data: DecodeInput, size: int, threads: int) -> None:
    """Gives a contestant its input, in place of what it had before.

    Args:
        contestant: a started one.
        data: files and windows.
        size: output height and width in pixels.
        threads: decode threads that it may use.

    Raises:
        ContestantFailed: it could not take it.
    """
    contestant.load(
        files=[str(path.resolve()) for path in data.files],
        windows=data.windows.tolist(),
        flips=data.flips.tolist(),
        size=size,
        batch=BATCH,
        threads=threads,
    )


def check(contestant: Contestant, data: DecodeInput, size: int, *, images: int = CHECKED_IMAGES) -> Agreement:
    """Holds the first images that a loaded contestant makes against the oracle.

    Raises:
        ContestantFailed: shape or type differ, or the pixels by more than another kernel's would.
    """
    count = min(images, len(data.files))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "outputs.npy"
        contestant.ask("outputs", path=str(path), count=count)
        outputs = np.load(path)
    wanted = _oracle(data, count, size, bool(contestant.facts["antialias"]))
    try:
        found = agreement(outputs, wanted)
    except ValueError as error:
        raise ContestantFailed(f"{contestant.name}: {error}") from error
    if found.mean_abs > MOST_MEAN_ABS:
        raise ContestantFailed(
            f"{contestant.name}: its output is {found.mean_abs} levels off the oracle's on average, at most"
            f" {MOST_MEAN_ABS} can be another kernel: it does another job"
        )
    return found


def run_round(contestant: Contestant) -> Round:
    """One pass over the input that the contestant has loaded."""
    return Round(**contestant.ask("round"))


@functools.lru_cache(maxsize=2)
def _oracle(data: DecodeInput, count: int, size: int, antialias: bool) -> npt.NDArray[np.uint8]:
    return expected(
        [path.read_bytes() for path in data.files[:count]],
        data.windows[:count].astype(np.int64),
        data.flips[:count],
        size,
        antialias=antialias,
    )
