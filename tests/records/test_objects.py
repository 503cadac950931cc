"""Names of objects, what of them may be shown, and ranges that become one request."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from feeder.errors import ConfigError, StorageError
from feeder.records import Dataset
from feeder.records.locations import Location, folder_of, is_glob, matcher, redact
from feeder.records.objects import Range, Reading, merge
from feeder.records.requests import Permanent
from feeder.records.shards import expand
from feeder.records.stores import describe


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3://KEY:se/cret@bucket/a", "s3://bucket/a"),  # though the slash should be %2F
        ("s3://bucket/key@here/a", "s3://bucket/key@here/a"),
        ("s3://KEY:se%2Fcret@bucket/a?scheme=http", "s3://bucket/a"),
        ("at https://h/x.tar?X-Amz-Signature=abc&Y=1, no", "at https://h/x.tar no"),
        ("message='Forbidden', url='http://h/x?sig=1'", "message='Forbidden', url='http://h/x'"),
        ("two http://u:p@h/a?b=c http://u2:p2@h2/d?e=f.", "two http://h/a http://h2/d"),
        ("/local/path?x", "/local/path?x"),
    ],
)
def test_redacting(text: str, shown: str) -> None:
    assert redact(text) == shown


def test_a_url_is_taken_apart() -> None:
    location = Location.parse("s3://key:a%2Fb%2Bc@bucket/da%20ta/x-*.tar?region=eu-west-1&scheme=http")
    assert (location.scheme, location.path, location.folder) == ("s3", "bucket/da ta/x-*.tar", False)
    assert (location.user, location.password) == ("key", "a/b+c")
    assert dict(location.options) == {"region": "eu-west-1", "scheme": "http"}
    assert is_glob(location.path)
    assert folder_of(location.path) == "bucket/da ta"
    assert location.shown == "s3://bucket/da ta/x-*.tar"
    assert Location.parse("s3://bucket/a#b/").path == "bucket/a#b"
    assert "secret" not in repr(Location.parse("s3://key:secret@bucket/x?token=secret"))


@pytest.mark.parametrize("url", ["s3://", "s3:///x?y", "s3://KEY:se/cret@bucket/a"])
def test_a_url_must_name_something(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        expand([url])
    assert "cret@" not in str(caught.value)


@pytest.mark.parametrize(
    ("pattern", "path", "fits"),
    [
        ("b/x-*.tar", "b/x-1.tar", True),
        ("b/x-*.tar", "b/y/x-1.tar", False),
        ("b/*/x.tar", "b/y/x.tar", True),
        ("b/*/x.tar", "b/y/z/x.tar", False),
        ("b/**/x.tar", "b/x.tar", True),
        ("b/**/x.tar", "b/y/z/x.tar", True),
        ("b/x[0-3].tar", "b/x2.tar", True),
        ("b/x[!0-3].tar", "b/x2.tar", False),
        ("b/x.tar", "b/xxtar", False),
    ],
)
def test_globs(pattern: str, path: str, fits: bool) -> None:
    assert (matcher(pattern).fullmatch(path) is not None) == fits


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("AWS Error NO_SUCH_BUCKET during ListObjectsV2 operation: x", "no such object or bucket"),
        ("AWS Error ACCESS_DENIED during HeadObject operation: No response body.", "credentials"),
        ("AWS Error INVALID_ACCESS_KEY_ID during GetObject operation: key AKIA1", "credentials"),
        ("AWS Error UNKNOWN (HTTP status 416) during GetObject operation: ", "it shrank"),
        ("AWS Error UNKNOWN (HTTP status 301) during GetObject operation: ", "region"),
        ("AWS Error EXPIRED_TOKEN during GetObject operation: x", "credentials"),
        ("google::cloud::Status(PERMISSION_DENIED: Permanent error", "credentials"),
        ("google::cloud::Status(NOT_FOUND: Permanent error", "no such object or bucket"),
        ("HTTP status 403", "credentials"),
        ("HTTP status 404", "no such object or bucket"),
    ],
)
def test_errors_that_last(text: str, said: str) -> None:
    with pytest.raises(Permanent, match=said) as caught:
        describe(OSError(text))
    assert "AKIA1" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "AWS Error SLOW_DOWN during GetObject operation: Please reduce",
        "AWS Error UNKNOWN (HTTP status 503) during HeadObject operation: No response body.",
        "AWS Error UNKNOWN (HTTP status 429) during HeadObject operation: No response body.",
        "AWS Error NETWORK_CONNECTION during GetObject operation: curlCode: 56, Failure when receiving data",
        "HTTP status 503",
        "google::cloud::Status(UNAVAILABLE: Retry policy exhausted, with a last message of CURL error [7]",
        "TimeoutError: while a token was asked for at port 403",
    ],
)
def test_errors_that_pass(text: str) -> None:
    assert describe(OSError(text))


def test_neighbours_become_one_request() -> None:
    ranges = [Range(0, 100, 10), Range(1, 0, 5), Range(0, 0, 10), Range(0, 12, 8), Range(0, 300, 4)]
    assert merge(ranges, gap=4, most=1000) == [
        (0, 0, 20, [2, 3]),
        (0, 100, 110, [0]),
        (0, 300, 304, [4]),
        (1, 0, 5, [1]),
    ]
    assert merge([], gap=4, most=10) == []
    assert merge([Range(0, 0, 50), Range(0, 50, 50)], gap=0, most=60) == [(0, 0, 50, [0]), (0, 50, 100, [1])]
    assert merge([Range(0, 0, 500), Range(0, 0, 500)], gap=0, most=60) == [(0, 0, 500, [0, 1])]


def test_merged_or_not_each_gets_its_own_bytes() -> None:
    source = random.Random(1)
    blobs = [source.randbytes(5000) for _ in range(3)]

    def ask(shard: int, offset: int, length: int) -> Future[bytes]:
        future: Future[bytes] = Future()
        future.set_result(blobs[shard][offset : offset + length])
        return future

    for _ in range(200):
        ranges = []
        for _ in range(source.randrange(12)):
            offset = source.randrange(4900)
            ranges.append(Range(source.randrange(3), offset, source.randrange(1, 100)))
        spans = merge(ranges, gap=source.randrange(300), most=source.randrange(1, 2000))
        assert sorted(position for span in spans for position in span.wanted) == list(range(len(ranges)))
        for span in spans:
            for position in span.wanted:
                shard, offset, length = ranges[position]
                assert span.shard == shard
                assert span.start <= offset
                assert offset + length <= span.stop
        reading = Reading(list(range(len(ranges))), ranges, ask)
        told: list[bool] = []
        reading.when_done(lambda told=told: told.append(True))  # type: ignore[misc]
        assert told == [True]
        for record, (shard, offset, length) in enumerate(ranges):
            assert reading.take(record) == blobs[shard][offset : offset + length]
        assert reading.take(len(ranges)) is None


@pytest.fixture
def memory(
    make_payload: Callable[..., bytes], framed: Callable[[bytes], bytes], request: pytest.FixtureRequest
) -> Any:
    """A folder of fsspec's store in memory, and a function that puts a shard there."""
    fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
    store = fsspec.filesystem("memory")
    folder = f"/{request.node.name}"

    def put(name: str, images: list[bytes]) -> str:
        records = (framed(make_payload(image, number + 1)) for number, image in enumerate(images))
        store.pipe_file(f"{folder}/{name}", b"".join(records))
        return f"memory:/{folder}/{name}"

    yield put
    store.rm(folder, recursive=True)


