"""One of three workers is stopped: it is waited for once, and then no more."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pytest

import feeder

ARGUMENTS: dict[str, Any] = {"batch_size": 12, "image_size": 32, "seed": 9}
ROOM = 2 * 12 * 32 * 32 * 3
LEARNING = 150
"""Batches until the habits of each worker are known, from 32 answers on."""
DEADLINE_S = 60.0


@pytest.fixture
def three(shards: Path, start_worker: Any) -> list[Any]:
    return [start_worker(shards) for _ in range(3)]


@pytest.fixture
def stream(three: list[Any], request: pytest.FixtureRequest) -> Any:
    with feeder.connect([worker.address for worker in three]).stream(
        "data", **ARGUMENTS, prefetch_bytes=ROOM, transport="grpc", stall_timeout_s=DEADLINE_S
    ) as made:
        for _ in range(LEARNING):
            next(made)
        yield made
    for worker in three:
        worker.signal(signal.SIGCONT)


def stop(stream: feeder.Stream, worker: Any) -> None:
    """Stops a worker; comes back once it is suspect."""
    worker.signal(signal.SIGSTOP)
    deadline_s = time.monotonic() + DEADLINE_S
    while stream.stats().workers[worker.address].state != "suspect":
        next(stream)
        assert time.monotonic() < deadline_s


def test_after_the_first_suspicion_nothing_is_asked_of_it_nor_waited_for(
    three: list[Any], stream: feeder.Stream
) -> None:
    stopped = three[1].address
    assert 0.199 <= stream.stats().workers[stopped].late_after_s <= 10
    stop(stream, three[1])
    found = stream.stats().workers[stopped]
    assert found.failovers >= found.outstanding > 0
    for _ in range(100):
        next(stream)
        now = stream.stats().workers[stopped]
        assert (now.state, now.images, now.outstanding, now.failovers) == (
            "suspect",
            found.images,
            found.outstanding,
            found.failovers,
        )
    assert stream.ledger().totals.lost == 0


@pytest.mark.soak
def test_for_30_s_no_wait_is_longer_than_twice_the_hedge_deadline(
    three: list[Any], stream: feeder.Stream
) -> None:
    stop(stream, three[1])
    until_s = time.monotonic() + 30
    waits = []
    while time.monotonic() < until_s:
        before = stream.stats()
        next(stream)
        wait_s = stream.stats().wait_s - before.wait_s
        bound_s = 2 * max(worker.late_after_s for worker in before.workers.values())
        waits.append((wait_s, bound_s))
    assert len(waits) > 100
    assert all(wait_s <= bound_s for wait_s, bound_s in waits), max(waits)
    assert stream.ledger().totals.lost == 0
    three[1].signal(signal.SIGCONT)
    deadline_s = time.monotonic() + DEADLINE_S
    while stream.stats().workers[three[1].address].state != "live":
        next(stream)
        assert time.monotonic() < deadline_s
