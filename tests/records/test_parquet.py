"""Parquet shards of every layout that writers make, and damaged ones."""

from __future__ import annotations

import contextlib
import os
import random
import threading
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feeder.errors import BadRecord, BadShard, ConfigError
from feeder.records import Dataset, RecordKeys, access
from feeder.records.access import PageCache
from feeder.records.encodings import BadPage, rle_hybrid, thrift_struct
from feeder.records.formats import build_index
from feeder.records.pages import Chunk, values

STRUCT = pa.struct({"bytes": pa.binary(), "path": pa.string()})


def image(number: int, size: int = 3000) -> bytes:
    return random.Random(number).randbytes(size + number % 97)


def table(count: int, size: int = 3000, kind: pa.DataType = STRUCT) -> pa.Table:
    images: list[Any] = [image(number, size) for number in range(count)]
    if kind == STRUCT:
        images = [{"bytes": data, "path": f"{number}.jpg"} for number, data in enumerate(images)]
    return pa.table({"image": pa.array(images, kind), "label": pa.array(range(count), pa.int64())})


def check(path: Path, count: int, size: int = 3000) -> None:
    """Every record, in random order, is the one that was written."""
    with Dataset.open("parquet", [str(path)]) as dataset:
        assert len(dataset) == count
        assert dataset.bad == 0
        for number in random.Random(0).sample(range(count), count):
            record = dataset.read(number)
            assert record.label == number
            assert bytes(record.image) == image(number, size)


