"""Four consumers, each with a worker beside it: what they get is made by that one."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import feeder
from feeder.errors import ConfigError

CONSUMERS, BATCH = 4, 4
ARGUMENTS: dict[str, Any] = {"image_size": 32, "seed": 3, "epochs": 24}
BATCHES = 168


@pytest.fixture(scope="module")
def hosts(
    shards: Path, start_worker_once: Any, tmp_path_factory: pytest.TempPathFactory
) -> list[tuple[Any, Path]]:
    """Workers whose side sockets are in folders of their own, as on four hosts."""
    found = []
    for number in range(CONSUMERS):
        folder = tmp_path_factory.mktemp("hosts") / f"host-{number}"
        found.append((start_worker_once(shards, "--arena-dir", str(folder)), folder))
    return found


def open_beside(hosts: list[tuple[Any, Path]], index: int, transport: Any) -> tuple[feeder.Stream, Any]:
    """Consumer `index`, which can reach the side socket of its own worker alone, with its first batch."""
    hidden = [(folder, folder.with_suffix(".elsewhere")) for _, folder in hosts]
    del hidden[index]
    for folder, elsewhere in hidden:
        folder.rename(elsewhere)
    try:
        stream = feeder.connect([worker.address for worker, _ in hosts]).stream(
            "data",
            batch_size=BATCH,
            consumer_index=index,
            consumer_count=CONSUMERS,
            prefetch_bytes=1,
            transport=transport,
            beside=hosts[index][0].address if transport == "grpc" else (),
            **ARGUMENTS,
        )
        first = next(stream)
        while any(worker.state != "live" for worker in stream.stats().workers.values()):
            time.sleep(0.01)
    finally:
        for folder, elsewhere in hidden:
            elsewhere.rename(folder)
    return stream, first


@pytest.mark.parametrize("transport", ["auto", "grpc"])
def test_the_worker_beside_a_consumer_makes_its_batches(
    hosts: list[tuple[Any, Path]], transport: Any, digest_batches: Any
) -> None:
    with feeder.connect(hosts[0][0].address).stream(
        "data", batch_size=BATCH * CONSUMERS, transport="grpc", **ARGUMENTS
    ) as stream:
        undisturbed = list(stream)
    streams, batches = [], []
    for index in range(CONSUMERS):
        stream, first = open_beside(hosts, index, transport)
        streams.append(stream)
        batches.append([first])
    for _ in range(BATCHES - 1):
        for stream, part in zip(streams, batches, strict=True):
            part.append(next(stream))
    for index, (stream, part) in enumerate(zip(streams, batches, strict=True)):
        own = slice(index * BATCH, (index + 1) * BATCH)
        assert digest_batches(part) == digest_batches(
            feeder.Batch(whole.images[own], whole.labels[own], whole.mask[own], whole.position)
            for whole in undisturbed
        )
        workers = stream.stats().workers
        assert [worker.beside for worker in workers.values()] == [near == index for near in range(CONSUMERS)]
        near = sum(worker.chunks for worker in workers.values() if worker.beside)
        # What the worker beside was late with, on a busy machine, went to others as it must.
        asked = sum(worker.chunks for worker in workers.values()) - sum(
            worker.failovers for worker in workers.values()
        )
        assert near >= 0.95 * asked
        assert asked >= BATCHES / 2
        stream.close()


def test_beside_names_one_of_the_workers(pair: Any) -> None:
    client = feeder.connect(pair[0].address)
    with pytest.raises(ConfigError, match=r"beside names 127\.0\.0\.9:5, and the workers are"):
        client.stream("data", batch_size=4, beside="127.0.0.9:5")


# The last one: it leaves three of the four.
def test_if_it_dies_the_others_take_its_place(hosts: list[tuple[Any, Path]]) -> None:
    stream, _ = open_beside(hosts, 2, "auto")
    with stream:
        hosts[2][0].kill()
        assert len(list(stream)) == BATCHES - 1
        assert stream.ledger().totals.lost == 0
        workers = stream.stats().workers
        assert sum(worker.images for worker in workers.values() if not worker.beside) >= BATCHES
