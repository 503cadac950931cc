"""The cache as one process sees it: which records have planes, where they are, what may still be added."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from feeder.cache.budget import check_budget
from feeder.cache.folder import Folder, Part, User
from feeder.cache.segment import OVERHEAD_BYTES, SEGMENT_BYTES, Draft, Row, Segment, SegmentUnusable, family
from feeder.errors import StorageError

__all__ = ["Cache", "Counters", "Found", "Records", "Shelf"]

log = logging.getLogger(__name__)

SLACK_BYTES = 128 << 10
"""Left free below the budget, for the lock and the descriptions of users."""

_FRESH_NS = 100_000_000
"""Clocks of file systems tick in milliseconds: what changed so lately may change again at the same time."""

_PAGE = 4096

_NONE = -1
_ROWS = 1 << 20  # places are slot * _ROWS + row


class Records(Protocol):
    """What the cache has to know of a data set."""

    @property
    def name(self) -> str:
        """What it is called here."""

    def shard_starts(self) -> Sequence[tuple[str, int, int]]:
        """For each shard its content, its first record, and how many records it has."""

    def digest(self, record: int) -> int:
        """Of a record's bytes."""


@dataclass(slots=True)
class Counters:
    """Sums since the start, and what is there now."""

    hits: int = 0
    misses: int = 0
    filled: int = 0
    dropped: int = 0
    bytes: int = 0
    segments: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """What the cache has of some records; the planes stay valid as long as this lives.

    Attributes:
        places: int64 [n], -1 where there is nothing.
        sizes: int32 [n, 2], (width, height) in pixels of the full image; (0, 0) where there is nothing.
        planes: of each record, or None.
    """

    places: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int32]
    planes: list[memoryview | None]
    _segments: tuple[Segment, ...] = field(repr=False)


class Shelf:
    """What the cache has of one data set; made by Cache.shelf."""

    def __init__(self, cache: Cache, records: Records) -> None:
        self.name = records.name
        self._cache = cache
        self._records = records
        self._shards = list(records.shard_starts())
        self._starts = np.array([first for _, first, _ in self._shards], np.int64)
        self._of_content: dict[str, list[tuple[int, int]]] = {}
        for content, first, size in self._shards:
            self._of_content.setdefault(content, []).append((first, size))
        count = sum(size for _, _, size in self._shards)
        self._sizes = np.zeros((count, 2), np.int32)
        self._places: dict[int, npt.NDArray[np.int64]] = {}
        self._refused = np.zeros(count, np.bool_)
        self._drafted: set[tuple[int, int]] = set()

    def find(
        self,
        records: npt.NDArray[np.int64],
        reductions: Callable[[npt.NDArray[np.int32]], npt.NDArray[np.uint8]],
    ) -> Found:
        """Looks for records, and counts hits and misses.

        Args:
            records: int64 [n], numbers in the data set; -1 is no record.
            reductions: gives the scales at which images of these sizes, int32 [m, 2], are wanted.
        """
        return self._cache._find(self, records, reductions)

    def has(self, record: int, reduction: int | None) -> bool:
        """Whether there is no use in offering a record: it is there, or about to be, or cannot be kept.

        Args:
            reduction: scale at which it is wanted; None: any.
        """
        if self._refused[record]:
            return True
        for scale in (1, 2, 4, 8) if reduction is None else (reduction,):
            places = self._places.get(scale)
            if (places is not None and places[record] != _NONE) or (record, scale) in self._drafted:
                return True
        return False

    def refuse(self, record: int) -> None:
        """Remembers that a record cannot be kept."""
        self._refused[record] = True

    def forget(self, record: int) -> None:
        """Treats a record as if it were not there: what is there turned out damaged."""
        with self._cache._lock:
            for places in self._places.values():
                places[record] = _NONE
            self._cache._counters.dropped += 1

    def _row(self, record: int, reduction: int, size: tuple[int, int]) -> Row:
        number = int(np.searchsorted(self._starts, record, "right")) - 1
        content, first, _ = self._shards[number]
        return Row(content, record - first, self._records.digest(record), reduction, *size)

    def _numbers(self, row: Row) -> list[int]:
        """The records that a row is of; a shard may be there more than once."""
        return [
            first + row.record
            for first, count in self._of_content.get(row.shard, ())
            if row.record < count and self._records.digest(first + row.record) == row.digest
        ]

    def _put(self, row: Row, place: int) -> None:
        for record in self._numbers(row):
            if row.reduction not in self._places:
                self._places[row.reduction] = np.full(len(self._sizes), _NONE, np.int64)
            self._places[row.reduction][record] = place
            self._sizes[record] = row.width, row.height

    def _remove(self, slot: int) -> None:
        for places in self._places.values():
            places[(places >= slot * _ROWS) & (places < (slot + 1) * _ROWS)] = _NONE


