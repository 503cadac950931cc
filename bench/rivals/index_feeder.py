"""Reads a shard to index it, or reads it and does nothing else, in one thread or several; it is in memory."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from protocol import arguments, serve, versions

VARIANTS = ("index", "read")

READ_BYTES = [size << 10 for size in (128, 256, 512, 1024, 4096)]
"""Sizes of one read, of which a plain read takes the fastest."""


class Reading:
    """Passes over a shard."""

    def __init__(self, variant: str) -> None:
        self._variant = variant

    def load(self, request: dict[str, Any]) -> dict[str, Any]:
        """Keeps the path of the shard and the number of threads."""
        self._shard = Path(request["shard"])
        self._threads = request["threads"]
        self._pass: Callable[[], None] = self._index
        facts = {"threads": self._threads}
        if self._variant == "read":
            best = min(READ_BYTES, key=lambda size: _seconds(lambda: self._read(size)))
            self._pass = lambda: self._read(best)
            facts["read_bytes"] = best
        return {"versions": versions("numpy"), **facts}

    def round(self, request: dict[str, Any]) -> dict[str, Any]:
        """One pass; `images` are those of the shard."""
        cpu = time.process_time()
        seconds = _seconds(self._pass)
        return {
            "seconds": seconds,
            "cpu_seconds": time.process_time() - cpu,
            "images": request["images"],
        }

    def _index(self) -> None:
        from feeder.records import RecordKeys
        from feeder.records.build import ensure_indexes

        with tempfile.TemporaryDirectory(prefix="feeder-bench-") as folder:
            # Otherwise the one that lies beside the shard would do.
            ensure_indexes(
                [self._shard], RecordKeys(), index_dir=Path(folder), jobs=self._threads, force=True
            )

    def _read(self, size: int) -> None:
        """Each thread reads its part of the file from its start to its end."""
        with self._shard.open("rb", buffering=0) as file, ThreadPoolExecutor(self._threads) as pool:
            end = os.fstat(file.fileno()).st_size
            bounds = [end * number // self._threads for number in range(self._threads + 1)]
            for _ in pool.map(
                _read_part, [file.fileno()] * self._threads, bounds, bounds[1:], [size] * self._threads
            ):
                pass


def _read_part(fd: int, start: int, stop: int, size: int) -> None:
    buffer = memoryview(bytearray(size))
    while start < stop:
        start += os.preadv(fd, [buffer[: stop - start]], start)


def _seconds(run: Callable[[], None]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


if __name__ == "__main__":
    serve(Reading(arguments(__doc__ or "", VARIANTS).variant))
