"""Caches of a data set that is only numbers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from feeder.cache import Cache, Folder

sys.path.insert(0, str(Path(__file__).parent))  # for what the processes of these tests import, too

from cached_numbers import BUDGET, PIXELS, SEGMENT_BYTES, Numbers, OpenCache


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def open_cache(place: Path) -> Iterator[OpenCache]:
    """Opens caches, as another process would each, on one folder."""
    opened: list[Cache] = []

    def open_(*numbers: Numbers, budget: int = BUDGET, pixels: str = PIXELS) -> Cache:
        sets = numbers or (Numbers(),)
        opened.append(
            Cache(Folder(place), budget, pixels, {one.name: one for one in sets}, segment_bytes=SEGMENT_BYTES)
        )
        opened[-1].refresh()
        return opened[-1]

    yield open_
    for cache in opened:
        cache.close()