class Cache:
    """Decoded planes of the records of some data sets, in a folder that processes share.

    `find` may be called from any thread; what changes the cache comes from one thread.

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
        with folder.locked():
            folder.join(User(os.getpid(), budget, self._family, shards))
            try:
                self._remove_other_pixels()
                self._shrink()
            except BaseException:
                folder.leave()
                raise

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
        changed_ns = self._changed_ns()
        if changed_ns == self._seen_ns:
            return False
        names = self.folder.names()
        changed = False
        for name in set(self._loaded) - set(names):
            self._forget(name)
            changed = True
        for name in names:
            if name.startswith(self._family) and name not in self._loaded and name not in self._useless:
                changed |= self._load(name)
        self._seen_ns = changed_ns if time.time_ns() - changed_ns > _FRESH_NS else -1
        return changed

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
        for name in list(self._open):
            self._seal(name)

    def close(self) -> None:
        """Seals what is open and leaves the folder; call it when nothing that was found is in use."""
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
        places = np.full(count, _NONE, np.int64)
        planes: list[memoryview | None] = [None] * count
        segments: dict[int, Segment] = {}
        with self._lock:
            sizes = np.where((records >= 0)[:, None], shelf._sizes[records], 0).astype(np.int32)
            known = np.flatnonzero(sizes[:, 0])
            if len(known):
                wanted = reductions(sizes[known])
                for reduction in np.unique(wanted).tolist():
                    if reduction in shelf._places:
                        those = known[wanted == reduction]
                        places[those] = shelf._places[reduction][records[those]]
            for position in np.flatnonzero(places != _NONE).tolist():
                slot, row = divmod(int(places[position]), _ROWS)
                segment = self._slots[slot]
                assert segment is not None
                segments[slot] = segment
                planes[position] = segment.planes(row)
            hits = int(np.count_nonzero(places != _NONE))
            self._counters.hits += hits
            self._counters.misses += int(np.count_nonzero(records >= 0)) - hits
        sizes[places == _NONE] = 0
        return Found(places, sizes, planes, tuple(segments.values()))

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
                    shelf._put(row, slot * _ROWS + number)
        return True

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
                "cache: %s: the file system of %d MB is full, what is cached stays: make it larger "
                "(docker run --shm-size), or keep the cache elsewhere (%s-dir)",
                self.folder.path,
                status.f_blocks * status.f_frsize / 1e6,
                self.folder.option,
            )
        else:
            log.info(
                "cache: %s: the budget of %d MB is full, what is cached stays, and nothing is added",
                self.folder.path,
                self.budget / 1e6,
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
        return self.budget - SLACK_BYTES - self.folder.used()

    def _shrink(self) -> None:
        """Evicts until the budget holds: what nobody needs first, then what is oldest."""
        if self._room() >= 0:
            return
        self.refresh()
        self._evict_unneeded(0)
        while self._room() < 0 and (names := self.folder.names()):
            self._evict(names[0])

    def _evict_unneeded(self, room: int) -> None:
        """Evicts segments that no living user has a data set for, oldest first, until there is room."""
        users = [user for user in self.folder.users() if user.family == self._family]
        for name in self.folder.names():
            if self._room() >= room:
                return
            shards = self._useless.get(name)
            if shards is not None and not any(shards & user.shards for user in users):
                log.info("cache: %s: evicted, no worker serves what it holds", name)
                self._evict(name)

    def _evict(self, name: str) -> None:
        self.folder.evict([name])
        if name in self._loaded:
            self._forget(name)

    def _changed_ns(self) -> int:
        try:
            return os.stat(self.folder.path).st_mtime_ns
        except OSError as error:
            raise StorageError(f"{self.folder.path}: cannot look into the cache: {error.strerror}") from error
