"""What the cache has of one data set: which of its records, at which scales, and where."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from feeder.cache.segment import Row, Segment

if TYPE_CHECKING:
    from feeder.cache.store import Cache

__all__ = ["NONE", "ROWS", "Counters", "Found", "Records", "Shelf"]

NONE = -1
"""In the place of a place."""

ROWS = 1 << 20
"""Places are slot * ROWS + row."""


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
        scales: uint8 [n], the scale that the planes are of: 1, 2, 4 or 8; 0 where there is nothing.
        planes: of each record, or None.
        lacking: int64 [m], positions of the records that are not there.
    """

    places: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int32]
    scales: npt.NDArray[np.uint8]
    planes: list[memoryview | None]
    lacking: npt.NDArray[np.int64]
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
        # The last one, here and in places, is that of record -1, of which there is nothing.
        self._sizes = np.zeros((count + 1, 2), np.int32)
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
            if (places is not None and places[record] != NONE) or (record, scale) in self._drafted:
                return True
        return False

    def refuse(self, record: int) -> None:
        """Remembers that a record cannot be kept."""
        self._refused[record] = True

    def forget(self, record: int) -> None:
        """Treats a record as if it were not there: what is there turned out damaged."""
        with self._cache._lock:
            for places in self._places.values():
                places[record] = NONE
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
                self._places[row.reduction] = np.full(len(self._sizes), NONE, np.int64)
            self._places[row.reduction][record] = place
            self._sizes[record] = row.width, row.height

    def _remove(self, slot: int) -> None:
        for places in self._places.values():
            places[(places >= slot * ROWS) & (places < (slot + 1) * ROWS)] = NONE
