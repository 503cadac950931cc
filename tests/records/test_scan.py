"""TFRecords scanned natively and by halves, against the scan in Python from start to end."""

from __future__ import annotations

import dataclasses
import itertools
import os
import random
import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import feeder.records
from feeder.errors import BadShard, StorageError
from feeder.records import RecordKeys, formats, scan, stream
from feeder.records.build import ensure_indexes
from feeder.records.example import encode_example
from feeder.records.formats import build_index
from feeder.records.index import IndexBuilder, ShardIndex
from feeder.records.sidecar import index_path
from feeder.records.stream import Torn, open_window

_frames = pytest.importorskip("feeder.records._frames", reason="the native scanner is not built")

KEYS = RecordKeys()
NATIVE = Path(feeder.records.__file__).parent / "native"

CHOICES = 32
"""Bytes behind the payloads in a file of the fuzz corpus; see native/fuzz/fuzz_frames.cpp."""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scan") / "shard"


def varint(value: int) -> bytes:
    value &= 2**64 - 1
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def delimited(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def outcome(shard: Path, keys: RecordKeys = KEYS, **how: Any) -> Any:
    """All of an index, or the error."""
    try:
        index = build_index(shard, keys, **how)
    except BadShard as error:
        return str(error)
    return {
        name: (value.dtype, value.tolist()) if isinstance(value, np.ndarray) else value
        for name, value in (
            (field.name, getattr(index, field.name)) for field in dataclasses.fields(ShardIndex)
        )
    }


def in_python(shard: Path, keys: RecordKeys = KEYS, **how: Any) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "NATIVE", False)
        return outcome(shard, keys, **how)


@pytest.mark.parametrize("way", _frames.WAYS)
@given(data=st.binary(min_size=1, max_size=60), times=st.integers(1, 700), odd=st.integers(0, 9))
@settings(max_examples=100)
def test_every_way_gives_the_crc32c(
    framed: Callable[[bytes], bytes], way: str, data: bytes, times: int, odd: int
) -> None:
    payload = encode_example({"image/encoded": data * times, "image/class/label": 1})
    shard = np.frombuffer(bytes(odd) + framed(payload), np.uint8)
    rows = np.zeros((2, 7), np.int64)
    scanner = _frames.Scanner("image/encoded", "image/class/label", 1, 1 << 20, way)
    assert scanner.scan(shard, odd, len(shard), 0, rows) == (1, len(shard) - odd, 12)
    assert rows[0, 3] == google_crc32c.value(payload)


def test_every_way_of_other_processors_gives_the_crc32c(tmp_path: Path) -> None:
    compiler, emulator = shutil.which("aarch64-linux-gnu-g++"), shutil.which("qemu-aarch64-static")
    if compiler is None or emulator is None:
        pytest.skip("no aarch64-linux-gnu-g++ and qemu-aarch64-static to run the instruction of ARMv8")
    program, common = str(tmp_path / "check"), [compiler, "-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror"]
    source, special = Path(__file__).with_name("check_crc32c.cpp"), tmp_path / "special.o"
    instruction = [*common, "-march=armv8-a+crc", "-c", str(NATIVE / "crc32c_instruction.cpp"), "-o"]
    subprocess.run([*instruction, str(special)], check=True, timeout=100)
    everywhere = [str(source), str(NATIVE / "crc32c.cpp"), str(special)]
    subprocess.run([*common, f"-I{NATIVE}", "-static", *everywhere, "-o", program], check=True, timeout=100)
    printed = subprocess.run([emulator, program], check=True, capture_output=True, text=True, timeout=100)
    expected = [
        f"{google_crc32c.value(bytes(7 * i & 0xFF for i in range(size))):08x}"
        for size in (0, 1, 7, 8, 9, 767, 768, 769, 5000, 12288, 100001)
    ]
    lines = [line.split() for line in printed.stdout.splitlines()]
    assert [name for name, *_ in lines] == ["plain", "instruction"]
    assert all(crcs == expected for _, *crcs in lines)


