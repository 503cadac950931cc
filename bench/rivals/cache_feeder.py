"""feeder's decode stage with a cache of planes that holds a part of the images, or is filled meanwhile."""

from __future__ import annotations

import contextlib
import os
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from protocol import Batches, DecodeContestant, DecodeJob, arguments, serve

if TYPE_CHECKING:
    from feeder.cache import Cache, Filler
    from feeder.decode import Decoder, SeekPoints

VARIANTS = {
    "cold": "an epoch that finds nothing, learns seek points and offers its images to an empty cache",
    "25": "a quarter of the images are in the cache",
    "50": "half of the images are in the cache",
    "75": "three quarters of the images are in the cache",
    "100": "all images are in the cache",
}

DATASET = "bench"
CHUNK_IMAGES = 32
"""Most slots that one chunk request may name."""

KEEP_IMAGES = 8
"""As many as are decoded to planes in one call."""


class Files:
    """What the cache has to know of images in memory."""

    name = DATASET

    def __init__(self, images: list[bytes]) -> None:
        self._digests = [zlib.crc32(image) for image in images]

    def shard_starts(self) -> list[tuple[str, int, int]]:
        """One shard of them all."""
        return [(DATASET, 0, len(self._digests))]

    def digest(self, record: int) -> int:
        """A crc."""
        return self._digests[record]


class Epochs:
    """Passes over a job with a cache; the cache's folder is in shared memory where there is room."""

    def __init__(self, job: DecodeJob) -> None:
        from feeder.decode import open_decoder, pixel_fingerprint

        self._job = job
        self._windows = job.windows.astype(np.int32)
        self._scales = np.ones(len(job.images), np.uint8)
        self._decoder: Decoder = open_decoder(job.threads, "native")
        self._pixels = pixel_fingerprint(self._decoder)
        self._sizes, reasons = self._decoder.sizes(job.images)
        _refuse_bad(reasons)
        self._out = np.empty((job.batch, job.size, job.size, 3), np.uint8)

    @contextlib.contextmanager
    def cache(self) -> Iterator[Cache]:
        """An empty one with room for all; gone in the end."""
        from feeder.cache import Cache, Folder

        # Planes have at most three samples a pixel, and segments are reserved whole.
        budget = 4 * int(self._sizes.astype(np.int64).prod(axis=1).sum()) + (256 << 20)
        memory = os.statvfs("/dev/shm")
        place = "/dev/shm" if memory.f_bavail * memory.f_frsize > 2 * budget else None
        with tempfile.TemporaryDirectory(prefix=f"feeder-bench-{os.getpid()}-", dir=place) as folder:
            cache = Cache(
                Folder(Path(folder) / "cache"), budget, self._pixels, {DATASET: Files(self._job.images)}
            )
            try:
                yield cache
            finally:
                cache.close()

    def fill(self, cache: Cache, share: float) -> None:
        """Puts a share of the images into the cache, evenly spread; fails where one has no place."""
        numbers = np.arange(len(self._scales))
        chosen = np.flatnonzero(np.floor((numbers + 1) * share) > np.floor(numbers * share))
        shelf = cache.shelf(DATASET)
        for first in range(0, len(chosen), KEEP_IMAGES):
            records = chosen[first : first + KEEP_IMAGES]
            images = [self._job.images[record] for record in records]
            kept = self._decoder.keep(images, self._scales[: len(images)])
            for record, planes in zip(records.tolist(), kept, strict=True):
                width, height = self._sizes[record].tolist()
                if planes is None or not cache.add(shelf, record, 1, (width, height), planes):
                    raise ValueError(f"image {record} of {width} x {height} pixels cannot be kept")
        cache.seal()
        cache.refresh()
        if len(chosen) != sum(planes is not None for planes in shelf.find(numbers, _whole).planes):
            raise ValueError(f"not all of {len(chosen)} images are found in the cache")

    def one(
        self, cache: Cache, seek: SeekPoints | None = None, filler: Filler | None = None
    ) -> Iterator[np.ndarray]:
        """A pass; each batch is made in the memory of the one before."""
        count = len(self._scales)
        for start in range(0, count, self._job.batch):
            out = self._out[: count - start]
            for at in range(0, len(out), CHUNK_IMAGES):
                self._chunk(cache, start + at, out[at : at + CHUNK_IMAGES], seek, filler)
            yield out

    def _chunk(
        self, cache: Cache, first: int, out: np.ndarray, seek: SeekPoints | None, filler: Filler | None
    ) -> None:
        """What a worker does for a request: what is found is taken, what is not is decoded and offered."""
        from feeder.cache import Offer

        last = first + len(out)
        shelf = cache.shelf(DATASET)
        found = shelf.find(np.arange(first, last), _whole)
        encoded = self._job.images[first:last]
        reasons = self._decoder.decode(
            [
                image if planes is None else planes
                for image, planes in zip(encoded, found.planes, strict=True)
            ],
            self._windows[first:last],
            self._job.flips[first:last],
            out,
            seek=None if seek is None else seek.part(first, last),
            kept=found.sizes[:, 0] > 0,
        )
        _refuse_bad(reasons)
        if filler is not None:
            filler.offer(
                Offer(shelf, record, image, (int(width), int(height)), 1)
                for record, image, (width, height) in zip(
                    range(first, last), encoded, self._sizes[first:last], strict=True
                )
            )

    def cold(self) -> Iterator[np.ndarray]:
        """A pass that starts with nothing; what still waits to be kept in the end is dropped."""
        from feeder.cache import Filler
        from feeder.decode import SeekPoints

        with self.cache() as cache:
            filler = Filler(cache, self._decoder.keep)
            try:
                yield from self.one(cache, SeekPoints.nothing(len(self._scales)), filler)
            finally:
                filler.close()


def prepare(job: DecodeJob, variant: str, stack: contextlib.ExitStack) -> Batches:
    """Fills the cache, where it is to hold something."""
    epochs = Epochs(job)
    if variant == "cold":
        return epochs.cold
    share = int(variant) / 100
    cache = stack.enter_context(epochs.cache())
    epochs.fill(cache, share)
    # The more is cached the shorter is a pass; rounds shall last alike.
    passes = round(1 / (1.1 - share))

    def batches() -> Iterator[np.ndarray]:
        for _ in range(passes):
            yield from epochs.one(cache)

    return batches


def _whole(sizes: np.ndarray) -> np.ndarray:
    """Scales at which images are wanted: their own."""
    return np.ones(len(sizes), np.uint8)


def _refuse_bad(reasons: list[str | None]) -> None:
    bad = next(filter(None, reasons), None)
    if bad is not None:
        raise ValueError(f"bad image: {bad}")


if __name__ == "__main__":
    variant = arguments(__doc__ or "", tuple(VARIANTS)).variant
    with contextlib.ExitStack() as stack:
        serve(
            DecodeContestant(
                lambda job: prepare(job, variant, stack),
                distributions=("numpy", "pyarrow"),
                note=VARIANTS[variant],
                antialias=True,
            )
        )
