"""Work on all records of a data set, some at a time, by several threads."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from tqdm import tqdm

__all__ = ["walk"]

CHUNK = 16
"""Records that one thread reads and then decodes in one call; about 2 MB of a data set like ImageNet."""

T = TypeVar("T")


def walk(
    records: int,
    work: Callable[[range, threading.Event], T],
    *,
    threads: int,
    doing: str,
    progress: bool,
) -> Iterator[T]:
    """What `work` returns of each chunk of records, in their order; exhaust it, or close it.

    Args:
        records: they are numbered from 0.
        work: is told the numbers of a chunk, and an event that says that it may stop early; from a thread.
        threads: number of threads.
        doing: what the bar calls it.
        progress: show a bar on stderr.

    Raises:
        Whatever `work` raises, at its first chunk that does.
    """
    stop = threading.Event()
    with (
        tqdm(total=records, desc=doing, unit="record", disable=not progress) as bar,
        ThreadPoolExecutor(threads, thread_name_prefix=f"feeder-{doing}") as pool,
    ):
        chunks = (range(first, min(first + CHUNK, records)) for first in range(0, records, CHUNK))
        waiting: deque[tuple[range, Future[T]]] = deque()
        try:
            while True:
                while len(waiting) < 2 * threads and (chunk := next(chunks, None)) is not None:
                    waiting.append((chunk, pool.submit(work, chunk, stop)))
                if not waiting:
                    return
                chunk, future = waiting.popleft()
                result = future.result()
                bar.update(len(chunk))
                yield result
        finally:
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)
