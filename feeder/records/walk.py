"""Work on all records of a data set, some at a time, by several threads."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from tqdm import tqdm

__all__ = ["walk"]

CHUNK = 16
"""Records that one thread reads and then decodes in one call; about 2 MB of a data set like ImageNet."""

T = TypeVar("T")


def walk(
    runs: Sequence[range],
    work: Callable[[range, threading.Event], T],
    *,
    threads: int,
    doing: str,
    progress: bool,
    unit: str = "record",
    done: int = 0,
) -> Generator[T, None, None]:
    """What `work` returns of each chunk of records, in their order; exhaust it, or close it.

    Args:
        runs: numbers of records, each run in steps of 1; no chunk crosses from one run into another.
        work: is told the numbers of a chunk, and an event that says that it may stop early; from a thread.
        threads: number of threads.
        doing: what the bar calls it.
        progress: show a bar on stderr.
        unit: what the bar counts.
        done: how many are done already; the bar begins there.

    Raises:
        Whatever `work` raises, at its first chunk that does.
    """
    stop = threading.Event()
    total = done + sum(map(len, runs))
    with (
        tqdm(total=total, initial=done, desc=doing, unit=unit, disable=not progress) as bar,
        ThreadPoolExecutor(threads, thread_name_prefix=f"feeder-{doing}") as pool,
    ):
        chunks = (run[first : first + CHUNK] for run in runs for first in range(0, len(run), CHUNK))
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
