"""Compressed chunks of real workers: the same batches, fewer bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import feeder

pytest.importorskip("cramjam", reason="cramjam is not installed (extra compression)")

SMALL: dict[str, Any] = {"batch_size": 12, "image_size": 32, "seed": 9, "epochs": 2, "transport": "grpc"}
BYTES = 2 * 120 * 32 * 32 * 3


@pytest.mark.parametrize("compression", ["lz4", "zstd", "auto"])
def test_the_same_batches_in_fewer_bytes(
    pair: Any, digest_batches: Callable[..., list[str]], compression: Any
) -> None:
    client = feeder.connect(pair[0].address)  # of two, one may be asked for what the other is late with
    with client.stream("data", **SMALL) as stream:
        expected = digest_batches(stream)
        assert (stream.stats().received_bytes, stream.stats().saved_bytes) == (BYTES, 0)
    with client.stream("data", **SMALL, compression=compression) as stream:
        assert digest_batches(stream) == expected
        stats = stream.stats()
    assert stats.received_bytes + stats.saved_bytes == BYTES
    assert stats.saved_bytes > 0  # "auto" has tried each once, at least
    for worker in stats.workers.values():
        assert worker.compression in (("none", "lz4", "zstd") if compression == "auto" else (compression,))


def test_bad_records_are_listed_in_compressed_chunks(
    make_shards: Any,
    make_jpeg: Any,
    start_worker: Any,
    tmp_path: Any,
    digest_batches: Callable[..., list[str]],
) -> None:
    images = [make_jpeg(number) for number in range(24)]
    images[5] = images[5][: len(images[5]) // 2]
    worker = start_worker(make_shards(tmp_path / "shards", images))
    client = feeder.connect(worker.address)
    both = []
    for compression in ("none", "zstd"):
        with client.stream("data", **{**SMALL, "epochs": 1}, compression=compression) as stream:
            both.append((digest_batches(stream), stream.ledger().totals))
            assert stream.ledger().totals.replaced == 1
    assert both[0] == both[1]


def test_memory_that_is_shared_is_never_compressed(
    pair: Any, digest_batches: Callable[..., list[str]]
) -> None:
    client = feeder.connect(pair[0].address)
    with client.stream("data", **{**SMALL, "transport": "shm"}, compression="zstd") as stream:
        digest_batches(stream)
        assert (stream.stats().received_bytes, stream.stats().saved_bytes) == (0, 0)
