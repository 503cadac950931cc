"""Real workers that write into a real trainer's memory, and what is left when either dies."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import feeder
from feeder.client import engine

RECORDS = 120
SMALL: dict[str, Any] = {"batch_size": 12, "image_size": 32, "seed": 9, "epochs": 4}
BATCH_BYTES = 12 * 32 * 32 * 3
BATCHES = 40
DEADLINE_S = 40.0


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def mapped(pid: int) -> int:
    """Arenas that a process has mapped."""
    return Path(f"/proc/{pid}/maps").read_text().count("feeder-arena")


@pytest.fixture
def undisturbed(pair: Any, digest_batches: Any) -> list[str]:
    with feeder.connect(pair[0].address).stream("data", **SMALL, transport="grpc") as stream:
        digests: list[str] = digest_batches(stream)
        assert stream.stats().transport == "grpc"
    return digests


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("transport", ["shm", "auto"])
def test_the_same_batches_bit_for_bit(
    pair: Any, undisturbed: list[str], digest_batches: Any, transport: Any, workers: int
) -> None:
    client = feeder.connect([worker.address for worker in pair[:workers]])
    with client.stream("data", **SMALL, transport=transport) as stream:
        assert digest_batches(stream) == undisturbed
        stats = stream.stats()
    assert stats.transport == "shm"
    assert (stats.received_bytes, stats.copied_bytes) == (0, 0)
    for worker in pair[:workers]:
        assert stats.workers[worker.address].images > 0


def test_evaluation_is_padded_in_place(pair: Any, digest_batches: Any) -> None:
    arguments = {"batch_size": 50, "image_size": 32, "augment": "eval"}
    client = feeder.connect(pair[0].address)
    both = []
    for transport in ("shm", "grpc"):
        with client.stream("data", **arguments, transport=transport) as stream:
            both.append(digest_batches(stream))
    assert both[0] == both[1]
    assert len(both[0]) == 3


def test_one_in_place_and_one_over_the_network(
    shards: Path, start_worker: Any, undisturbed: list[str], digest_batches: Any
) -> None:
    near, far = start_worker(shards), start_worker(shards, "--arena-bytes", "0")
    with feeder.connect([near.address, far.address]).stream("data", **SMALL) as stream:
        assert digest_batches(stream) == undisturbed
        stats = stream.stats()
    assert stats.transport == "mixed"
    assert [stats.workers[worker.address].transport for worker in (near, far)] == ["shm", "grpc"]
    assert stats.received_bytes == stats.workers[far.address].images * 32 * 32 * 3


def test_sigkill_of_a_worker_and_one_that_comes_in_its_place(
    shards: Path, start_worker: Any, undisturbed: list[str], digest_batches: Any
) -> None:
    folder = Path(os.environ["XDG_RUNTIME_DIR"], "own")
    two = [start_worker(shards, "--arena-dir", str(folder)) for _ in range(2)]
    address = two[1].address
    sockets = set(folder.iterdir())
    with feeder.connect([worker.address for worker in two]).stream(
        "data", **SMALL, prefetch_bytes=2 * BATCH_BYTES, transport="shm", stall_timeout_s=DEADLINE_S
    ) as stream:
        digests = digest_batches(next(stream) for _ in range(5))
        two[1].kill()
        digests += digest_batches(next(stream) for _ in range(10))
        again = start_worker(shards, "--arena-dir", str(folder), listen=address)
        until(lambda: stream.stats().workers[address].reconnects == 1)
        digests += digest_batches(stream)
        assert digests == undisturbed
        assert stream.ledger().totals.lost == 0
        assert stream.stats().retired == 0
    assert len(sockets - set(folder.iterdir())) == 1  # that of the dead one, by the one that came
    for worker in (two[0], again):
        worker.signal(signal.SIGTERM)
        worker.wait()
    assert list(folder.iterdir()) == []


STOPPED: dict[str, Any] = {"batch_size": 24, "image_size": 256, "seed": 9}


def test_a_worker_that_is_stopped_in_its_work_harms_nothing_when_it_goes_on(
    shards: Path, start_worker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "SUSPECT_AFTER_S", 0.3)
    two = start_worker(shards), start_worker(shards)
    client = feeder.connect([worker.address for worker in two])
    with client.stream("data", **STOPPED, transport="grpc") as stream:
        expected = [next(stream).images.copy() for _ in range(24)]
    with client.stream(
        "data", **STOPPED, transport="shm", prefetch_bytes=3 * 24 * 256 * 256 * 3, stall_timeout_s=DEADLINE_S
    ) as stream:
        kept = []
        first = 16
        stopped = stream.stats().workers[two[1].address]
        for number in range(16):
            if number >= 2 and not stopped.outstanding:  # until it is stopped in its work
                two[1].signal(signal.SIGCONT)
                until(lambda: stream.stats().workers[two[1].address].images > 0)
                two[1].signal(signal.SIGSTOP)
                stopped = stream.stats().workers[two[1].address]
                first = number
            batch = next(stream)
            assert (batch.images == expected[number]).all()
            if first <= number < first + 3:
                kept.append((number, batch.images))
            del batch
        assert stopped.outstanding > 0
        assert stream.stats().workers[two[1].address].state == "suspect"
        assert stream.stats().retired > 0
        two[1].signal(signal.SIGCONT)
        until(lambda: stream.stats().retired == 0)
        for number in range(16, 24):
            assert (next(stream).images == expected[number]).all()
        for number, images in kept:
            assert (images == expected[number]).all()
        assert stream.ledger().totals.lost == 0


CLIENT = """
import sys, feeder
stream = feeder.connect(sys.argv[1]).stream("data", batch_size=12, image_size=32, transport="shm")
for number, batch in enumerate(stream):
    if number == 2:
        print("ready", flush=True)
