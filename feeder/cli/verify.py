"""What `feeder verify` does: read, check and decode every record of a data set."""

from __future__ import annotations

import os
import threading
from contextlib import closing

import numpy as np

from feeder.cli.walk import walk
from feeder.decode import open_decoder
from feeder.errors import BadRecord
from feeder.records import Dataset

__all__ = ["verify"]

OUTPUT_SIDE = 64
"""Pixels; every row of the image is decoded whatever the output size, and a small one costs least."""


def verify(dataset: Dataset, *, jobs: int | None = None, progress: bool = False) -> list[BadRecord]:
    """Reads each record and decodes each image to its last row.

    Args:
        dataset: what to check.
        jobs: threads; None takes the usable cores.
        progress: show a bar on stderr.

    Returns:
        The bad records, in order.

    Raises:
        StorageError: a record could not be read, so that nothing can be said of it.
    """
    threads = jobs or len(os.sched_getaffinity(0))
    with closing(open_decoder(threads)) as decoder:

        def check(numbers: range, stop: threading.Event) -> list[BadRecord]:
            images: list[memoryview] = []
            found: dict[int, BadRecord] = {}
            readable: list[int] = []
            reading = dataset.ask(numbers)
            for number in numbers:
                if stop.is_set():
                    break
                try:
                    images.append(dataset.read(number, reading).image)
                    readable.append(number)
                except BadRecord as error:
                    found[number] = error
            sizes, reasons = decoder.sizes(images)
            good = [position for position, reason in enumerate(reasons) if reason is None]
            windows = np.zeros((len(good), 4), np.int32)
            windows[:, 2:] = sizes[good]
            out = np.empty((len(good), OUTPUT_SIDE, OUTPUT_SIDE, 3), np.uint8)
            decoded = decoder.decode(
                [images[position] for position in good], windows, np.zeros(len(good), bool), out
            )
            for position, reason in zip(good, decoded, strict=True):
                reasons[position] = reason
            for number, reason in zip(readable, reasons, strict=True):
                if reason is not None:
                    found[number] = BadRecord(*dataset.locate(number), reason)
            return [found[number] for number in sorted(found)]

        chunks = walk(len(dataset), check, threads=threads, doing="verifying", progress=progress)
        return [bad for found in chunks for bad in found]
