"""What `feeder verify` does: read, check and decode every record of a data set."""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from tqdm import tqdm

from feeder.decode import open_decoder
from feeder.errors import BadRecord
from feeder.records import Dataset

__all__ = ["verify"]

CHUNK = 16
"""Records that one thread reads and then decodes in one call; about 2 MB of a data set like ImageNet."""

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
    stop = threading.Event()
    decoder = open_decoder(threads)

    def check(first: int) -> tuple[int, list[BadRecord]]:
        numbers = range(first, min(first + CHUNK, len(dataset)))
        images: list[memoryview] = []
        found: dict[int, BadRecord] = {}
        readable: list[int] = []
        for number in numbers:
            if stop.is_set():
                break
            try:
                images.append(dataset.read(number).image)
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
        return len(numbers), [found[number] for number in sorted(found)]

    bad: list[BadRecord] = []
    try:
        with (
            tqdm(total=len(dataset), desc="verifying", unit="record", disable=not progress) as bar,
            ThreadPoolExecutor(threads, thread_name_prefix="feeder-verify") as pool,
        ):
            chunks = iter(range(0, len(dataset), CHUNK))
            waiting: list[Future[tuple[int, list[BadRecord]]]] = []
            try:
                while True:
                    while len(waiting) < 2 * threads and (first := next(chunks, None)) is not None:
                        waiting.append(pool.submit(check, first))
                    if not waiting:
                        break
                    count, found = waiting.pop(0).result()
                    bad += found
                    bar.update(count)
            finally:
                stop.set()
                pool.shutdown(wait=True, cancel_futures=True)
    finally:
        decoder.close()
    return bad
