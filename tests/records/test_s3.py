"""Shards in a real S3 server, which now and then is busy, breaks off or does not answer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from feeder.errors import ConfigError, StorageError
from feeder.records import Dataset
from feeder.records import requests as requests_module
from feeder.records import stores as stores_module
from feeder.records.build import ensure_indexes
from feeder.records.keys import RecordKeys
from feeder.records.requests import Policy
from feeder.records.shards import expand
from feeder.records.writers import Sample, open_writer

RECORDS = 40
FAULTY = {"rate": 0.1, "seed": 5, "kinds": ["busy", "reset", "slow"]}

IMAGES = [bytes([number]) * (1000 + 37 * number) for number in range(RECORDS)]


def write(path: Path, kind: str) -> Path:
    """A shard of each format; `parquet-zstd` must be unpacked by pages."""
    if kind.startswith("parquet-"):
        table = pa.table({"image": IMAGES, "label": list(range(RECORDS))})
        parquet.write_table(table, path, compression=kind.partition("-")[2], data_page_size=8192)
        return path
    with open(path, "wb") as out:
        writer = open_writer(kind, out)  # type: ignore[arg-type]
        for number, image in enumerate(IMAGES):
            writer.add(Sample(image, number + (kind == "tfrecord"), f"{number}.jpg", {}))
        writer.finish()
    return path


@pytest.mark.parametrize("kind", ["tfrecord", "webdataset", "parquet-none", "parquet-snappy", "parquet-zstd"])
def test_every_format_reads_as_from_disk_whatever_goes_wrong(
    kind: str, s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests_module, "USUAL", Policy(base_s=0.01, cap_s=0.1))
    shard = write(tmp_path / "shard", kind)
    s3.put(f"{kind}/set/shard", shard.read_bytes())
    s3.faults(**FAULTY)
    with (
        Dataset.open("local", [str(shard)]) as local,
        Dataset.open("remote", [s3.url(f"{kind}/set/*")], index_dir=tmp_path / "index") as remote,
    ):
        assert remote.fingerprint == local.fingerprint
        assert [remote.digest(n) for n in range(RECORDS)] == [local.digest(n) for n in range(RECORDS)]
        order = [number * 17 % RECORDS for number in range(RECORDS)]
        for first in range(0, RECORDS, 8):
            reading = remote.ask(order[first : first + 8])
            for record in order[first : first + 8]:
                assert remote.read(record, reading) == local.read(record)
        for record in order[:5]:
            assert remote.read(record) == local.read(record)
        counters = remote.requests
        assert counters.requests
        assert counters.bytes == remote.bytes_read > 0
        assert counters.retries == remote.storage_retries
        assert counters.merged
    faults = s3.seen()["faults"]
    assert sum(faults.values())


def test_neighbours_are_read_at_once(s3: Any, tmp_path: Path) -> None:
    shard = write(tmp_path / "shard", "tfrecord")
    s3.put("neighbours/shard", shard.read_bytes())
    with Dataset.open("x", [s3.url("neighbours/shard")], index_dir=tmp_path) as dataset:
        dataset.read(0)
        s3.faults()
        reading = dataset.ask(range(RECORDS))
        assert reading is not None
        for record in range(RECORDS):
            dataset.read(record, reading)
        assert len(s3.seen()["ranges"]) == 1


def test_an_index_is_built_with_few_large_requests_and_used_again(s3: Any, tmp_path: Path) -> None:
    data = write(tmp_path / "shard", "tfrecord").read_bytes()
    s3.put("index/shard", data * 40)
    s3.faults()
    shards = expand([s3.url("index/")])
    (index,) = ensure_indexes(shards, RecordKeys(), index_dir=tmp_path)
    assert len(index) == 40 * RECORDS
    assert len(s3.seen()["ranges"]) <= 2
    s3.faults()
    (again,) = ensure_indexes(shards, RecordKeys(), index_dir=tmp_path, build=False)
    assert again.content == index.content
    assert s3.seen()["ranges"] == []


def test_an_object_that_changes_after_it_was_indexed(s3: Any, tmp_path: Path) -> None:
    data = write(tmp_path / "shard", "tfrecord").read_bytes()
    for name, other in (("shrunk", data[: len(data) // 2]), ("replaced", data[::-1])):
        s3.put(f"changing/{name}", data)
        with Dataset.open("x", [s3.url(f"changing/{name}")], index_dir=tmp_path) as dataset:
            dataset.read(0)
            s3.put(f"changing/{name}", other)
            with pytest.raises(StorageError) as caught:
                dataset.read(RECORDS - 1)
            said = str(caught.value)
            assert f"s3://changing/{name}" in said
            assert "it shrank" in said or "is not the object that was indexed" in said
            assert "restart to index it anew" in said
            assert "\n" not in said


def test_an_object_that_changes_before_it_is_read_is_found_at_once(s3: Any, tmp_path: Path) -> None:
    data = write(tmp_path / "shard", "tfrecord").read_bytes()
    s3.put("before/shard", data)
    with Dataset.open("x", [s3.url("before/shard")], index_dir=tmp_path) as dataset:
        s3.put("before/shard", data[::-1])
        with pytest.raises(StorageError, match="is not the object that was indexed: it has"):
            dataset.read(3)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("no-such-bucket/x/", "^s3://no-such-bucket/x: there is no such object or bucket: check the name$"),
        ("no-such-bucket/x-*", r"^s3://no-such-bucket/x-\*: there is no such object or bucket"),
        ("there/nothing", r"^s3://there/nothing: there is no such object or bucket: check the name$"),
        ("there/n*", r"^s3://there/n\*: matches no shard$"),
    ],
)
def test_what_is_not_there(path: str, said: str, s3: Any) -> None:
    s3.put("there/a.tfrecord", b"x")
    with pytest.raises((ConfigError, StorageError), match=said):
        expand([s3.url(path)])


def test_credentials_that_are_wrong_are_named_and_not_shown(s3: Any) -> None:
    s3.put("mine/a.tfrecord", b"x")
    s3.check_users(True)
    try:
        for path in ("mine/", "mine/a.tfrecord", "mine/*"):
            with pytest.raises(
                StorageError, match=r"the store refuses access .*: check the credentials"
            ) as caught:
                expand([s3.url(path)])
            for secret in (s3.USER, s3.SECRET, "%2F", "endpoint_override"):
                assert secret not in str(caught.value)
            assert "\n" not in str(caught.value)
    finally:
        s3.check_users(False)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("silent", "no answer within the deadline"),
        ("busy", "SLOW_DOWN|UNAVAILABLE|503"),
        ("reset", "CONNECTION"),
    ],
)
def test_a_store_that_never_answers_is_given_up(
    kind: str, said: str, s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores_module, "SILENCE_S", 1.0)
    shard = write(tmp_path / "shard", "tfrecord")
    s3.put(f"never-{kind}/shard", shard.read_bytes())
    with Dataset.open("x", [s3.url(f"never-{kind}/shard")], index_dir=tmp_path) as dataset:
        dataset.read(0)
        s3.faults(rate=1.0, kinds=[kind], only="GET")
        usual = dataset._requests._policy
        dataset._requests._policy = Policy(attempt_s=0.4, total_s=1.5, base_s=0.01, cap_s=0.1)
        with pytest.raises(StorageError, match=said) as caught:
            dataset.read(7)
        dataset._requests._policy = usual
        assert f"s3://never-{kind}/shard: bytes " in str(caught.value)
        assert "attempts in " in str(caught.value)
        s3.faults()
        assert bytes(dataset.read(7).image) == IMAGES[7]


def test_close_does_not_wait_for_what_pauses(s3: Any, tmp_path: Path) -> None:
    s3.put("closing/shard", write(tmp_path / "shard", "tfrecord").read_bytes())
    dataset = Dataset.open("x", [s3.url("closing/shard")], index_dir=tmp_path)
    s3.faults(rate=1.0, kinds=["busy"])
    reading = dataset.ask(range(RECORDS))
    assert reading is not None
    done = threading.Event()
    reading.when_done(done.set)
    dataset.close()
    assert done.wait(30)


def test_seek_points_of_objects_lie_with_the_indexes(
    s3: Any, tmp_path: Path, make_payload: Callable[..., bytes]
) -> None:
    s3.put("seek/shard", write(tmp_path / "shard", "tfrecord").read_bytes())
    with Dataset.open("x", [s3.url("seek/shard")], index_dir=tmp_path / "index", seek="learn") as dataset:
        assert dataset.seek is not None
        dataset.read(0)
    assert {path.suffix for path in (tmp_path / "index").iterdir()} == {".feederidx"}


def test_objects_behind_plain_addresses_are_read_and_their_signatures_are_not_shown(
    s3: Any, tmp_path: Path
) -> None:
    pytest.importorskip("aiohttp", reason="fsspec reads http with aiohttp, which is not installed")
    s3.put("plain/shard", write(tmp_path / "shard", "tfrecord").read_bytes())
    url = f"http://127.0.0.1:{s3.port}/plain/shard?X-Amz-Signature=topsecret"
    s3.faults(rate=0.2, seed=3, kinds=["busy", "reset"])
    with Dataset.open("x", [url], index_dir=tmp_path / "index") as dataset:
        reading = dataset.ask(range(0, RECORDS, 2))
        assert [bytes(dataset.read(n, reading).image) for n in range(RECORDS)] == IMAGES
        assert dataset.locate(3) == ("shard", 3)
        assert "topsecret" not in str(dataset.shards) + repr(dataset.shards)
        s3.put("plain/shard", b"something else")
        with pytest.raises(StorageError) as caught:
            dataset.read(30)
        assert "topsecret" not in str(caught.value)
    s3.faults()
    with pytest.raises(StorageError, match="shardx: there is no such object") as caught:
        Dataset.open("x", [url.replace("shard", "shardx")], index_dir=tmp_path / "index")
    assert "topsecret" not in str(caught.value)