def test_nothing_usual_is_left_to_python(
    tmp_path: Path,
    make_payload: Callable[..., bytes],
    write_shard: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither what protobuf writes nor what `feeder pack` does, whatever the reads."""
    images = [os.urandom(size) for size in (1, 100, 127, 128, 16_383, 16_384, 70_000)]
    payloads = [make_payload(image, number + 1) for number, image in enumerate(images)]
    payloads += [
        encode_example({"image/class/label": label, "image/encoded": b"J", "image/height": 1 << 40})
        for label in (1, 127, 128, 1000, 2**31)
    ]
    shard = write_shard(tmp_path / "shard", payloads * 3)
    expected = in_python(shard)
    monkeypatch.setattr(scan, "parse_example", None)
    for read_bytes in (1000, stream.READ_BYTES):
        monkeypatch.setattr(stream, "READ_BYTES", read_bytes)
        assert outcome(shard) == expected


@pytest.mark.parametrize("size", [0, 1, 7, 255, 1020, 110_003])
def test_the_crc32c_of_any_buffer_is_that_of_google(size: int) -> None:
    data = np.random.default_rng(size).integers(0, 256, size + 1, np.uint8)
    expected = google_crc32c.value(data[1:].tobytes())
    for buffer in (data[1:].tobytes(), memoryview(data)[1:], data[1:], bytearray(data[1:])):
        assert _frames.crc32c(buffer) == expected


@pytest.mark.parametrize("wrong", ["text", 3, None, np.zeros(8, np.uint8)[::2]])
def test_what_is_no_buffer_has_no_crc32c(wrong: Any) -> None:
    with pytest.raises((TypeError, BufferError, ValueError)):
        _frames.crc32c(wrong)
    assert _frames.crc32c(b"123456789") == 0xE3069283  # what every catalogue of CRCs has for it


def test_arguments_are_checked() -> None:
    data, rows = np.zeros(100, np.uint8), np.zeros((2, 7), np.int64)
    scan = _frames.Scanner("image", "label", 1, 1 << 20).scan
    good = [data, 0, 100, 0, rows]
    assert scan(*good) == (0, 0, 0)
    for place, bad in ((2, 101), (1, 101)):
        with pytest.raises(ValueError, match="within"):
            scan(*good[:place], bad, *good[place + 1 :])
    for place, wrong in ((0, data[::2]), (0, rows), (1, -1), (4, rows.astype(np.float64)), (4, rows[:, :6])):
        with pytest.raises(TypeError):
            scan(*good[:place], wrong, *good[place + 1 :])
    rows.flags.writeable = False
    with pytest.raises(TypeError):
        scan(*good)
    for wrong in ((1 << 32, 1), (1, 1 << 63), (1, 1, "no such")):
        with pytest.raises(ValueError, match=r"bits|no such"):
            _frames.Scanner("image", "label", *wrong)


NUMBERS = [*range(-3, 6), 127, 128, 2**31 - 1, 2**31, 2**31 + 1, 2**63 - 1, -(2**63)]
OTHER_KEYS = ["image/format", "", "i" * 127, "i" * 128, "i" * 300]


def a_feature(rng: random.Random, kind: str) -> bytes:
    """Of an image or a label; or of other kinds, or none."""
    count = rng.choice([1] * 10 + [0, 2])
    if kind == "image/encoded":
        return b"".join(delimited(1, delimited(1, rng.randbytes(rng.randrange(300)))) for _ in range(count))
    labels = [varint(rng.choice(NUMBERS)) for _ in range(count)]
    if kind == "image/class/label":
        way = rng.randrange(4)
        if way == 0:
            return b"".join(delimited(3, delimited(1, label)) for label in labels)
        if way == 1:
            return delimited(3, b"".join(b"\x08" + label for label in labels))
        return delimited(3, delimited(1, b"".join(labels)))
    return rng.choice([delimited(2, delimited(1, bytes(8))), rng.randbytes(9), b""])


def an_entry(rng: random.Random, key: str) -> bytes:
    kind = key if rng.randrange(20) else rng.choice(["image/encoded", "image/class/label", "other"])
    parts = [delimited(1, key.encode()), delimited(2, a_feature(rng, kind))]
    odd = rng.randrange(40)
    if odd == 0:
        parts.reverse()
    elif odd == 1:
        parts.pop()
    elif odd == 2:
        parts.append(delimited(rng.randint(1, 3), rng.randbytes(5)))
    return delimited(2 if odd == 3 else 1, b"".join(parts))


def an_example(rng: random.Random) -> bytes:
    """A payload: most often an Example with an image and a label, sometimes damaged."""
    few = [1] * 10 + [0, 2]
    keys = ["image/encoded"] * rng.choice(few) + ["image/class/label"] * rng.choice(few)
    keys += rng.choices(OTHER_KEYS[: rng.choice([2, 3, 5])], k=rng.randrange(3))
    rng.shuffle(keys)
    content = [an_entry(rng, key) for key in keys]
    payload = bytearray(delimited(1, b"".join(content)))
    if rng.randrange(10) == 0:
        payload = bytearray(b"".join(delimited(1, part) for part in content))
    if rng.randrange(6) == 0 and payload:
        place = rng.randrange(len(payload))
        payload[place : place + rng.randrange(3)] = rng.randbytes(rng.randrange(3))
    return bytes(payload)


@given(
    st.integers(0, 2**64),
    st.integers(0, 8),
    st.sampled_from(
        [KEYS, RecordKeys(label_base=-2), RecordKeys(label_base=2**31 - 1), RecordKeys("i" * 128)]
    ),
    st.integers(1, 700),
    st.integers(1, 4),
    st.data(),
)
@settings(max_examples=400, deadline=None)
def test_the_same_index_of_any_bytes(
    file: Path,
    framed: Callable[[bytes], bytes],
    seed: int,
    records: int,
    keys: RecordKeys,
    read_bytes: int,
    rows: int,
    data: st.DataObject,
) -> None:
    """Whatever the Examples, with flipped bits and cuts, records longer than a read, too long or too many."""
    rng = random.Random(seed)  # Hypothesis by itself draws the same few Examples over and over
    shard = bytearray(b"".join(framed(an_example(rng)) for _ in range(records)))
    damage = data.draw(st.sampled_from(["no", "no", "flip", "cut"]))
    if damage == "flip" and shard:
        bit = data.draw(st.integers(0, 8 * len(shard) - 1))
        shard[bit // 8] ^= 1 << bit % 8
    elif damage == "cut":
        del shard[data.draw(st.integers(0, len(shard))) :]
    file.write_bytes(shard)
    limits: dict[str, Any] = {"format_name": "tfrecord"}
    if data.draw(st.integers(0, 3)) == 0:
        limits["max_records"] = data.draw(st.integers(1, 6))
    if data.draw(st.integers(0, 3)) == 0:
        limits["max_record_bytes"] = data.draw(st.integers(0, 300))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "READ_BYTES", read_bytes)
        patch.setattr(scan, "ROWS", rows)
        assert outcome(file, keys, **limits) == in_python(file, keys, **limits)


def test_the_same_index_of_what_fuzzing_found(file: Path, framed: Callable[[bytes], bytes]) -> None:
    corpus = sorted((NATIVE / "fuzz/corpus/frames").iterdir())
    assert corpus
    good = 0
    for seed in corpus:
        data = seed.read_bytes()
        content, choices = data[:-CHOICES], data[-CHOICES:]
        count = 1 + choices[0] % 4
        ends = [len(content) * number // count for number in range(count + 1)]
        file.write_bytes(b"".join(framed(content[a:b]) for a, b in itertools.pairwise(ends)))
        for keys in (KEYS, RecordKeys("i", "l", -3), RecordKeys("image", "label", 2**31 - 1)):
            found = outcome(file, keys)
            assert found == in_python(file, keys)
            good += any(label >= 0 for label in found["label"][1])
    assert good > len(corpus) / 4


def by_halves(
    shard: Path, middle: int, builder: IndexBuilder, advance: Callable[[int], object] | None
) -> Torn | None:
    fd = os.open(shard, os.O_RDONLY)
    try:
        scan.scan_halves(fd, str(shard), middle, KEYS.of("tfrecord"), builder, advance=advance)
    except Torn as torn:
        return torn
    finally:
        os.close(fd)
    return None


@given(st.lists(st.binary(max_size=60), min_size=1, max_size=6), st.integers(1, 7), st.data())
@settings(max_examples=300, deadline=None)
def test_halves_are_the_whole_wherever_they_meet(
    file: Path,
    make_payload: Callable[..., bytes],
    framed: Callable[[bytes], bytes],
    images: list[bytes],
    most: int,
    data: st.DataObject,
) -> None:
    """At a record's start, within one, in one that holds others, behind damage; bytes are counted once."""
    records = [framed(make_payload(image, number)) for number, image in enumerate(images)]
    records.insert(data.draw(st.integers(0, len(records))), framed(make_payload(b"".join(records), 1)))
    shard = bytearray(b"".join(records))
    if data.draw(st.integers(0, 3)) == 0:
        bit = data.draw(st.integers(0, 8 * len(shard) - 1))
        shard[bit // 8] ^= 1 << bit % 8
    file.write_bytes(shard)
    starts = [sum(map(len, records[:count])) for count in range(1, len(records))] or [1]
    middle = data.draw(st.sampled_from(starts) | st.integers(1, len(shard) - 1))
    whole, halves = IndexBuilder(most), IndexBuilder(most)
    counted: list[int] = []
    fd = os.open(file, os.O_RDONLY)
    try:
        expected: Torn | BadShard | None = None
        try:
            scan.scan_tfrecord(open_window(fd, str(file)), KEYS.of("tfrecord"), whole)
        except (Torn, BadShard) as error:
            expected = error
    finally:
        os.close(fd)
    if isinstance(expected, BadShard):
        with pytest.raises(BadShard):
            by_halves(file, middle, halves, counted.append)
        return
    torn = by_halves(file, middle, halves, counted.append)
    assert halves.rows.tolist() == whole.rows.tolist()
    assert str(torn) == str(expected)
    assert torn is not None or sum(counted) == len(shard)


def test_a_shard_is_halved_where_a_thread_is_to_spare(
    tmp_path: Path,
    make_payload: Callable[..., bytes],
    write_shard: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = random.Random(1)
    payloads = [make_payload(rng.randbytes(rng.randrange(1, 9000)), 1 + number) for number in range(60)]
    shard = write_shard(tmp_path / "shard", payloads)
    alone = in_python(shard)
    met: list[int] = []

    def halves(fd: int, path: str, middle: int, *rest: Any) -> None:
        met.append(middle)
        scan.scan_halves(fd, path, middle, *rest)

    monkeypatch.setattr(formats, "scan_halves", halves)
    assert outcome(shard, spare=True) == alone
    assert not met  # too short to be worth it
    monkeypatch.setattr(scan, "MIN_HALVED_BYTES", 1)
    assert outcome(shard) == alone
    assert not met
    assert outcome(shard, spare=True) == alone
    (middle,) = met
    assert abs(middle - shard.stat().st_size / 2) < 10_000
    assert middle in [offset - 12 for offset in build_index(shard, KEYS).offset.tolist()]
    monkeypatch.setattr(scan, "NATIVE", False)
    assert outcome(shard, spare=True) == alone
    assert len(met) == 1


def test_the_file_of_the_index_is_the_same_byte_for_byte(
    tmp_path: Path,
    make_payload: Callable[..., bytes],
    write_shard: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    payloads = [make_payload(bytes([number]) * 1000 * number, number) for number in range(30)]
    payloads[7] = b"bad"
    shard = write_shard(tmp_path / "shard", payloads)
    written = []
    for native, smallest in ((False, 1), (True, 1), (True, 1 << 30)):
        monkeypatch.setattr(scan, "NATIVE", native)
        monkeypatch.setattr(scan, "MIN_HALVED_BYTES", smallest)
        (index,) = ensure_indexes([shard], KEYS, force=True, jobs=2)
        assert (index.label >= 0).sum() == 28
        written.append(index_path(shard).read_bytes())
    assert len(set(written)) == 1


@pytest.mark.parametrize("image", [bytes(3_000_000), b"\xff" * 3_000_000], ids=["zeros", "ones"])
def test_where_no_record_begins_none_is_found(
    tmp_path: Path, write_shard: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, image: bytes
) -> None:
    monkeypatch.setattr(scan, "MIN_HALVED_BYTES", 1)
    shard = write_shard(
        tmp_path / "shard", [encode_example({"image/encoded": image, "image/class/label": 1})]
    )
    with open(shard, "rb") as opened:
        assert scan.find_middle(opened.fileno(), str(shard), shard.stat().st_size) is None


@pytest.mark.parametrize("threads", ["both", "second"])
def test_whoever_counts_may_stop_both_halves(
    file: Path, framed: Callable[[bytes], bytes], make_payload: Callable[..., bytes], threads: str
) -> None:
    record = framed(make_payload(bytes(100_000), 1))
    file.write_bytes(record * 40)

    def stop(count: int) -> None:
        if threads == "both" or threading.current_thread() is not threading.main_thread():
            raise StorageError("stopped")

    with pytest.raises(StorageError, match="stopped"):
        by_halves(file, 20 * len(record), IndexBuilder(), stop)