@pytest.mark.parametrize("codec", ["none", "snappy", "zstd", "gzip", "lz4", "brotli"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("dictionary", [True, False])
@pytest.mark.parametrize("kind", [STRUCT, pa.binary(), pa.large_binary()], ids=["struct", "binary", "large"])
def test_every_layout(tmp_path: Path, codec: str, version: str, dictionary: bool, kind: pa.DataType) -> None:
    path = tmp_path / "train-00000-of-00001.parquet"
    pq.write_table(
        table(120, kind=kind),
        path,
        compression=codec,
        data_page_version=version,
        use_dictionary=dictionary,
        dictionary_pagesize_limit=60_000,  # some values in the dictionary, then plain pages
        data_page_size=20_000,
        write_batch_size=4,
        row_group_size=50,
    )
    check(path, 120)


@pytest.mark.parametrize("codec", ["none", "snappy"])
@pytest.mark.parametrize("dictionary", [True, False])
def test_one_record_is_one_small_read(tmp_path: Path, codec: str, dictionary: bool) -> None:
    """Of a page of 20 MB: not compressed, or in Snappy's blocks, in a dictionary or not."""
    path = tmp_path / "shard"
    pq.write_table(
        table(200, 100_000),
        path,
        compression=codec,
        use_dictionary=dictionary,
        dictionary_pagesize_limit=1 << 30,
        data_page_size=1 << 30,
    )
    with Dataset.open("parquet", [str(path)]) as dataset:
        assert dataset.shards[0].slow is None
        for number in (0, 99, 199):
            before = dataset.bytes_read
            assert bytes(dataset.read(number).image) == image(number, 100_000)
            assert dataset.bytes_read - before <= 100_100 + (2 * 77_000 if codec == "snappy" else 0)


def test_compressible_images_in_snappy(tmp_path: Path) -> None:
    images = [bytes(range(256)) * 1000 + b"x" * number + bytes(100_000) for number in range(20)]
    path = tmp_path / "shard"
    pq.write_table(pa.table({"image": images, "label": list(range(20))}), path, compression="snappy")
    with Dataset.open("parquet", [str(path)]) as dataset:
        assert [bytes(dataset.read(number).image) for number in range(20)] == images


def test_other_codecs_cost_a_page_which_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "shard"
    pq.write_table(table(200, 100_000), path, compression="zstd", data_page_size=1 << 30)
    size = path.stat().st_size
    with Dataset.open("parquet", [str(path)]) as dataset:
        slow = dataset.shards[0].slow
        assert slow is not None
        assert "ZSTD pages" in slow
        assert "feeder rewrite" in slow
        for number in random.Random(1).choices(range(200), k=100):
            assert bytes(dataset.read(number).image) == image(number, 100_000)
        assert dataset.bytes_read <= size + 100 * 100_000


def test_bytes_hurt_on_the_way_into_the_cache_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "shard"
    pq.write_table(table(200, 10_000), path, compression="zstd", use_dictionary=False)
    real, calls = access.unpack_page, []

    def hurt_first(stored: bytes, unpacked: int, codec: str) -> memoryview:
        page = real(stored, unpacked, codec)
        calls.append(unpacked)
        return memoryview(bytes(len(page))) if len(calls) == 1 else page

    monkeypatch.setattr(access, "unpack_page", hurt_first)
    with Dataset.open("parquet", [str(path)]) as dataset:
        assert [bytes(dataset.read(number).image) for number in range(200)] == [
            image(number, 10_000) for number in range(200)
        ]
    assert len(calls) == 2  # one page, and once more


def test_the_cache_of_pages_is_bounded() -> None:
    cache = PageCache(1000)
    for number in range(10):
        cache.put((Path("shard"), number), memoryview(bytes(300)))
    cache.put((Path("shard"), 100), memoryview(bytes(1001)))
    kept = [number for number in range(101) if cache.get((Path("shard"), number)) is not None]
    assert kept == [7, 8, 9]


def test_nulls_are_bad_records_and_no_labels(tmp_path: Path) -> None:
    path = tmp_path / "shard"
    good = {"bytes": b"image", "path": "p"}
    rows = [good, None, {"bytes": None, "path": "/other/host/1.jpg"}, {"bytes": b"", "path": "p"}, good, good]
    pq.write_table(
        pa.table({"image": pa.array(rows, STRUCT), "label": pa.array([0, 1, 2, 3, None, -5], pa.int32())}),
        path,
    )
    with Dataset.open("parquet", [str(path)]) as dataset:
        assert dataset.bad == 5
        assert dataset.read(0).label == 0
        for number, said in enumerate(
            ("image is null", "not embedded", "image is empty", "label is null", "is -5; labels here start"),
            1,
        ):
            with pytest.raises(BadRecord, match=said):
                dataset.read(number)


def test_crcs_are_those_of_the_images(tmp_path: Path) -> None:
    for codec in ("none", "snappy", "zstd"):
        path = tmp_path / codec
        pq.write_table(table(5), path, compression=codec)
        assert build_index(path, RecordKeys()).crc.tolist() == [
            google_crc32c.value(image(n)) for n in range(5)
        ]


def test_the_same_images_are_the_same_content_however_they_are_kept(tmp_path: Path) -> None:
    contents = set()
    for codec in ("none", "snappy", "zstd"):
        for groups in (3, 100):
            path = tmp_path / f"{codec}{groups}"
            pq.write_table(table(20), path, compression=codec, row_group_size=groups)
            contents.add(build_index(path, RecordKeys()).content)
    assert len(contents) == 1


@pytest.mark.parametrize(
    ("columns", "keys", "said"),
    [
        ({"img": [b"x"], "label": [1]}, RecordKeys(), "no column 'image' of images: it has img, label"),
        ({"image": [b"x"], "fine": [1]}, RecordKeys(), "no column 'label' of labels: it has image, fine"),
        ({"image": [b"x"], "label": ["a"]}, RecordKeys(), "'label' of labels is string, not integers"),
        ({"image": [b"x"], "label": [True]}, RecordKeys(), "'label' of labels is bool, not integers"),
        ({"image": [[b"x"]], "label": [1]}, RecordKeys(), "column 'image' is list<.*>, not binary"),
        ({"image": [{"path": "x"}], "label": [1]}, RecordKeys(), "column 'image' is struct<.*>, not binary"),
        ({"image": [1], "label": [1]}, RecordKeys(), "column 'image' is int64, not binary"),
        ({"a\nb": [b"x"], "label": [1]}, RecordKeys(), r"it has a\\nb, label"),
        ({"image": [b"x"], "label": [1]}, RecordKeys(image="img"), "no column 'img'"),
    ],
)
def test_other_columns_are_an_error_that_lists_them(
    tmp_path: Path, columns: dict[str, Any], keys: RecordKeys, said: str
) -> None:
    path = tmp_path / "shard"
    pq.write_table(pa.table(columns), path)
    with pytest.raises(BadShard, match=said):
        build_index(path, keys)


@pytest.mark.parametrize("names", [["image", "label", "label"], ["image", "image", "label"]])
def test_a_name_that_two_columns_have_is_refused(tmp_path: Path, names: list[str]) -> None:
    columns = [pa.array([b"x"] if name == "image" else [1]) for name in names]
    pq.write_table(pa.Table.from_arrays(columns, names=names), tmp_path / "shard")
    with pytest.raises(BadShard, match=f"2 columns are called '{max(names, key=names.count)}'"):
        build_index(tmp_path / "shard", RecordKeys())


def test_an_encoding_that_is_not_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "shard"
    pq.write_table(
        table(5, kind=pa.binary()),
        path,
        use_dictionary=False,
        column_encoding={"image": "DELTA_LENGTH_BYTE_ARRAY", "label": "PLAIN"},
    )
    with pytest.raises(BadShard, match="column 'image' is encoded as DELTA_LENGTH_BYTE_ARRAY"):
        build_index(path, RecordKeys())


def test_a_cut_file_is_no_parquet_file(tmp_path: Path) -> None:
    path = tmp_path / "shard"
    pq.write_table(table(5), path)
    whole = path.read_bytes()
    for cut in (4, 5, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(BadShard, match="is not a whole Parquet file"):
            build_index(path, RecordKeys())


@pytest.mark.parametrize("codec", ["none", "snappy", "zstd"])
def test_a_damaged_page_costs_its_row_group_and_is_named(tmp_path: Path, codec: str) -> None:
    path = tmp_path / "shard"
    pq.write_table(
        table(60),
        path,
        compression=codec,
        row_group_size=20,
        data_page_size=10_000,
        write_batch_size=4,
        use_dictionary=False,
    )
    column = pq.ParquetFile(path).metadata.row_group(1).column(0)
    hurt = bytearray(path.read_bytes())
    hurt[column.data_page_offset] ^= 0xFF
    path.write_bytes(hurt)
    with Dataset.open("parquet", [str(path)]) as dataset:
        assert len(dataset) == 60
        assert dataset.bad == 20
        for number in (*range(20), *range(40, 60)):
            assert bytes(dataset.read(number).image) == image(number)
        with pytest.raises(BadRecord, match=f"image column: page at offset {column.data_page_offset} "):
            dataset.read(20)


@pytest.mark.parametrize("codec", ["none", "snappy", "zstd"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_checksums_of_pages_are_believed_where_there_are_any(
    tmp_path: Path, codec: str, version: str
) -> None:
    path = tmp_path / "shard"
    pq.write_table(
        table(60, 400_000),
        path,
        compression=codec,
        data_page_version=version,
        write_page_checksum=True,
        row_group_size=20,
    )
    whole = path.read_bytes()
    check(path, 60, 400_000)
    column = pq.ParquetFile(path).metadata.row_group(1).column(0)
    hurt = bytearray(whole)
    start = column.dictionary_page_offset or column.data_page_offset
    hurt[start + column.total_compressed_size // 2] ^= 1  # in an image
    path.write_bytes(hurt)
    with Dataset.open("parquet", [str(path)]) as dataset:
        assert 0 < dataset.bad <= 20
        with pytest.raises(BadRecord, match=r"has the crc32 .*not what its header says"):
            dataset.read(39)


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_any_flipped_bit_gives_the_right_image_or_an_error(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Indexed before the damage: the crc tells. Afterwards: Parquet's own checks may miss it, no more."""
    folder = tmp_path_factory.mktemp("parquet")
    path = folder / "shard"
    codec = data.draw(st.sampled_from(["none", "snappy", "zstd"]))
    pq.write_table(table(6, 200), path, compression=codec, data_page_size=500, write_batch_size=1)
    whole = path.read_bytes()
    bit = data.draw(st.integers(0, 8 * len(whole) - 1))
    hurt = bytearray(whole)
    hurt[bit // 8] ^= 1 << bit % 8
    state = os.stat(path)
    with Dataset.open("before", [str(path)]) as dataset:
        with open(path, "r+b") as file:
            file.write(hurt)
        os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
        for number in range(6):
            with contextlib.suppress(BadRecord, OSError):
                assert bytes(dataset.read(number).image) == image(number, 200)
    with contextlib.suppress(BadShard, ConfigError), Dataset.open("after", [str(path)]) as dataset:
        for number in range(len(dataset)):
            with contextlib.suppress(BadRecord):
                dataset.read(number)


def test_the_memory_of_indexing_and_reading_is_bounded(tmp_path: Path) -> None:
    """One row group and page of 150 MB, not compressed and in Snappy: an image at a time is held."""
    data = table(150, 1_000_000)
    process = psutil.Process()
    for codec in ("none", "snappy"):
        path = tmp_path / codec
        pq.write_table(data, path, compression=codec, use_dictionary=False, data_page_size=1 << 30)
        most = [0]
        stop = threading.Event()

        def watch(most: list[int] = most, stop: threading.Event = stop) -> None:
            while not stop.wait(0.002):
                most[0] = max(most[0], process.memory_info().rss)

        before = process.memory_info().rss
        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            with Dataset.open("parquet", [str(path)]) as dataset:
                for number in range(0, 150, 7):
                    dataset.read(number)
        finally:
            stop.set()
            watcher.join(10)
        assert most[0] - before <= 40 << 20


@given(st.integers(0, 12), st.lists(st.tuples(st.booleans(), st.integers(1, 40)), max_size=8), st.randoms())
@settings(max_examples=200, deadline=None)
def test_runs_and_packed_numbers(width: int, runs: list[tuple[bool, int]], source: random.Random) -> None:
    """The hybrid encoding, written by the book and read back."""
    data = bytearray()
    want: list[int] = []
    for packed, count in runs:
        if packed:
            count = -(-count // 8) * 8
            numbers = [source.randrange(1 << width) for _ in range(count)]
            data.append(count // 8 << 1 | 1)
            total = sum(number << width * place for place, number in enumerate(numbers))
            data += total.to_bytes(count * width // 8, "little")
        else:
            numbers = [source.randrange(1 << width)] * count
            data += bytes([count << 1]) + numbers[0].to_bytes(-(-width // 8), "little")
        want += numbers
    assert rle_hybrid(bytes(data), width, len(want)).tolist() == want
    with pytest.raises(BadPage):
        rle_hybrid(bytes(data), width, len(want) + 1)


@given(st.binary(max_size=200), st.integers(0, 40), st.integers(0, 10_000))
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_runs_or_an_error(data: bytes, width: int, count: int) -> None:
    with contextlib.suppress(BadPage):
        assert len(rle_hybrid(data, width, count)) == count


@given(st.binary(max_size=300))
@settings(max_examples=500, deadline=None)
def test_any_bytes_are_a_header_or_an_error(data: bytes) -> None:
    try:
        _, size = thrift_struct(memoryview(data), 0)
    except BadPage:
        return
    assert size > 0


@given(st.binary(max_size=600), st.sampled_from(["UNCOMPRESSED", "SNAPPY", "ZSTD", "GZIP", "LZ4"]))
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_pages_or_an_error(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, codec: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "pages"
    path.write_bytes(data)
    fd = os.open(path, os.O_RDONLY)
    try:
        with contextlib.suppress(BadPage):
            assert len(list(values(fd, "pages", Chunk(0, len(data), 100, codec, 1)))) == 100
    finally:
        os.close(fd)


def test_rows_that_cannot_be_are_refused(tmp_path: Path) -> None:
    """Nulls cost nothing, so a small file could claim any number of them."""
    path = tmp_path / "shard"
    count = 3 << 20
    nulls = pa.nulls(count, pa.binary())
    pq.write_table(pa.table({"image": nulls, "label": pa.array(np.zeros(count, np.int32))}), path)
    with pytest.raises(BadShard, match=f"says it has {count} rows in"):
        build_index(path, RecordKeys())
