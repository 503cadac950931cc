"""A data set that is only numbers, and what stands for its planes; also for processes that tests start."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from feeder.cache import Cache, Found, Shelf

PIXELS = "native-0123"
SEGMENT_BYTES = 64 << 10
BUDGET = 4 << 20


class Numbers:
    """Records that exist only as numbers, in shards of the same size."""

    def __init__(self, shards: Sequence[str] = ("a", "b"), each: int = 40, name: str = "numbers") -> None:
        self.name = name
        self._shards = shards
        self._each = each

    def shard_starts(self) -> list[tuple[str, int, int]]:
        return [(shard * 64, number * self._each, self._each) for number, shard in enumerate(self._shards)]

    def digest(self, record: int) -> int:
        return record % self._each * 2654435761 % 2**32


def planes_of(record: int, reduction: int = 1) -> bytes:
    """What stands for the planes of a record: 2 to 8 kB, different for each."""
    random = np.random.default_rng((record, reduction))
    return random.integers(0, 256, int(random.integers(2000, 8000)), np.uint8).tobytes()


def add(cache: Cache, record: int, reduction: int = 1, name: str = "numbers") -> bool:
    return cache.add(cache.shelf(name), record, reduction, (100 + record, 50), planes_of(record, reduction))


def find(shelf: Shelf, records: Sequence[int], reduction: int = 1) -> Found:
    return shelf.find(np.array(records, np.int64), lambda sizes: np.full(len(sizes), reduction, np.uint8))


def held(cache: Cache, records: Sequence[int], reduction: int = 1) -> set[int]:
    """Which of the records are there; their planes are checked."""
    found = find(cache.shelf("numbers"), records, reduction)
    there = set()
    for record, planes, size in zip(records, found.planes, found.sizes.tolist(), strict=True):
        if planes is not None:
            assert bytes(planes) == planes_of(record, reduction)
            assert size == [100 + record, 50]
            there.add(record)
        else:
            assert size == [0, 0]
    return there


OpenCache = Callable[..., Cache]
