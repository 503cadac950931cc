"""What `feeder index --seek` does: learn the seek points of every record of a data set."""

from __future__ import annotations

import os
import threading
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from feeder.cli.walk import walk
from feeder.decode import SEEK_BYTES, SeekPoints, open_decoder
from feeder.errors import BadRecord, StorageError
from feeder.records import Dataset

__all__ = ["Learned", "learn"]


@dataclass(frozen=True)
class Learned:
    """Counts of records.

    Attributes:
        learned: whose points were written.
        there: whose points were complete already.
        damaged: of `learned`, those whose image is damaged; what comes before the damage has points.
        bad: those that cannot be read or hold no image.
    """

    learned: int = 0
    there: int = 0
    damaged: int = 0
    bad: int = 0

    def __add__(self, other: Learned) -> Learned:
        return Learned(
            self.learned + other.learned,
            self.there + other.there,
            self.damaged + other.damaged,
            self.bad + other.bad,
        )


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
            there = bad = 0
            known = np.zeros((len(numbers), SEEK_BYTES), np.uint8)
            for number in numbers:
                if stop.is_set():
                    break
                points = known[len(records)]
                if not force and files.load(number, dataset.digest(number), points):
                    points[:] = 0
                    there += 1
                    continue
                try:
                    images.append(dataset.read(number).image)
                except BadRecord:
                    points[:] = 0
                    bad += 1
                    continue
                records.append(number)
            seek = SeekPoints(known[: len(records)], np.zeros(len(records), np.uint8))
            reasons = decoder.learn(images, seek)
            try:
                for number, points in zip(records, seek.points, strict=True):
                    files.write(number, dataset.digest(number), points, complete=True)
            except OSError as error:
                raise StorageError(
                    f"{error.filename or dataset.locate(number)[0]}: cannot write seek points: "
                    f"{error.strerror or error}: make the folder writable, or keep indexes and points "
                    f"elsewhere (--index-dir)"
                ) from error
            return Learned(len(records), there, sum(reason is not None for reason in reasons), bad)

        return sum(
            walk(len(dataset), work, threads=threads, doing="learning", progress=progress), start=Learned()
        )
