"""Makes a folder of synthetic photographs in class folders, with the make-up of ImageNet's files.

Sizes, bytes and subsampling follow a sample of 1,000 files of ImageNet: 202k pixels and 110 kB on average,
76 % 4:4:4, 20 % 4:2:0, the rest gray (2 to 4 %), all baseline with Huffman tables of their own.
"""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image
from tqdm import tqdm

from feeder.errors import ConfigError, StorageError
from feeder.records.scene import Textures, draw, shape_name

__all__ = ["SynthResult", "class_names", "encode_picture", "synth"]

MAX_CLASSES = 1000

# (width, height) and how many of 1,000 files have it; 204k pixels on average.
_SIZES = (
    (500, 375, 438),
    (375, 500, 140),
    (500, 333, 160),
    (333, 500, 60),
    (640, 480, 60),
    (400, 300, 36),
    (250, 188, 36),
    (300, 225, 28),
    (800, 600, 26),
    (1024, 768, 10),
    (1200, 900, 6),
)
_SHARE_444, _SHARE_420 = 0.77, 0.20
_QUALITIES = (84, 97)


@dataclass(frozen=True)
class SynthResult:
    """What was made.

    Attributes:
        images: number of files.
        classes: names of the class folders.
        nbytes: size of all files.
    """

    images: int
    classes: list[str]
    nbytes: int


def class_names(classes: int) -> list[str]:
    """Folder names, sorted: number and shape."""
    return [f"{label:03d}_{shape_name(label)}" for label in range(classes)]


def encode_picture(textures: Textures, seed: int, number: int, label: int, classes: int) -> bytes:
    """JPEG file of picture `number`; a function of its arguments and of the libraries' versions."""
    rng = np.random.Generator(np.random.PCG64([seed, 2, number]))
    weights = np.array([share for *_, share in _SIZES], float)
    width, height, _ = _SIZES[int(rng.choice(len(_SIZES), p=weights / weights.sum()))]
    if rng.random() < 0.3:  # an odd short side, as scans and crops have
        change = int(rng.integers(-12, 13))
        width, height = (width + change, height) if width < height else (width, height + change)
    picture = draw(textures, label, classes, height, width, rng)
    picture += 0.5
    np.clip(picture, 0, 255, out=picture)
    image = Image.fromarray(np.ascontiguousarray(picture.astype(np.uint8).transpose(1, 2, 0)))
    kind = rng.random()
    quality = int(rng.integers(_QUALITIES[0], _QUALITIES[1] + 1))
    if kind >= _SHARE_444 + _SHARE_420:
        image = image.convert("L")
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality, subsampling=0 if kind < _SHARE_444 else 2, optimize=True)
    return file.getvalue()


def synth(
    dst: Path,
    images: int,
    classes: int,
    *,
    seed: int = 0,
    jobs: int | None = None,
    progress: bool = False,
) -> SynthResult:
    """Writes dst/CLASS/NUMBER.JPEG; image n is of class n modulo `classes`.

    Args:
        dst: folder to make; must not exist or be empty.
        images: number of files, at least `classes`.
        classes: number of classes, 1 to 1000.
        seed: 0 or more; the same seed and libraries give the same bytes, whatever `jobs` is.
        jobs: threads (drawing and coding hold the GIL for a small part only); None takes the usable cores.
        progress: show a bar on stderr.

    Raises:
        ConfigError: an argument is out of range, or the folder holds something.
        StorageError: the folder cannot be written.
    """
    if not 1 <= classes <= MAX_CLASSES:
        raise ConfigError(f"classes must be in [1, {MAX_CLASSES}], got {classes}")
    if images < classes:
        raise ConfigError(f"images must be at least one a class ({classes}), got {images}")
    if seed < 0:
        raise ConfigError(f"seed must be 0 or more, got {seed}")
    names = class_names(classes)
    digits = max(5, len(str(images - 1)))
    textures = Textures(seed)
    stop = threading.Event()

    def make(number: int) -> int:
        if stop.is_set():
            return 0
        label = number % classes
        encoded = encode_picture(textures, seed, number, label, classes)
        (dst / names[label] / f"{number:0{digits}d}.JPEG").write_bytes(encoded)
        return len(encoded)

    try:
        if dst.exists() and any(dst.iterdir()):
            raise ConfigError(f"{dst}: is not empty: name a new folder, or remove it first")
        for name in names:
            (dst / name).mkdir(parents=True, exist_ok=True)
        nbytes = _in_threads(make, images, jobs or len(os.sched_getaffinity(0)), stop, progress)
    except OSError as error:
        raise StorageError(f"{dst}: cannot write: {error.strerror or error}") from error
    return SynthResult(images, names, nbytes)


def _in_threads(
    make: Callable[[int], int], images: int, jobs: int, stop: threading.Event, progress: bool
) -> int:
    """Sum of make(number) over all numbers; ends early, by `stop`, when one raises."""
    total = 0
    futures: list[Future[int]] = []
    with (
        tqdm(total=images, desc="drawing", unit="image", disable=not progress) as bar,
        ThreadPoolExecutor(jobs, thread_name_prefix="feeder-synth") as pool,
    ):
        try:
            for start in range(0, images, 256):  # so that a million images are not a million futures
                futures = [pool.submit(make, number) for number in range(start, min(start + 256, images))]
                for future in futures:
                    total += future.result()
                    bar.update(1)
        finally:
            stop.set()
            wait(futures)
    return total
