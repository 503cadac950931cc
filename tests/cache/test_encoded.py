"""Encoded records of a store are kept within a budget, found again, and never served damaged."""

from __future__ import annotations

import contextlib
import logging
import os
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from feeder.cache import ENCODED, Cache, EncodedShelf, Folder, encoded_filler
from feeder.records import Dataset

RECORDS = 60
SEGMENT_BYTES = 256 << 10
IMAGES = [struct.pack("<I", number) * 5000 for number in range(RECORDS)]
"""20 kB each, 1.2 MB together."""

AMPLE = 4 << 20
SCARCE = 1 << 20


def until(done: Callable[[], Any], timeout_s: float = 30.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not done():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A shard in fsspec's store in memory."""
    fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
    store = fsspec.filesystem("memory")
    parquet.write_table(
        pa.table({"image": IMAGES, "label": list(range(RECORDS))}), tmp_path / "shard", compression="none",
        use_dictionary=False,
    )  # fmt: skip
    name = f"/{request.node.name}/shard"
    store.pipe_file(name, (tmp_path / "shard").read_bytes())
    yield f"memory:/{name}"
    store.rm(name)


class Tier:
    """A data set with a tier of its own, as a worker has them."""

    def __init__(self, url: str, tmp_path: Path, budget: int) -> None:
        self.dataset = Dataset.open("x", [url], index_dir=tmp_path / "index")
        self.cache = Cache(
            Folder(tmp_path / "tier", "--encoded-cache"),
            budget,
            ENCODED,
            {"x": self.dataset},
            segment_bytes=SEGMENT_BYTES,
        )
        self.cache.refresh()
        self.filler = encoded_filler(self.cache)
        self.dataset.keeper = EncodedShelf(self.cache.shelf("x"), self.filler)

    def epoch(self) -> int:
        """Reads everything, checks it, and gives the number of hits."""
        before = self.cache.counters()
        for first in range(0, RECORDS, 6):
            reading = self.dataset.ask(range(first, first + 6))
            for record in range(first, first + 6):
                found = self.dataset.read(record, reading)
                assert bytes(found.image) == IMAGES[record]
                assert found.label == record
        after = self.cache.counters()
        assert after.hits + after.misses - before.hits - before.misses == RECORDS
        return after.hits - before.hits

    def settle(self) -> None:
        """Until what was offered is sealed or refused."""
        until(lambda: not self.filler._queue and not self.cache._open)

    def close(self) -> None:
        self.filler.close()
        self.cache.close()
        self.dataset.close()


@pytest.fixture
def open_tier(url: str, tmp_path: Path) -> Callable[..., Any]:
    @contextlib.contextmanager
    def open_(budget: int = AMPLE) -> Iterator[Tier]:
        tier = Tier(url, tmp_path, budget)
        try:
            yield tier
        finally:
            tier.close()

    return open_


def test_what_was_read_once_is_not_asked_for_again_also_after_a_restart(open_tier: Any) -> None:
    with open_tier() as tier:
        assert tier.epoch() == 0
        until(lambda: tier.cache.counters().filled == RECORDS)
        asked = tier.dataset.requests.requests
        assert tier.epoch() == RECORDS
        assert tier.dataset.requests.requests == asked
    with open_tier() as tier:
        assert tier.epoch() == RECORDS
        assert tier.dataset.requests.requests == 0


def test_what_fits_is_kept_and_hits_in_each_epoch(open_tier: Any) -> None:
    with open_tier(SCARCE) as tier:
        tier.epoch()
        tier.settle()
        kept = tier.cache.counters().filled
        assert 0 < kept < RECORDS
        for _ in range(3):
            assert tier.epoch() == kept
            tier.settle()
            assert tier.cache.counters().filled == kept
            assert tier.cache.folder.used() <= SCARCE


def test_a_flipped_bit_is_found_and_the_record_read_anew(open_tier: Any, caplog: Any) -> None:
    with open_tier() as tier:
        tier.epoch()
        until(lambda: tier.cache.counters().filled == RECORDS)
        (path,) = [
            tier.cache.folder.path / name
            for name in tier.cache.folder.names()
            if IMAGES[7] in (tier.cache.folder.path / name).read_bytes()
        ]
        at = path.read_bytes().index(IMAGES[7])
        os.chmod(path, 0o600)
        with open(path, "r+b") as file:
            file.seek(at + 100)
            file.write(b"\xff")
        asked = tier.dataset.requests.requests
        with caplog.at_level(logging.WARNING):
            assert tier.epoch() == RECORDS
        assert "record 7 of x is damaged: read anew" in caplog.text
        assert tier.dataset.requests.requests == asked + 1
        assert tier.cache.counters().dropped == 1
        until(lambda: tier.cache.counters().filled == RECORDS + 1)
        assert tier.epoch() == RECORDS
        assert tier.dataset.requests.requests == asked + 1
    with open_tier() as tier:  # the segment as a whole does not pass its check
        assert tier.cache.counters().dropped == 1
        assert 0 < tier.epoch() < RECORDS


def test_a_torn_segment_is_dropped(open_tier: Any) -> None:
    with open_tier() as tier:
        tier.epoch()
        until(lambda: tier.cache.counters().filled == RECORDS)
        path = tier.cache.folder.path / tier.cache.folder.names()[0]
    os.truncate(path, path.stat().st_size // 2)
    with open_tier() as tier:
        assert tier.cache.counters().dropped == 1
        assert 0 < tier.epoch() < RECORDS


def test_another_object_finds_nothing(open_tier: Any, url: str, tmp_path: Path) -> None:
    import fsspec

    with open_tier() as tier:
        tier.epoch()
        until(lambda: tier.cache.counters().filled == RECORDS)
    other = pa.table({"image": IMAGES[::-1], "label": list(range(RECORDS))})
    parquet.write_table(other, tmp_path / "shard", compression="none", use_dictionary=False)
    fsspec.filesystem("memory").pipe_file(url.removeprefix("memory:/"), (tmp_path / "shard").read_bytes())
    with open_tier() as tier:
        assert bytes(tier.dataset.read(7).image) == IMAGES[RECORDS - 8]
        assert tier.cache.counters().hits == 0
