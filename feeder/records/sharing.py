"""Building many indexes in threads, shared with other processes that want the same ones.

Processes that start together, on one host or many, and keep indexes in one folder, share the work by claims:
each builds what no other has claimed, then loads what others have built. Whoever fails leaves its claims, so
that the others come upon what it failed of, and fail of it themselves or do not.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from tqdm import tqdm

from feeder.errors import StorageError
from feeder.figures import size
from feeder.records.claims import Claims
from feeder.records.index import ShardIndex
from feeder.records.objects import Shard
from feeder.records.sidecar import IndexUnusable

__all__ = ["SharedBuild"]

log = logging.getLogger(__name__)

REPORT_S = 10.0
"""Time between two lines of progress in the log."""

POLL_S = 0.5
"""Least time between two looks at the shards that other processes index."""

POLLS_PER_S = 100
"""Most shards looked at in a second, because many workers may wait, and each look asks the storage."""


class _Stopped(Exception):
    """Another shard failed, or the user pressed Ctrl-C; the index under way is given up."""


class SharedBuild:
    """Builds indexes in threads, and takes those that other processes build at the same time.

    Args:
        shards: number of all shards, those whose index is there included.
        threads: how many.
        build: builds and writes the index of a shard, and tells a function how many bytes it has read;
            the flag says whether a thread is to spare for it.
        load: the index of a shard as it is now; raises IndexUnusable.
        path_of: where the index of a shard goes.
        bar: shows how many bytes are done, or is disabled.
    """

    def __init__(
        self,
        shards: int,
        threads: int,
        build: Callable[[Shard, Callable[[int], None], bool], ShardIndex],
        load: Callable[[Shard], ShardIndex],
        path_of: Callable[[Shard], Path],
        bar: tqdm[Any],
    ) -> None:
        self._shards = shards
        self._threads = threads
        self._build = build
        self._load = load
        self._path_of = path_of
        self._bar = bar
        self._claims: dict[Path, Claims] = {}
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._indexes: dict[Shard, ShardIndex] = {}
        self._started_s = time.monotonic()
        self._report_s = 0.0
        self._missing = self._built = 0
        self._read = 0

    def run(self, todo: dict[Shard, int], *, claim: bool) -> dict[Shard, ShardIndex]:
        """The indexes of some shards.

        Args:
            todo: the shards and their sizes in bytes.
            claim: whether other processes are minded.

        Raises:
            BadShard, StorageError: see ensure_indexes.
        """
        if claim:
            for folder in {self._path_of(shard).parent for shard in todo}:
                with _needs_writing(folder):
                    self._claims[folder] = Claims(folder)
        log.info("indexing %d of %d shards, %s", len(todo), self._shards, size(sum(todo.values())))
        self._missing = len(todo)
        # The longest first, so that no thread is left alone with a large one at the end.
        waiting = sorted(todo, key=lambda shard: -todo[shard])
        self._report_s = time.monotonic() + REPORT_S
        waited = False
        while waiting := self._round(waiting):
            if not waited:
                waited, self._report_s = True, 0.0
            self._report(waiting)
            time.sleep(max(POLL_S, len(waiting) / POLLS_PER_S))
        seconds = time.monotonic() - self._started_s
        log.info(
            "indexing: done in %.1f s, %d of %d shards here, %.1f MB/s",
            seconds,
            self._built,
            self._missing,
            self._read / 1e6 / max(seconds, 1e-9),
        )
        return self._indexes

    def _round(self, shards: list[Shard]) -> list[Shard]:
        """Goes through shards once; returns those that others have claimed."""
        spare = self._threads - len(shards)
        with ThreadPoolExecutor(min(self._threads, len(shards)), thread_name_prefix="feeder-index") as pool:
            futures = {
                pool.submit(self._one, shard, number < spare): shard for number, shard in enumerate(shards)
            }
            try:
                pending: set[Future[ShardIndex | None]] = set(futures)
                while pending:
                    left_s = max(0.0, self._report_s - time.monotonic())
                    done, pending = wait(pending, timeout=left_s, return_when=FIRST_EXCEPTION)
                    if any(future.exception() is not None for future in done):
                        break
                    self._report([])
            finally:
                self._stop.set()
                pool.shutdown(wait=True, cancel_futures=True)
        for failure in [future.exception() for future in futures if not future.cancelled()]:
            if failure is not None and not isinstance(failure, _Stopped):
                raise failure
        self._stop.clear()
        return [shard for future, shard in futures.items() if future.result() is None]

    def _one(self, shard: Shard, spare: bool) -> ShardIndex | None:
        """The index of a shard, built here or elsewhere; None while another process builds it."""
        if self._stop.is_set():
            raise _Stopped
        path = self._path_of(shard)
        claims = self._claims.get(path.parent)
        if claims is None:
            return self._done(shard, self._build(shard, self._advance, spare), here=True)
        with contextlib.suppress(IndexUnusable):
            return self._done(shard, self._load(shard), here=False)
        with _needs_writing(path.parent):
            claim = claims.take(path)
        if claim is None:
            return None
        with claim:
            with contextlib.suppress(IndexUnusable):  # it came before the claim was free
                return self._done(shard, self._load(shard), here=False)

            def advance(count: int) -> None:
                self._advance(count)
                claim.beat()

            return self._done(shard, self._build(shard, advance, spare), here=True)

    def _advance(self, count: int) -> None:
        if self._stop.is_set():
            raise _Stopped
        with self._lock:
            self._read += count
            self._bar.update(count)

    def _done(self, shard: Shard, index: ShardIndex, *, here: bool) -> ShardIndex:
        with self._lock:
            self._indexes[shard] = index
            self._built += here
            if not here:
                self._bar.update(index.state.size)
        return index

    def _report(self, waiting: list[Shard]) -> None:
        """A line in the log, now and then."""
        now_s = time.monotonic()
        if now_s < self._report_s:
            return
        self._report_s = now_s + REPORT_S
        with self._lock:
            done, built, read = self._shards - self._missing + len(self._indexes), self._built, self._read
        others = ""
        if waiting:
            path = self._path_of(waiting[0])
            holder = self._claims[path.parent].holder(path) or "another process"
            others = f"; others index {len(waiting)}, such as {waiting[0].name} (by {holder})"
        self._bar.set_postfix_str(others.removeprefix("; "))
        log.info(
            "indexing: %d of %d shards done, %d of them here, %.1f MB/s here%s",
            done,
            self._shards,
            built,
            read / 1e6 / (now_s - self._started_s),
            others,
        )


@contextlib.contextmanager
def _needs_writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"{folder}: there are shards without an index, and none can be written here: "
            f"{error.strerror or error}: run `feeder index` where the folder can be written, or name another "
            f"that all workers can write (--index-dir)"
        ) from error