def test_any_store_of_fsspec_is_read(memory: Any, tmp_path: Path) -> None:
    memory("a-1.tfrecord", [b"one", b"two"])
    url = memory("a-2.tfrecord", [b"three"])
    memory("notes.txt", [])
    folder = url.rpartition("/")[0]
    for pattern in (folder, folder + "/", folder + "/a-*", folder + "/a-[12].tfrecord"):
        with Dataset.open("x", [pattern], index_dir=tmp_path) as dataset:
            images = [bytes(dataset.read(record).image) for record in range(len(dataset))]
            assert images == [b"one", b"two", b"three"]
            assert dataset.requests.requests > 0
            assert dataset.requests.merged == 0
            reading = dataset.ask(range(3))
            assert reading is not None
            assert [bytes(dataset.read(record, reading).image) for record in range(3)] == images
            assert dataset.requests.merged == 1
    with Dataset.open("x", [url], index_dir=tmp_path, build=False) as dataset:
        assert dataset.locate(0) == ("a-2.tfrecord", 0)


def test_an_object_that_was_replaced_is_found(memory: Any, tmp_path: Path) -> None:
    url = memory("a.tfrecord", [b"one", b"two"])
    with Dataset.open("x", [url], index_dir=tmp_path) as dataset:
        assert bytes(dataset.read(0).image) == b"one"
        memory("a.tfrecord", [b"ONE", b"TWO"])
        with pytest.raises(StorageError, match=r"a\.tfrecord: is not the object that was indexed"):
            dataset.read(1)
    with pytest.raises(ConfigError, match="stale"):
        Dataset.open("x", [url], index_dir=tmp_path, build=False)


def test_without_fsspec_it_is_said_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(ConfigError, match=r"^memory://nowhere/x: memory URLs need .*pip install fsspec"):
        expand(["memory://nowhere/x?token=secret"])


def test_what_cannot_be_is_said(memory: Any, tmp_path: Path) -> None:
    url = memory("a.tfrecord", [b"one"])
    with pytest.raises(ConfigError, match=r"a\.tfrecord: indexes of objects are kept in a local folder"):
        Dataset.open("x", [url])
    with pytest.raises(ConfigError, match="no such object"):
        expand([url + "x"])
    with pytest.raises(ConfigError, match="matches no shard"):
        expand([url + "*x"])
    with pytest.raises(ConfigError, match="folders of images are read from disk only"):
        expand([url], "folder")
    with pytest.raises(ConfigError, match="unknown option 'regoin'"):
        expand(["s3://k:verysecret@bucket/x?regoin=verysecret"])
    with pytest.raises(ConfigError, match=r"^nostore://h/x: Protocol not known"):
        expand(["nostore://u:p@h/x"])
