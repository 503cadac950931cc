"""Workers that are killed, stopped, drained, restarted or cut off: the batches are as if nothing had been."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fault_proxy import Proxy

import feeder
from feeder.client import engine
from feeder.errors import WorkerUnavailable

RECORDS = 120
ARGUMENTS: dict[str, Any] = {"batch_size": 12, "image_size": 32, "seed": 9, "epochs": 6}
BATCHES = 60
ROOM = 2 * 12 * 32 * 32 * 3
"""prefetch_bytes for two batches, so that most of the stream lies ahead when something happens."""

Digest = Callable[[Any], list[str]]


@pytest.fixture
def undisturbed(pair: Any, digest_batches: Digest) -> list[str]:
    with feeder.connect(pair[0].address).stream("data", **ARGUMENTS) as stream:
        return digest_batches(stream)


@pytest.fixture
def two(shards: Path, pair: Any, start_worker: Any) -> tuple[Any, Any]:
    """One that is left in peace, and one that need not be."""
    return pair[1], start_worker(shards)


@pytest.fixture(params=["shm", "grpc"])
def stream(two: tuple[Any, Any], request: pytest.FixtureRequest) -> Iterator[feeder.Stream]:
    client = feeder.connect([worker.address for worker in two])
    with client.stream(
        "data", **ARGUMENTS, prefetch_bytes=ROOM, stall_timeout_s=20, transport=request.param
    ) as made:
        yield made


def take(stream: feeder.Stream, count: int) -> list[feeder.Batch]:
    return [next(stream) for _ in range(count)]


def check_whole(
    stream: feeder.Stream, batches: list[feeder.Batch], undisturbed: list[str], digest_batches: Digest
) -> None:
    assert digest_batches(batches) == undisturbed
    assert len(batches) == BATCHES
    totals = stream.ledger().totals
    assert (totals.expected, totals.delivered) == (6 * RECORDS, 6 * RECORDS)
    assert (totals.lost, totals.repeated) == (0, 0)


def test_sigkill_of_one_of_two_in_the_middle_of_an_epoch(
    two: tuple[Any, Any], stream: feeder.Stream, undisturbed: list[str], digest_batches: Digest
) -> None:
    batches = take(stream, 5)
    two[1].kill()
    batches += list(stream)
    check_whole(stream, batches, undisturbed, digest_batches)
    assert stream.stats().workers[two[1].address].state == "down"


def test_sigterm_hands_over(
    two: tuple[Any, Any], stream: feeder.Stream, undisturbed: list[str], digest_batches: Digest
) -> None:
    batches = take(stream, 5)
    two[1].signal(signal.SIGTERM)
    batches += list(stream)
    assert two[1].wait() == 0
    check_whole(stream, batches, undisturbed, digest_batches)


def test_a_worker_that_is_killed_and_started_again_takes_part_again(
    two: tuple[Any, Any],
    stream: feeder.Stream,
    shards: Path,
    start_worker: Any,
    undisturbed: list[str],
    digest_batches: Digest,
) -> None:
    address = two[1].address
    batches = take(stream, 5)
    two[1].kill()
    batches += take(stream, 5)
    start_worker(shards, listen=address)
    while stream.stats().workers[address].reconnects == 0:
        threading.Event().wait(0.05)
    made = stream.stats().workers[address].images
    batches += list(stream)
    check_whole(stream, batches, undisturbed, digest_batches)
    assert stream.stats().workers[address].images > made


def test_a_worker_that_hangs_is_passed_by_and_taken_back(
    two: tuple[Any, Any],
    shards: Path,
    undisturbed: list[str],
    digest_batches: Digest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Pitfall P11, with a shorter patience.
    monkeypatch.setattr(engine, "SUSPECT_AFTER_S", 0.5)
    client = feeder.connect([worker.address for worker in two])
    with client.stream("data", **ARGUMENTS, prefetch_bytes=ROOM, stall_timeout_s=20) as stream:
        batches = take(stream, 5)
        two[1].signal(signal.SIGSTOP)
        batches += take(stream, 15)
        assert stream.stats().workers[two[1].address].state == "suspect"
        two[1].signal(signal.SIGCONT)
        while stream.stats().workers[two[1].address].state != "live":
            threading.Event().wait(0.05)
        made = stream.stats().workers[two[1].address].images
        batches += list(stream)
        check_whole(stream, batches, undisturbed, digest_batches)
        assert stream.stats().workers[two[1].address].images > made


def test_a_worker_that_stops_is_passed_by_as_soon_as_it_is_later_than_usual(
    two: tuple[Any, Any], stream: feeder.Stream, undisturbed: list[str], digest_batches: Digest
) -> None:
    batches = take(stream, 45)
    two[1].signal(signal.SIGSTOP)
    batches += take(stream, 5)
    stats = stream.stats().workers[two[1].address]
    assert stats.state == "suspect"
    assert stats.hedges > 0
    batches += list(stream)
    two[1].signal(signal.SIGCONT)
    check_whole(stream, batches, undisturbed, digest_batches)


def test_if_all_workers_are_dead_the_stream_says_so_and_goes_on_when_they_are_back(
    shards: Path, start_worker: Any, undisturbed: list[str], digest_batches: Digest
) -> None:
    two = start_worker(shards), start_worker(shards)
    client = feeder.connect([worker.address for worker in two])
    with client.stream("data", **ARGUMENTS, prefetch_bytes=ROOM, stall_timeout_s=2) as stream:
        batches = take(stream, 5)
        for worker in two:
            worker.kill()
        with pytest.raises(WorkerUnavailable, match=f"worker {two[0].address} does not answer.*start the"):
            batches.extend(iter(stream.__next__, None))
        saved = stream.state_dict()
        start_worker(shards, listen=two[0].address)
        while len(batches) < BATCHES:
            try:
                batches.append(next(stream))
            except WorkerUnavailable:  # a slow start on a busy machine
                continue
        check_whole(stream, batches, undisturbed, digest_batches)
    # The position that was saved at the error is as good.
    at = feeder.Position.from_dict(saved)
    with feeder.connect(two[0].address).stream("data", **ARGUMENTS, start=at) as stream:
        rest = digest_batches(stream)
    assert rest == undisturbed[len(undisturbed) - len(rest) :]
    assert len(rest) < BATCHES


def test_a_connection_that_is_cut_again_and_again(
    pair: Any, undisturbed: list[str], digest_batches: Digest
) -> None:
    proxy = Proxy(pair[0].address, 250_000)
    try:
        with feeder.connect(proxy.address).stream("data", **ARGUMENTS, transport="grpc") as stream:
            batches = list(stream)
            check_whole(stream, batches, undisturbed, digest_batches)
            assert stream.stats().workers[proxy.address].reconnects >= 3
            assert proxy.cuts >= 3
    finally:
        proxy.close()
