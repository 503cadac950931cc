"""The cache as one process sees it: which records have planes, where they are, what may still be added."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from feeder import figures
from feeder.cache.budget import check_budget
from feeder.cache.folder import Folder, Part, User
from feeder.cache.segment import OVERHEAD_BYTES, SEGMENT_BYTES, Draft, Segment, SegmentUnusable, family
from feeder.cache.shelf import NONE, ROWS, Counters, Found, Records, Shelf
from feeder.errors import StorageError

__all__ = ["Cache"]

log = logging.getLogger(__name__)

SLACK_BYTES = 128 << 10
"""Left free below the budget, for the lock and the descriptions of users."""

_FRESH_NS = 100_000_000
"""Clocks of file systems tick in milliseconds: what changed so lately may change again at the same time."""

_PAGE = 4096


class Cache:
    """Decoded planes of the records of some data sets, in a folder that processes share.

    All of it may be called from any thread; what changes the cache waits for its turn, `find` does not.

    Args:
        folder: where.
        budget: bytes that the folder may have, over all processes.
        pixels: fingerprint of the pixels that the planes give.
        datasets: by name.
        segment_bytes: that a segment has at most. The last one for which there is room may be much smaller.

    Raises:
        ConfigError: the folder is in use with another budget, or the budget is next to nothing.
        StorageError: the folder cannot be locked.
    """

    def __init__(
        self,
        folder: Folder,
        budget: int,
        pixels: str,
        datasets: Mapping[str, Records],
        *,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        check_budget(budget)
        self.folder = folder
        self.budget = budget
        self._segment_bytes = segment_bytes
        self._pixels = pixels
        self._family = family(pixels)
        self._changing = threading.RLock()
        self._lock = threading.Lock()
        self._shelves = {name: Shelf(self, records) for name, records in datasets.items()}
        self._slots: list[Segment | None] = []
        self._loaded: dict[str, int] = {}
        self._useless: dict[str, frozenset[str]] = {}  # segments of mine that hold nothing of use here
        self._open: dict[str, tuple[Part, Draft]] = {}
        self._counters = Counters()
        self._seen_ns = -1
        self._full_ns = -1
        self._told_full = False
        shards = frozenset(shard for shelf in self._shelves.values() for shard, _, _ in shelf._shards)
        self._user = User(os.getpid(), budget, self._family, shards)
        with folder.locked():
            folder.join(self._user)
            try:
                self._remove_other_pixels()
                self._shrink()
            except BaseException:
                folder.leave()
                raise
        self._let_go(folder.names())

    def shelf(self, name: str) -> Shelf:
        """Of one of the data sets."""
        return self._shelves[name]

    @property
    def full(self) -> bool:
        """Whether nothing can be added: there was no room and nothing has changed since, or no folder."""
        try:
            return self._full_ns != -1 and self._full_ns == self._changed_ns()
        except StorageError:
            return True

    def counters(self) -> Counters:
        """A snapshot."""
        with self._lock:
            loaded = [segment for segment in self._slots if segment is not None]
            return replace(
                self._counters, bytes=sum(segment.nbytes for segment in loaded), segments=len(loaded)
            )

    def refresh(self) -> bool:
        """Takes over what other processes sealed or evicted since the last call; whether anything changed.

        Segments that turn out damaged are dropped, with a line in the log.
        """
        with self._changing:
            changed_ns = self._changed_ns()
            if changed_ns == self._seen_ns:
                return False
            names = self.folder.names()
            changed = self._let_go(names)
            for name in names:
                if name.startswith(self._family) and name not in self._loaded and name not in self._useless:
                    changed |= self._load(name)
            self._seen_ns = changed_ns if time.time_ns() - changed_ns > _FRESH_NS else -1
            return changed

    def resize(self, budget: int) -> None:
        """Takes another budget, and evicts at once what has no room in it. What was found stays valid, and is
        freed when it is let go.

        Until all who use the folder have taken the same budget, the least of theirs holds.

        Raises:
            ConfigError: the budget is next to nothing.
            StorageError: the folder cannot be locked.
            Closed: the cache is closed.
        """
        check_budget(budget)
        with self._changing:
            if budget < self.budget:
                self.seal()  # what is reserved cannot be evicted
            with self.folder.locked():
                self._user = replace(self._user, budget=budget)
                self.folder.describe(self._user)
                self.budget = budget
                self._shrink()
                least = min(self.folder.users(), key=lambda user: user.budget)
            self._let_go(self.folder.names())
            self._full_ns, self._told_full = -1, False
        log.info("cache: at most %s in %s from now on", figures.size(budget), self.folder.path)
        if least.budget < budget:
            log.warning(
                "cache: %s: process %d keeps it below %s, until it takes another budget, too, or ends",
                self.folder.path,
                least.pid,
                figures.size(least.budget),
            )

    def add(
        self, shelf: Shelf, record: int, reduction: int, size: tuple[int, int], planes: bytes | memoryview
    ) -> bool:
        """Appends the planes of a record to the data set's open segment; seals it where it is full.

        What is there already is left as it is. Planes that no segment can hold are refused for good.

        Args:
            size: (width, height) in pixels of the full image.

        Returns:
            False where there is no room in the budget, or in the file system.

        Raises:
            OSError: the folder cannot be written.
        """
        with self._changing:
            if len(planes) + OVERHEAD_BYTES > self._segment_bytes:
                shelf.refuse(record)
                return True
            if shelf.has(record, reduction):
                return True
            row = shelf._row(record, reduction, size)
            for _ in range(2):
                opened = self._open.get(shelf.name) or self._reserve(shelf)
                if opened is None:
                    return False
                if opened[1].append(row, planes):
                    shelf._drafted.add((record, reduction))
                    return True
                if not opened[1].rows:  # larger than what is left
                    self._close_part(shelf.name)
                    self._note_full(of_disk=False)
                    return False
                self._seal(shelf.name)
            return False

    def seal(self) -> None:
        """Seals what is open, however little it is."""
        with self._changing:
            for name in list(self._open):
                self._seal(name)

    def close(self) -> None:
        """Seals what is open and leaves the folder; call it when nothing that was found is in use."""
        with self._changing:
            with contextlib.suppress(OSError):
                self.seal()
            for name in list(self._open):
                self._close_part(name)
            with self._lock:
                self._slots.clear()
                self._loaded.clear()
            self.folder.leave()

    def _find(
        self,
        shelf: Shelf,
        records: npt.NDArray[np.int64],
        reductions: Callable[[npt.NDArray[np.int32]], npt.NDArray[np.uint8]],
    ) -> Found:
        count = len(records)
        places = np.full(count, NONE, np.int64)
        scales = np.zeros(count, np.uint8)
        planes: list[memoryview | None] = [None] * count
        segments: dict[int, Segment] = {}
        with self._lock:
            sizes = shelf._sizes[records]
            known = sizes[:, 0].nonzero()[0]
            if known.size:
                scales[known] = reductions(sizes[known])
                for scale, of_scale in shelf._places.items():
                    those = (scales == scale).nonzero()[0]
                    places[those] = of_scale[records[those]]
            absent = places == NONE
            lacking = (absent & (records >= 0)).nonzero()[0]
            hits = (~absent).nonzero()[0]
            for position, place in zip(hits.tolist(), places[hits].tolist(), strict=True):
                segment = self._slots[place // ROWS]
                assert segment is not None
                segments[place // ROWS] = segment
                planes[position] = segment.planes(place % ROWS)
            self._counters.hits += hits.size
            self._counters.misses += lacking.size
        sizes[absent] = 0
        scales[absent] = 0
        return Found(places, sizes, scales, planes, lacking, tuple(segments.values()))

    def _load(self, name: str) -> bool:
        """Maps a segment, if it is sound and of use; whether it was."""
        try:
            path = self.folder.link(name)
        except FileNotFoundError:
            return False
        try:
            segment = Segment(path, name)
            if segment.pixels != self._pixels:
                raise SegmentUnusable(f"holds pixels {segment.pixels}")
        except (SegmentUnusable, OSError) as error:
            log.warning("cache: %s: dropped: %s", self.folder.path / name, error)
            self._counters.dropped += 1
            self.folder.unlink(name)
            self._useless[name] = frozenset()
            self.folder.evict([name])
            return False
        weakref.finalize(segment, self.folder.unlink, name)
        if not any(shelf._numbers(row) for shelf in self._shelves.values() for row in segment.rows):
            self._useless[name] = frozenset(row.shard for row in segment.rows)
            return False
        with self._lock:
            slot = len(self._slots)
            self._slots.append(segment)
            self._loaded[name] = slot
            for number, row in enumerate(segment.rows):
                for shelf in self._shelves.values():
                    shelf._put(row, slot * ROWS + number)
        return True

    def _let_go(self, names: Sequence[str]) -> bool:
        """Forgets all segments but these; whether there were any."""
        gone = self._loaded.keys() - set(names)
        for name in gone:
            self._forget(name)
        for name in self._useless.keys() - set(names):  # names are never used again
            del self._useless[name]
        return bool(gone)

    def _forget(self, name: str) -> None:
        with self._lock:
            slot = self._loaded.pop(name)
            self._slots[slot] = None
            for shelf in self._shelves.values():
                shelf._remove(slot)

    def _reserve(self, shelf: Shelf) -> tuple[Part, Draft] | None:
        if self.full:
            return None
        with self.folder.locked():
            if self._room() < self._segment_bytes:
                self.refresh()
                self._evict_unneeded(self._segment_bytes)
            capacity = min(self._segment_bytes, self._room() // _PAGE * _PAGE)
            fits = capacity > OVERHEAD_BYTES
            part = self.folder.reserve(capacity) if fits else None
        if part is None:
            self._note_full(of_disk=fits)
            return None
        self._open[shelf.name] = part, Draft(self._pixels, shelf.name, capacity)
        return self._open[shelf.name]

    def _note_full(self, *, of_disk: bool) -> None:
        self._full_ns = self._changed_ns()
        if self._told_full:
            return
        self._told_full = True
        if of_disk:
            status = os.statvfs(self.folder.path)
            log.warning(
                "cache: %s: the file system of %s is full, what is cached stays: make it larger "
                "(docker run --shm-size), or keep the cache elsewhere (%s-dir)",
                self.folder.path,
                figures.size(status.f_blocks * status.f_frsize),
                self.folder.option,
            )
        else:
            log.info(
                "cache: %s: the budget of %s is full, what is cached stays, and nothing is added",
                self.folder.path,
                figures.size(self.budget),
            )

    def _seal(self, name: str) -> None:
        part, draft = self._open.pop(name)
        shelf = self._shelves[name]
        shelf._drafted.clear()
        try:
            with self.folder.locked():
                self.refresh()
                known = {
                    position
                    for position, row in enumerate(draft.rows)
                    if any(shelf.has(record, row.reduction) for record in shelf._numbers(row))
                }
                if known:  # another process was faster
                    draft = draft.without(known)
                if not draft.rows:
                    return
                sealed = draft.write(part.fd)
                self.folder.publish(part, sealed)
                self._counters.filled += len(draft.rows)
                self._load(sealed)
        finally:
            part.close()

    def _close_part(self, name: str) -> None:
        part, _ = self._open.pop(name)
        self._shelves[name]._drafted.clear()
        part.close()

    def _remove_other_pixels(self) -> None:
        """Removes segments that no living user can use, now that pixels are made another way."""
        families = {user.family for user in self.folder.users()}
        stale = [name for name in self.folder.names() if name.partition("-")[0] not in families]
        if stale:
            log.info("cache: %d segments of other pixels, or of another version: removed", len(stale))
            self.folder.evict(stale)

    def _room(self) -> int:
        """Bytes that may still be reserved; negative where the folder has more than it may."""
        return self._most() - self.folder.used()

    def _most(self) -> int:
        """Bytes that the folder may have of what is reserved, sealed, or evicted and still mapped."""
        return min(user.budget for user in self.folder.users()) - SLACK_BYTES

    def _shrink(self) -> None:
        """Evicts until what is left has room in the budget: what nobody needs first, then what is oldest."""
        surplus = self.folder.held() - self._most()
        if surplus <= 0:
            return
        self.refresh()
        for name in dict.fromkeys([*self._unneeded(), *self.folder.names()]):
            if surplus <= 0:
                return
            surplus -= self.folder.evict([name])

    def _evict_unneeded(self, room: int) -> None:
        """Evicts segments that no living user has a data set for, oldest first, until there is room."""
        for name in self._unneeded():
            if self._room() >= room:
                return
            log.info("cache: %s: evicted, no worker serves what it holds", name)
            self.folder.evict([name])

    def _unneeded(self) -> list[str]:
        """Segments that no living user has a data set for, oldest first."""
        users = [user for user in self.folder.users() if user.family == self._family]
        served = frozenset[str]().union(*(user.shards for user in users))
        names = self.folder.names()
        return [name for name in names if name in self._useless and not self._useless[name] & served]

    def _changed_ns(self) -> int:
        try:
            return os.stat(self.folder.path).st_mtime_ns
        except OSError as error:
            raise StorageError(f"{self.folder.path}: cannot look into the cache: {error.strerror}") from error
