"""A worker over shards in S3 serves what one over files serves, whatever the store does now and then."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import feeder
from feeder.records.requests import PARALLEL
from feeder.wire import DESCRIBE
from feeder.wire.address import parse_address
from feeder.wire.channel import open_channel
from feeder.wire.v1 import feeder_pb2 as pb

RECORDS = 120
SMALL: dict[str, Any] = {"batch_size": 12, "image_size": 32, "seed": 3, "epochs": 2}
FAULTY = {"rate": 0.1, "seed": 11, "kinds": ["busy", "reset", "slow"]}


@pytest.fixture(scope="module")
def bucket(s3_server: Any, shards: Path) -> str:
    for shard in sorted(shards.iterdir()):
        if shard.suffix == "":
            s3_server.put(f"service/train/{shard.name}", shard.read_bytes())
    return str(s3_server.url("service/train/"))


def status(address: str, *flags: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "feeder", "status", address, *flags],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout + done.stderr


def describe(address: str) -> pb.DescribeReply:
    with open_channel(parse_address(address)) as channel:
        ask = channel.unary_unary(
            DESCRIBE,
            request_serializer=pb.DescribeRequest.SerializeToString,
            response_deserializer=pb.DescribeReply.FromString,
        )
        reply = ask(pb.DescribeRequest(), timeout=30)
    assert isinstance(reply, pb.DescribeReply)
    return reply


def test_an_epoch_over_a_faulty_store_is_complete_and_the_same(
    bucket: str, s3: Any, shards: Path, tmp_path: Path, start_worker: Any, digest_batches: Any
) -> None:
    local = start_worker(shards)
    with feeder.connect(local.address) as client, client.stream("data", **SMALL) as stream:
        expected = digest_batches(stream)
    s3.faults(**FAULTY)
    remote = start_worker(bucket, "--index-dir", str(tmp_path / "index"))
    with feeder.connect(remote.address) as client:
        stream = client.stream("data", **SMALL)
        with stream:
            assert digest_batches(stream) == expected
        totals = stream.ledger().totals
        assert (totals.delivered, totals.lost, totals.repeated, totals.replaced) == (2 * RECORDS, 0, 0, 0)
        with client.stream("data", **{**SMALL, "shuffle": False}) as stream:  # where neighbours are
            assert len(list(stream)) == 2 * RECORDS // 12
    assert sum(s3.seen()["faults"].values())
    said = status(remote.address) + status(remote.address, "--json")
    assert "requests to object stores" in said
    assert '"store_requests": 0' not in said
    assert '"store_merged": 0' not in said
    for secret in (s3.USER, s3.SECRET, "%2F", "endpoint_override"):
        assert secret not in said
        assert secret not in remote.log.read_text()


@pytest.mark.parametrize("outage_s", [1.0, pytest.param(20.0, marks=pytest.mark.soak)])
def test_a_store_that_is_down_and_then_breaks_off_costs_no_record(
    outage_s: float,
    bucket: str,
    s3: Any,
    shards: Path,
    tmp_path: Path,
    start_worker: Any,
    digest_batches: Any,
) -> None:
    """P38: 503 for a while, then half of each answer, then all is well."""
    local = start_worker(shards)
    with feeder.connect(local.address) as client, client.stream("data", **SMALL) as stream:
        expected = digest_batches(stream)
    remote = start_worker(bucket, "--index-dir", str(tmp_path / "index"))
    s3.faults(rate=1.0, kinds=["busy"])
    came: list[str] = []
    with feeder.connect(remote.address) as client, client.stream("data", **SMALL) as stream:
        reading = threading.Thread(target=lambda: came.extend(digest_batches(stream)))
        reading.start()
        time.sleep(outage_s)
        assert s3.seen()["faults"].keys() == {"busy"}
        s3.faults(rate=0.5, seed=2, kinds=["half"])
        reading.join(60)
        assert s3.seen()["faults"].keys() == {"half"}
        totals = stream.ledger().totals
    assert came == expected
    assert (totals.delivered, totals.lost, totals.repeated, totals.replaced) == (2 * RECORDS, 0, 0, 0)
    counted = describe(remote.address).counters
    assert counted.storage_retries > 0
    s3.faults()
    with feeder.connect(remote.address) as client, client.stream("data", **SMALL) as stream:
        assert digest_batches(stream) == expected
    assert describe(remote.address).counters.storage_retries == counted.storage_retries


def test_a_worker_asks_ahead_for_what_comes_next(
    bucket: str, s3: Any, tmp_path: Path, start_worker: Any
) -> None:
    worker = start_worker(bucket, "--index-dir", str(tmp_path / "index"))
    s3.faults(rate=1.0, kinds=["slow"], slow_s=1.0)
    with feeder.connect(worker.address) as client, client.stream("data", **SMALL | {"epochs": 1}) as stream:
        assert len(list(stream)) == RECORDS // 12
    # One thread decodes, two read; a chunk of 12 records is at most as many requests.
    assert 2 * 12 < s3.seen()["most"] <= PARALLEL


def test_records_are_kept_near_and_survive_the_worker(
    bucket: str, s3: Any, tmp_path: Path, start_worker: Any
) -> None:
    flags = ["--index-dir", str(tmp_path / "index"), "--encoded-cache-bytes", "16MiB"]
    flags += ["--encoded-cache-dir", str(tmp_path / "tier")]

    def epoch(worker: Any) -> pb.DescribeReply:
        with (
            feeder.connect(worker.address) as client,
            client.stream("data", **SMALL | {"epochs": 1}) as stream,
        ):
            assert len(list(stream)) == RECORDS // 12
        return describe(worker.address)

    worker = start_worker(bucket, *flags)
    first = epoch(worker)
    assert (first.encoded_cache.hits, first.encoded_cache.misses) == (0, RECORDS)
    deadline_s = time.monotonic() + 30
    while describe(worker.address).encoded_cache.filled < RECORDS:
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    second = epoch(worker)
    assert second.encoded_cache.hits == RECORDS
    assert second.counters.store_requests == first.counters.store_requests
    assert f"encoded   {RECORDS} hits of {2 * RECORDS} (50.0 %)" in status(worker.address)
    worker.kill()
    again = start_worker(bucket, *flags)
    third = epoch(again)
    assert third.encoded_cache.hits == RECORDS
    assert third.counters.store_requests == 0


def test_a_store_that_fails_for_good_is_named_and_the_worker_goes_on(
    bucket: str, s3: Any, tmp_path: Path, start_worker: Any
) -> None:
    worker = start_worker(bucket, "--index-dir", str(tmp_path / "index"))
    s3.check_users(True)
    try:
        with feeder.connect(worker.address) as client, client.stream("data", **SMALL) as stream:
            with pytest.raises(
                feeder.FeederError, match=r"s3://service/train/train-0000.*credentials"
            ) as caught:
                next(iter(stream))
            assert s3.USER not in str(caught.value)
    finally:
        s3.check_users(False)
    with feeder.connect(worker.address) as client, client.stream("data", **SMALL) as stream:
        assert len(list(stream)) == 2 * RECORDS // 12


def test_a_worker_ends_though_the_store_is_silent(
    bucket: str, s3: Any, tmp_path: Path, start_worker: Any
) -> None:
    worker = start_worker(bucket, "--index-dir", str(tmp_path / "index"), "--drain-s", "0.5")
    s3.faults(rate=1.0, kinds=["silent"])
    with feeder.connect(worker.address) as client, client.stream("data", **SMALL) as stream:

        def ask() -> None:
            with contextlib.suppress(feeder.FeederError):
                next(iter(stream))

        asking = threading.Thread(target=ask)
        asking.start()
        deadline_s = time.monotonic() + 30
        while not s3.seen()["asked"] > 1 and time.monotonic() < deadline_s:
            time.sleep(0.02)
        worker.signal(signal.SIGTERM)
        assert worker.wait(60) == 1
        stream.close()
        asking.join(60)
        assert not asking.is_alive()
