"""Rewriting shards that cannot be read record by record."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from odd_corpus import Corpus

from feeder.cli import main
from feeder.errors import BadShard, ConfigError
from feeder.records import Dataset, RecordKeys
from feeder.records.rewrite import rewrite

Payload = Callable[[bytes, int], bytes]
Write = Callable[[Path, Sequence[bytes]], Path]


@pytest.fixture
def shard(tmp_path: Path, make_payload: Payload, write_shard: Write) -> Path:
    payloads = [make_payload(b"image %d" % number, 1 + number) for number in range(5)]
    return write_shard(tmp_path / "plain", payloads)


def read_all(path: Path, keys: RecordKeys = RecordKeys()) -> list[tuple[bytes, int]]:  # noqa: B008
    with Dataset.open("new", [str(path)], keys=keys, build=False) as dataset:
        return [(bytes(image), label) for image, label, *_ in map(dataset.read, range(len(dataset)))]


def test_compressed_shards_are_unpacked_as_they_are(shard: Path, tmp_path: Path) -> None:
    (tmp_path / "a.tfrecord.gz").write_bytes(gzip.compress(shard.read_bytes()))
    (tmp_path / "b.zlib").write_bytes(zlib.compress(shard.read_bytes()))
    dst = tmp_path / "new"
    result = rewrite([str(tmp_path / "a.tfrecord.gz"), str(tmp_path / "b.zlib")], dst)
    assert [path.name for path in result.shards] == ["a.tfrecord", "b"]
    assert (result.records, result.bad) == (10, [])
    for path in result.shards:
        assert path.read_bytes() == shard.read_bytes()
        assert read_all(path) == [(b"image %d" % number, number) for number in range(5)]
    assert not [path for path in dst.iterdir() if path.name.startswith(".")]


def test_every_odd_compressed_shard_gives_its_records(corpus: Corpus, tmp_path: Path) -> None:
    found = [
        corpus.folder / name
        for name in (
            "tfrecord/ok.tfrecord.gz",
            "tfrecord/gzip_under_plain_name.tfrecord",
            "tfrecord/zlib.tfrecord",
            "webdataset/gzip.tar.gz",
            "webdataset/gzip_under_tar_name.tar",
        )
    ]
    keys = RecordKeys(label_base=0)
    result = rewrite([str(path) for path in found], tmp_path, keys=keys)
    for path in result.shards:
        assert [label for _, label in read_all(path, keys)] == [0, 1, 2, 3, 4, 5]


def test_other_formats_become_tfrecords_without_their_bad_records(tmp_path: Path) -> None:
    images = [b"zero", None, b"two"]
    pq.write_table(pa.table({"img": images, "label": [0, 1, 2]}), tmp_path / "x.parquet", compression="zstd")
    photos = tmp_path / "photos"
    for name in ("ant", "bee"):
        (photos / name).mkdir(parents=True)
        (photos / name / "0.jpg").write_bytes(name.encode())
    dst = tmp_path / "new"
    result = rewrite([str(tmp_path / "x.parquet")], dst, keys=RecordKeys(image="img"))
    assert read_all(dst / "x.tfrecord") == [(b"zero", 0), (b"two", 2)]
    assert [(error.shard, error.index, error.reason.partition(": ")[2]) for error in result.bad] == [
        ("x.parquet", 1, "image is null: there is none")
    ]
    rewrite([str(photos)], dst)
    assert sorted(read_all(dst / "photos.tfrecord")) == [(b"ant", 0), (b"bee", 1)]


def test_nothing_is_replaced_by_accident(shard: Path, tmp_path: Path) -> None:
    packed = tmp_path / "a.gz"
    packed.write_bytes(gzip.compress(shard.read_bytes()))
    (tmp_path / "a.zz").write_bytes(zlib.compress(shard.read_bytes()))
    with pytest.raises(ConfigError, match="would both become"):
        rewrite([str(packed), str(tmp_path / "a.zz")], tmp_path / "new")
    (tmp_path / "a").write_bytes(b"mine")
    with pytest.raises(ConfigError, match="is there already"):
        rewrite([str(packed)], tmp_path)
    assert (tmp_path / "a").read_bytes() == b"mine"
    rewrite([str(packed)], tmp_path, force=True)
    assert (tmp_path / "a").read_bytes() == shard.read_bytes()
    same = tmp_path / "packed"
    packed.rename(same)
    with pytest.raises(ConfigError, match="replaced by itself"):
        rewrite([str(same)], tmp_path, force=True)


def test_a_damaged_stream_leaves_nothing(shard: Path, tmp_path: Path) -> None:
    packed = tmp_path / "a.gz"
    packed.write_bytes(gzip.compress(shard.read_bytes())[:-12])
    with pytest.raises(BadShard, match=r"the gzip stream is cut short, .* bytes behind its start"):
        rewrite([str(packed)], tmp_path / "new")
    assert list((tmp_path / "new").iterdir()) == []


def test_what_unpacks_without_end_is_stopped(tmp_path: Path, framed: Callable[[bytes], bytes]) -> None:
    packed = tmp_path / "a.gz"
    packed.write_bytes(gzip.compress(framed(bytes(64 << 20))))
    with pytest.raises(BadShard, match="more than 200 times its size"):
        rewrite([str(packed)], tmp_path / "new")
    assert list((tmp_path / "new").iterdir()) == []


def test_the_command(shard: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    packed = tmp_path / "a.gz"
    packed.write_bytes(gzip.compress(shard.read_bytes()))
    assert main(["index", str(packed)]) == 0
    assert "a worker reads it after `feeder rewrite`" in capsys.readouterr().err
    assert main(["verify", str(packed)]) == 2
    assert f"feeder rewrite {packed} FOLDER" in capsys.readouterr().err
    assert main(["rewrite", str(packed), str(tmp_path / "new")]) == 0
    assert "5 records in 1 shard" in capsys.readouterr().out
    assert main(["index", str(tmp_path / "new")]) == 0


def test_the_meaning_of_labels_comes_along(shard: Path, tmp_path: Path) -> None:
    """From beside the shards, and from the names of class folders; never from two places that differ."""
    for name, classes in (("one", '{"ant": 0}\n'), ("other", '{"bee": 0}\n')):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.tfrecord.gz").write_bytes(gzip.compress(shard.read_bytes()))
        (tmp_path / name / "labels.json").write_text(classes)
    dst = tmp_path / "new"
    rewrite([str(tmp_path / "one" / "a.tfrecord.gz")], dst)
    assert (dst / "labels.json").read_text() == '{"ant": 0}\n'
    rewrite([str(tmp_path / "one" / "a.tfrecord.gz")], dst, force=True)
    (tmp_path / "other" / "a.tfrecord.gz").rename(tmp_path / "other" / "b.tfrecord.gz")
    other = [str(tmp_path / "other" / "b.tfrecord.gz")]
    with pytest.raises(ConfigError, match=r"new/labels.json: is there and has other classes than .*/other/"):
        rewrite(other, dst)
    with pytest.raises(ConfigError, match="their labels mean different classes"):
        rewrite([str(tmp_path / "one" / "a.tfrecord.gz"), *other], tmp_path / "both")
    assert not (tmp_path / "both").exists()
    rewrite(other, dst, force=True)
    assert (dst / "labels.json").read_text() == '{"bee": 0}\n'

    photos = tmp_path / "photos"
    for name in ("wasp", "moth"):
        (photos / name).mkdir(parents=True)
        (photos / name / "0.jpg").write_bytes(name.encode())
    rewrite([str(photos)], tmp_path / "photo-shards")
    assert json.loads((tmp_path / "photo-shards" / "labels.json").read_text()) == {"moth": 0, "wasp": 1}
    without = rewrite([str(shard)], tmp_path / "without")
    assert [path.name for path in without.shards] == ["plain.tfrecord"]
    assert not (tmp_path / "without" / "labels.json").exists()