"""


def test_a_client_that_is_killed_leaves_the_worker_as_it_was(
    shards: Path, start_worker: Any, run_client: Any
) -> None:
    worker = start_worker(shards)
    process = psutil.Process(worker.process.pid)

    def live() -> int:
        with feeder.connect(worker.address, timeout_s=DEADLINE_S):
            pass
        return mapped(process.pid)

    def kill_one() -> None:
        client = run_client(CLIENT, worker.address)
        assert client.stdout.readline() == "ready\n"
        assert mapped(process.pid) == 1
        client.kill()
        client.communicate(timeout=DEADLINE_S)
        until(lambda: live() == 0)

    kill_one()  # gRPC and the decoder take what they keep
    fds = process.num_fds()
    for _ in range(2):
        kill_one()
    until(lambda: process.num_fds() <= fds)


def test_buffers_that_somebody_keeps_stay_as_they_are(pair: Any) -> None:
    client = feeder.connect(pair[0].address)
    with client.stream("data", **SMALL, transport="grpc") as stream:
        expected = [batch.images for batch in stream]
    with client.stream("data", **SMALL, transport="shm", prefetch_bytes=BATCH_BYTES) as stream:
        kept, views = [], []
        for number, batch in enumerate(stream):
            assert (batch.images == expected[number]).all()
            if number % 9 == 0:
                kept.append((number, batch.images[3:5]))
                views.append((number, memoryview(batch.images)))
        del batch
        for number, part in kept:
            assert (part == expected[number][3:5]).all()
        for number, view in views:
            assert (np.asarray(view) == expected[number]).all()
    # Also after the stream is closed.
    gc.collect()
    for number, part in kept:
        assert (part == expected[number][3:5]).all()


def test_nothing_is_left_in_the_client(pair: Any) -> None:
    process = psutil.Process()

    def state() -> tuple[int, int]:
        gc.collect()
        return process.num_fds(), mapped(process.pid)

    def use(times: int) -> None:
        for number in range(times):
            stream = feeder.connect([worker.address for worker in pair]).stream(
                "data", **SMALL, transport="shm"
            )
            for _ in range(3):
                next(stream)
            if number % 2:
                stream.close()

    threads = threading.active_count()
    use(2)
    until(lambda: threading.active_count() <= threads)
    fds, maps = state()
    use(6)
    until(lambda: threading.active_count() <= threads)
    until(lambda: state()[1] <= maps and state()[0] <= fds + 4)  # gRPC's own breathe
    for worker in pair:
        until(lambda worker=worker: mapped(worker.process.pid) == 0)  # type: ignore[misc]


def test_jax_has_its_own_copy_on_the_cpu(pair: Any) -> None:
    pytest.importorskip("jax", reason="JAX is not installed (extra trainer)")
    from feeder.client.jax import prefetch_to_device

    client = feeder.connect(pair[0].address)
    with client.stream("data", **SMALL, transport="grpc") as stream:
        expected = [batch.images for batch in stream]
    with client.stream("data", **SMALL, transport="shm", prefetch_bytes=BATCH_BYTES) as stream:
        placed = list(prefetch_to_device(stream))
        assert stream.stats().copied_bytes == 0
    for batch, images in zip(placed, expected, strict=True):
        assert (np.asarray(batch.images) == images).all()
