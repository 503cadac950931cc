"""Jobs of one spec on one worker: an image is decoded once for all, and each job gets what it would alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import feeder
from feeder.cli import main
from feeder.cli.status import describe
from feeder.wire.address import parse_address

RECORDS = 120
BATCH = 12
EPOCHS = 6
IMAGES = EPOCHS * RECORDS
BATCH_BYTES = BATCH * 32 * 32 * 3
SETTINGS: dict[str, Any] = {
    "batch_size": BATCH,
    "image_size": 32,
    "prefetch_bytes": 4 * BATCH_BYTES,
    "epochs": EPOCHS,
}
DEADLINE_S = 120.0

Digest = Callable[..., list[str]]


@pytest.fixture(scope="module")
def worker(pair: Any) -> Any:
    return pair[0]


@pytest.fixture(scope="module")
def alone(worker: Any, digest_batches: Digest) -> list[str]:
    """What one job gets that is alone."""
    with feeder.connect(worker.address).stream("data", **SETTINGS) as stream:
        return digest_batches(stream)


def shared_images(worker: Any) -> int:
    return describe(parse_address(worker.address)).counters.images_shared


def kept_bytes(worker: Any) -> int:
    return describe(parse_address(worker.address)).kept_bytes


def wait_until_nothing_is_kept(worker: Any) -> None:
    """A worker may hear of the end of a stream a little later."""
    deadline_s = time.monotonic() + DEADLINE_S
    while kept_bytes(worker):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


@pytest.mark.parametrize("transport", ["shm", "grpc"])
def test_two_jobs_at_one_pace_are_decoded_for_once(
    worker: Any, alone: list[str], digest_batches: Digest, transport: str
) -> None:
    before = describe(parse_address(worker.address))
    client = feeder.connect(worker.address)
    settings = SETTINGS | {"transport": transport}
    with (
        client.stream("data", **settings, job="a") as first,
        client.stream("data", **settings, job="b") as second,
    ):
        got: tuple[list[str], list[str]] = ([], [])
        for both in zip(first, second, strict=True):
            for mine, batch in zip(got, both, strict=True):
                mine += digest_batches([batch])
        wait_until_nothing_is_kept(worker)
    assert got == (alone, alone)
    after = describe(parse_address(worker.address))
    # Before the second opened, the first had a window made for itself; the last answers may not be counted.
    apart = 8 * BATCH
    assert IMAGES - apart <= after.counters.images_shared - before.counters.images_shared <= IMAGES
    # Not only by the worker's own account: what is read is read once for both.
    read = after.counters.bytes_read - before.counters.bytes_read
    assert read <= after.datasets[0].bytes * (IMAGES + 2 * apart) / RECORDS


def test_where_one_closes_the_other_goes_on(worker: Any, alone: list[str], digest_batches: Digest) -> None:
    client = feeder.connect(worker.address)
    with client.stream("data", **SETTINGS, job="a") as first:
        got = []
        with client.stream("data", **SETTINGS, job="b") as second:
            for _ in range(8):
                got += digest_batches([next(first)])
                next(second)
        got += digest_batches(first)
        wait_until_nothing_is_kept(worker)
    assert got == alone


def test_jobs_that_go_as_they_like_get_the_same(
    worker: Any, alone: list[str], digest_batches: Digest
) -> None:
    client = feeder.connect(worker.address)
    got: dict[str, list[str]] = {}

    def read(job: str, transport: str) -> None:
        with client.stream("data", **SETTINGS, job=job, transport=transport) as stream:
            got[job] = digest_batches(stream)

    before = shared_images(worker)
    jobs = {"a": "shm", "b": "grpc", "c": "shm", "d": "grpc"}
    threads = [threading.Thread(target=read, args=job) for job in jobs.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert got == dict.fromkeys(jobs, alone)
    assert shared_images(worker) > before
    wait_until_nothing_is_kept(worker)


@pytest.mark.parametrize("batches", [3, 1000])
def test_one_that_does_not_move_holds_up_nobody_and_gets_the_same_later(
    shards: Path, start_worker: Callable[..., Any], alone: list[str], digest_batches: Digest, batches: int
) -> None:
    worker = start_worker(shards, "--share-bytes", str(batches * BATCH_BYTES))
    client = feeder.connect(worker.address)
    with client.stream("data", **SETTINGS, job="slow") as slow:
        got = digest_batches([next(slow)])
        with client.stream("data", **SETTINGS, job="fast") as fast:
            assert digest_batches(fast) == alone
        assert 0 < kept_bytes(worker) <= batches * BATCH_BYTES
        got += digest_batches(slow)
        wait_until_nothing_is_kept(worker)
    assert got == alone
    assert shared_images(worker) > 0


def test_status_says_what_was_shared(
    worker: Any, alone: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    client = feeder.connect(worker.address)
    with client.stream("data", **SETTINGS) as first, client.stream("data", **SETTINGS) as second:
        for _ in zip(first, second, strict=True):
            pass
    assert main(["status", worker.address]) == 0
    assert "\n  shared    " in (shown := capsys.readouterr().out)
    assert f"{shared_images(worker):,} images made once for several streams" in shown
