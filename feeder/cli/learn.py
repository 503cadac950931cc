"""What `feeder index --seek` does: learn the seek points of every record of a data set."""

from __future__ import annotations

import os
import threading
from contextlib import closing
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from feeder.decode import SEEK_BYTES, SeekPoints, open_decoder
from feeder.errors import BadRecord, StorageError
from feeder.records import Dataset
from feeder.records.seek import COMPLETE, CUT
from feeder.records.walk import walk

__all__ = ["Learned", "learn"]


@dataclass(frozen=True)
class Learned:
    """Counts of records: each is in one of `complete`, `partial`, `none` and `bad`, and some also in another.

    Attributes:
        complete: whose points are all there.
        partial: whose image is damaged; what comes before the damage has points.
        none: of whose image none can be known: it is no baseline JPEG, or damaged from the start.
        bad: those that cannot be read or hold no image.
        learned: of all, those whose points were written just now.
        damaged: of those, the ones whose image is damaged.
    """

    complete: int = 0
    partial: int = 0
    none: int = 0
    bad: int = 0
    learned: int = 0
    damaged: int = 0

    def __add__(self, other: Learned) -> Learned:
        return Learned(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))

    @property
    def records(self) -> int:
        """How many there are."""
        return self.complete + self.partial + self.none + self.bad


def learn(
    dataset: Dataset, *, force: bool = False, jobs: int | None = None, progress: bool = False
) -> Learned:
    """Decodes the coefficients of each image once, and stores where decoding may start later.

    Args:
        dataset: opened with seek="learn".
        force: learn all, also what is complete.
        jobs: threads; None takes the usable cores.
        progress: show a bar on stderr.

    Raises:
        ConfigError: there is no native kernel here.
        StorageError: a record could not be read, or points not be written.
    """
    files = dataset.seek
    assert files is not None
    threads = jobs or len(os.sched_getaffinity(0))
    with closing(open_decoder(threads, "native")) as decoder:

        def work(numbers: range, stop: threading.Event) -> Learned:
            images: list[memoryview] = []
            records: list[int] = []
            lacking: list[int] = []
            counts = dict.fromkeys(("complete", "partial", "none", "bad"), 0)
            known = np.zeros((len(numbers), SEEK_BYTES), np.uint8)
            for number, points in zip(numbers, known, strict=True):
                if not force and (flags := files.load(number, dataset.digest(number), points)):
                    counts[_kind(points, flags)] += 1
                else:
                    lacking.append(number)
            reading = dataset.ask(lacking)
            for number in lacking:
                if stop.is_set():
                    break
                try:
                    images.append(dataset.read(number, reading).image)
                except BadRecord:
                    counts["bad"] += 1
                    continue
                records.append(number)
            seek = SeekPoints(
                known[[number - numbers.start for number in records]], np.zeros(len(records), np.uint8)
            )
            reasons = decoder.learn(images, seek)
            try:
                for number, points, reason in zip(records, seek.points, reasons, strict=True):
                    flags = COMPLETE if reason is None else COMPLETE | CUT
                    files.write(number, dataset.digest(number), points, flags=flags)
                    counts[_kind(points, flags)] += 1
            except OSError as error:
                raise StorageError(
                    f"{error.filename or dataset.locate(number)[0]}: cannot write seek points: "
                    f"{error.strerror or error}: let the folder be writable and have room, or keep "
                    f"indexes and points elsewhere (--index-dir)"
                ) from error
            damaged = sum(reason is not None for reason in reasons)
            return Learned(**counts, learned=len(records), damaged=damaged)

        return sum(
            walk([range(len(dataset))], work, threads=threads, doing="learning", progress=progress),
            start=Learned(),
        )


def _kind(points: NDArray[np.uint8], flags: int) -> str:
    if not points.any():
        return "none"
    return "partial" if flags & CUT else "complete"
