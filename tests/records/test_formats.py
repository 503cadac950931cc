"""Formats are found by content, and compressed shards by what is in them."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from feeder.errors import BadShard, ConfigError
from feeder.records import Dataset, RecordKeys
from feeder.records.build import ensure_indexes
from feeder.records.formats import build_index, detect
from feeder.records.keys import FormatName
from feeder.records.sidecar import index_path

Payload = Callable[[bytes, int], bytes]


@pytest.fixture
def shards(make_payload: Payload, framed: Callable[[bytes], bytes]) -> dict[str, bytes]:
    """One shard of each format with the images a, b, c of the classes 0, 1, 2."""
    images = [b"image a", b"image b", b"image c"]
    tar, parquet = io.BytesIO(), io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as file:
        for number, image in enumerate(images):
            for suffix, data in (("jpg", image), ("cls", b"%d" % number)):
                member = tarfile.TarInfo(f"{number}.{suffix}")
                member.size = len(data)
                file.addfile(member, io.BytesIO(data))
    pq.write_table(pa.table({"image": images, "label": [0, 1, 2]}), parquet)
    tfrecord = b"".join(framed(make_payload(image, number + 1)) for number, image in enumerate(images))
    return {"tfrecord": tfrecord, "webdataset": tar.getvalue(), "parquet": parquet.getvalue()}


def detected(path: Path) -> tuple[FormatName, str | None]:
    fd = os.open(path, os.O_RDONLY)
    try:
        return detect(path, fd)
    finally:
        os.close(fd)


@pytest.mark.parametrize("name", ["tfrecord", "webdataset", "parquet"])
def test_content_tells_the_format_whatever_the_name(
    tmp_path: Path, shards: dict[str, bytes], name: str
) -> None:
    for suffix in ("", ".tar", ".parquet", ".tfrecord"):
        path = tmp_path / f"shard{suffix}"
        path.write_bytes(shards[name])
        assert detected(path) == (name, None)
        with Dataset.open("any", [str(path)]) as dataset:
            assert [bytes(dataset.read(number).image) for number in range(3)] == [
                b"image a",
                b"image b",
                b"image c",
            ]
            assert [dataset.read(number).label for number in range(3)] == [0, 1, 2]


def test_formats_may_mix(tmp_path: Path, shards: dict[str, bytes]) -> None:
    for name, data in shards.items():
        (tmp_path / name).write_bytes(data)
    with Dataset.open("any", [str(tmp_path)]) as dataset:
        assert [dataset.read(number).label for number in range(9)] == [0, 1, 2] * 3
        assert len({bytes(dataset.read(number).image) for number in range(9)}) == 3


def test_a_format_that_is_said_is_believed(tmp_path: Path, shards: dict[str, bytes]) -> None:
    path = tmp_path / "shard"
    path.write_bytes(shards["webdataset"])
    for name, said in (("tfrecord", "is not a TFRecord"), ("parquet", "is not a whole Parquet file")):
        with pytest.raises(BadShard, match=said):
            build_index(path, RecordKeys(), format_name=name)  # type: ignore[arg-type]
    ensure_indexes([path], RecordKeys(), format_name="webdataset")
    built: list[str] = []
    ensure_indexes([path], RecordKeys(), on_built=lambda shard, reason: built.append(reason))
    assert built == []  # what was found and what was said are the same
    with pytest.raises(BadShard, match="is not a TFRecord"):
        ensure_indexes([path], RecordKeys(), format_name="tfrecord")
    # Damaged in its first header, so that the content says nothing any more.
    path.write_bytes(b"\xff" * 300 + shards["webdataset"][300:])
    with pytest.raises(BadShard, match="--format"):
        build_index(path, RecordKeys())
    with pytest.raises(BadShard, match="not a tar archive, or damaged"):
        build_index(path, RecordKeys(), format_name="webdataset")


@pytest.mark.parametrize(
    ("head", "said"),
    [
        (b"\x1f\x8b\x08\x00" + bytes(20), "is compressed with gzip, and the gzip stream is damaged"),
        (b"\x78\x9c" + bytes(20), "is compressed with zlib, and the zlib stream is damaged"),
        (gzip.compress(b"some text", mtime=0), "is compressed with gzip, around not a TFRecord"),
        (b"\xff\xd8\xff\xe0" + bytes(20), "is an image and not a shard"),
        (b"\x28\xb5\x2f\xfd" + bytes(20), "is compressed with zstd"),
        (b"x", "is not a TFRecord, WebDataset"),
        (bytes(200), "is not a TFRecord, WebDataset"),
        (b"PARE" + bytes(50), "is not a whole Parquet file"),
    ],
)
def test_other_files_are_called_what_they_are(tmp_path: Path, head: bytes, said: str) -> None:
    path = tmp_path / "shard"
    path.write_bytes(head)
    with pytest.raises(BadShard, match=said):
        build_index(path, RecordKeys())


@pytest.mark.parametrize("name", ["tfrecord", "webdataset"])
@pytest.mark.parametrize("compression", ["gzip", "zlib"])
def test_compressed_shards_are_indexed_by_what_they_unpack_to(
    tmp_path: Path, shards: dict[str, bytes], name: str, compression: str
) -> None:
    plain, packed = tmp_path / "plain", tmp_path / "packed"
    plain.write_bytes(shards[name])
    packed.write_bytes(
        gzip.compress(shards[name], mtime=0) if compression == "gzip" else zlib.compress(shards[name])
    )
    assert detected(packed) == (name, compression)
    want, got = ensure_indexes([plain, packed], RecordKeys(), sequential=True)
    assert got.codec == compression
    assert got.offset.tolist() == want.offset.tolist()
    assert got.content == want.content
    for _ in range(2):  # with the index that is there, and without
        with pytest.raises(BadShard, match=f"is compressed with {compression}.*feeder rewrite"):
            Dataset.open("packed", [str(packed)])
        index_path(packed).unlink(missing_ok=True)
    assert not index_path(packed).exists()


def test_gzip_of_several_members_is_one_shard(tmp_path: Path, shards: dict[str, bytes]) -> None:
    data = shards["tfrecord"]
    path = tmp_path / "shard.gz"
    path.write_bytes(gzip.compress(data[:50], mtime=0) + gzip.compress(data[50:], mtime=0) + bytes(100))
    (index,) = ensure_indexes([path], RecordKeys(), sequential=True)
    assert index.label.tolist() == [0, 1, 2]
    assert index.damage is None


def test_a_damaged_stream_gives_what_was_before(
    tmp_path: Path, make_payload: Payload, framed: Callable[[bytes], bytes]
) -> None:
    data = b"".join(framed(make_payload(os.urandom(30_000), number + 1)) for number in range(10))
    whole = gzip.compress(data, mtime=0)
    path = tmp_path / "shard.gz"
    path.write_bytes(whole[: len(whole) // 2])
    (index,) = ensure_indexes([path], RecordKeys(), sequential=True)
    assert index.label.tolist() == [0, 1, 2, 3, -1]
    assert index.damage == "the gzip stream is cut short"
    hurt = bytearray(zlib.compress(data))
    hurt[-1] ^= 1
    path.write_bytes(hurt)
    (index,) = ensure_indexes([path], RecordKeys(), sequential=True)
    assert index.label.tolist()[:5] == list(range(5))
    assert index.damage is not None
    assert "the zlib stream is damaged" in index.damage


def test_keys_are_those_of_the_format(tmp_path: Path, shards: dict[str, bytes]) -> None:
    path = tmp_path / "shard"
    path.write_bytes(shards["parquet"])
    (index,) = ensure_indexes([path], RecordKeys(label_base=1))
    assert index.label.tolist() == [-1, 0, 1]
    with pytest.raises(BadShard, match="--image-key"):
        ensure_indexes([path], RecordKeys(image="image/encoded"))
    with pytest.raises(ConfigError, match="two names"):
        RecordKeys(image="x", label="x")


@pytest.mark.parametrize("name", ["tfrecord", "webdataset"])
def test_records_beyond_the_limit_are_one_bad_record(
    tmp_path: Path, shards: dict[str, bytes], name: str
) -> None:
    """The index stops before it takes memory for them."""
    path = tmp_path / "shard"
    path.write_bytes(shards[name])
    index = build_index(path, RecordKeys(), max_records=2)
    assert index.label.tolist() == [0, 1, -1]
    assert index.damage == "has more than 2 records: cut it into smaller shards"
    assert build_index(path, RecordKeys(), max_records=3).damage is None


def test_a_shard_that_says_it_has_too_many_records_is_refused(
    tmp_path: Path, shards: dict[str, bytes]
) -> None:
    path = tmp_path / "shard"
    path.write_bytes(shards["parquet"])
    folder = tmp_path / "photos"
    for number in range(3):
        (folder / "cat").mkdir(parents=True, exist_ok=True)
        (folder / "cat" / f"{number}.jpg").write_bytes(b"image")
    for shard, said in ((path, "has 3 rows, more than 2"), (folder, "has 3 images, more than 2")):
        with pytest.raises(BadShard, match=said):
            build_index(shard, RecordKeys(), max_records=2)
        assert len(build_index(shard, RecordKeys(), max_records=3)) == 3
