"""All workers are replaced, one after another, in the middle of a stream."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import feeder
from feeder.cli.status import describe
from feeder.errors import WorkersDisagree
from feeder.wire.address import parse_address

ARGUMENTS: dict[str, Any] = {"batch_size": 12, "image_size": 32, "seed": 9, "epochs": 4}
BATCHES = 40
ROOM = 2 * 12 * 32 * 32 * 3
STALL_S = 20.0
"""The bound: a stream that got nothing for so long would say so. It is twice the silence after which a worker
is no longer waited for, however little is known of it."""
DEADLINE_S = 60.0


def until(condition: Callable[[], Any]) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


@pytest.fixture
def undisturbed(pair: Any, digest_batches: Any) -> list[str]:
    with feeder.connect(pair[0].address).stream("data", **ARGUMENTS) as stream:
        digests: list[str] = digest_batches(stream)
    return digests


def drained(worker: Any) -> None:
    worker.signal(signal.SIGTERM)
    assert worker.wait(DEADLINE_S) == 0


@pytest.mark.parametrize("transport", ["shm", pytest.param("grpc", marks=pytest.mark.soak)])
def test_three_workers_are_replaced_on_their_ports(
    shards: Path, start_worker: Any, transport: Any, undisturbed: list[str], digest_batches: Any
) -> None:
    workers = [start_worker(shards) for _ in range(3)]
    addresses = [worker.address for worker in workers]
    with feeder.connect(addresses).stream(
        "data", **ARGUMENTS, prefetch_bytes=ROOM, transport=transport, stall_timeout_s=STALL_S
    ) as stream:
        batches = [next(stream) for _ in range(4)]
        for worker in workers:
            drained(worker)
            batches += [next(stream) for _ in range(4)]
            start_worker(shards, listen=worker.address)
            until(lambda worker=worker: stream.stats().workers[worker.address].state == "live")  # type: ignore[misc]
            batches += [next(stream) for _ in range(4)]
        batches += list(stream)
        assert digest_batches(batches) == undisturbed
        totals, stats = stream.ledger().totals, stream.stats()
        assert (totals.delivered, totals.lost, totals.repeated) == (totals.expected, 0, 0)
        assert [stats.workers[address].reconnects for address in addresses] == [1, 1, 1]
        assert stats.retired == 0


def start_other(shards: Path, start_worker: Any, address: str) -> Any:
    """A worker that decodes to other pixels."""
    return start_worker(shards, "--decoder", "portable", listen=address)


def test_workers_whose_pixels_differ_are_refused_with_what_differs(
    shards: Path, start_worker: Any, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("feeder.decode._kernel", reason="the native kernel is not built here")
    workers = [start_worker(shards) for _ in range(2)]
    first, second = (worker.address for worker in workers)
    client = feeder.connect([first, second])
    ours = client.workers[first].pixel_fingerprint
    with client.stream("data", **ARGUMENTS, prefetch_bytes=ROOM, stall_timeout_s=DEADLINE_S) as stream:
        for _ in range(4):
            next(stream)
        drained(workers[0])
        start_other(shards, start_worker, first)
        theirs = describe(parse_address(first)).pixel_fingerprint
        assert theirs != ours
        until(lambda: theirs in stream.stats().workers[first].error)
        error = stream.stats().workers[first].error
        for part in (ours, theirs, "they differ in the built-in images baseline_", "more)"):
            assert part in error
        assert stream.stats().workers[first].state == "down"
        until(lambda: theirs in caplog.text)
        for _ in range(8):  # the other goes on alone
            next(stream)
        drained(workers[1])
        start_other(shards, start_worker, second)
        with pytest.raises(WorkersDisagree, match="they differ in the built-in images"):
            for _ in stream:
                pass
        saved = stream.position
    # Pixels that differ are no reason to lose the run: whoever accepts them goes on from the position.
    with feeder.connect([first, second]).stream("data", **ARGUMENTS, start=saved) as stream:
        assert len(list(stream)) == BATCHES - saved.steps_before(stream._order)
