from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path

import google_crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feeder.errors import BadShard, StorageError
from feeder.records import stream
from feeder.records.stream import Torn, open_window
from feeder.records.tfrecord import frame, frames, mask, unmask


def scan(data: bytes, path: Path, **settings: int) -> tuple[list[tuple[int, bytes, int, bool]], Torn | None]:
    """All frames of a file with these bytes, and how it ended."""
    path.write_bytes(data)
    found = []
    fd = os.open(path, os.O_RDONLY)
    try:
        for offset, payload, crc, intact in frames(open_window(fd, str(path)), **settings):
            found.append((offset, bytes(payload), crc, intact))
    except Torn as torn:
        return found, torn
    finally:
        os.close(fd)
    return found, None


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tfrecord") / "shard"


@given(st.integers(0, 2**32 - 1))
def test_mask_and_unmask_are_inverse(crc: int) -> None:
    assert unmask(mask(crc)) == crc
    assert mask(unmask(crc)) == crc


def test_mask_is_tensorflows() -> None:
    """The length field that TensorFlow writes in front of a record of 817 bytes (odd-files' ok.tfrecord)."""
    length = struct.pack("<Q", 817)
    header, footer, crc = frame(b"x" * 817)
    assert header[:8] == length
    assert len(header) == 12
    assert len(footer) == 4
    assert unmask(struct.unpack("<I", header[8:])[0]) == google_crc32c.value(length)
    assert crc == google_crc32c.value(b"x" * 817)


@given(st.lists(st.binary(max_size=300), max_size=8), st.integers(1, 64))
@settings(max_examples=80)
def test_what_frame_writes_comes_back(file: Path, payloads: list[bytes], read_bytes: int) -> None:
    """Whatever the size of one read, smaller than a header or larger than the file."""
    data = b"".join(
        header + payload + footer for payload in payloads for header, footer, _ in [frame(payload)]
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "READ_BYTES", read_bytes)
        found, torn = scan(data, file)
    assert torn is None
    assert [payload for _, payload, _, _ in found] == payloads
    assert all(intact and crc == google_crc32c.value(payload) for _, payload, crc, intact in found)
    assert all(data[offset : offset + len(payload)] == payload for offset, payload, _, _ in found)


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=4), st.data())
@settings(max_examples=150)
def test_a_cut_file_gives_the_records_before_the_cut(
    file: Path, payloads: list[bytes], data: st.DataObject
) -> None:
    whole = [header + payload + footer for payload in payloads for header, footer, _ in [frame(payload)]]
    cut = data.draw(st.integers(0, sum(map(len, whole))))
    ends = [sum(map(len, whole[: count + 1])) for count in range(len(whole))]
    complete = sum(end <= cut for end in ends)
    found, torn = scan(b"".join(whole)[:cut], file)
    assert [payload for _, payload, _, _ in found] == payloads[:complete]
    if cut in (0, *ends):
        assert torn is None
    else:
        assert torn is not None
        assert torn.offset == ([0, *ends])[complete]
        assert "cut" in torn.reason


@given(st.lists(st.binary(min_size=1, max_size=40), min_size=2, max_size=4), st.data())
@settings(max_examples=200)
def test_any_flipped_bit_is_noticed(file: Path, payloads: list[bytes], data: st.DataObject) -> None:
    """In a payload or its crc: that record is not intact. In a length: the file ends there."""
    whole = [header + payload + footer for payload in payloads for header, footer, _ in [frame(payload)]]
    victim = data.draw(st.integers(0, len(whole) - 1))
    bit = data.draw(st.integers(0, 8 * len(whole[victim]) - 1))
    hurt = bytearray(whole[victim])
    hurt[bit // 8] ^= 1 << bit % 8
    try:
        found, torn = scan(b"".join([*whole[:victim], bytes(hurt), *whole[victim + 1 :]]), file)
    except BadShard:
        assert victim == 0
        assert bit // 8 < 12
        return
    if bit // 8 < 12:
        assert torn is not None
        assert [payload for _, payload, _, _ in found] == payloads[:victim]
    else:
        assert torn is None
        assert [intact for *_, intact in found] == [number != victim for number in range(len(whole))]


def test_a_huge_length_is_refused_before_anything_is_allocated(
    file: Path, framed: Callable[[bytes], bytes]
) -> None:
    length = struct.pack("<Q", 2**40)
    forged = length + struct.pack("<I", mask(google_crc32c.value(length)))
    found, torn = scan(framed(b"good") + forged + b"rest", file)
    assert [payload for _, payload, _, _ in found] == [b"good"]
    assert torn is not None
    assert torn.offset == 20
    assert "1099511627776" in torn.reason


def test_a_record_above_the_limit_ends_the_shard_by_name(
    file: Path, framed: Callable[[bytes], bytes]
) -> None:
    found, torn = scan(framed(b"a" * 10) + framed(b"b" * 11), file, max_record_bytes=10)
    assert len(found) == 1
    assert torn is not None
    assert "limit of 10 bytes" in torn.reason


@pytest.mark.parametrize(
    ("head", "said"),
    [
        (b"\xff\xd8\xff\xe0" + bytes(20), "not a TFRecord"),
        (bytes(200), "not a TFRecord"),
    ],
)
def test_other_files_are_called_what_they_are(file: Path, head: bytes, said: str) -> None:
    with pytest.raises(BadShard, match=said):
        scan(head, file)


def test_a_record_that_looks_like_gzip_is_read(file: Path, framed: Callable[[bytes], bytes]) -> None:
    """A length of 0x88b1f starts with gzip's magic bytes; its crc tells that it is a length."""
    found, torn = scan(framed(bytes(0x88B1F)), file)
    assert torn is None
    assert len(found) == 1


def test_a_file_that_shrinks_while_it_is_read(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    header, footer, _ = frame(bytes(1000))
    monkeypatch.setattr(stream, "READ_BYTES", 64)
    file.write_bytes(header + bytes(1000) + footer + header + bytes(1000) + footer)
    fd = os.open(file, os.O_RDONLY)
    try:
        scanning = frames(open_window(fd, "shard"))
        next(scanning)
        os.truncate(file, 1100)
        with pytest.raises(StorageError, match="shrank"):
            next(scanning)
    finally:
        os.close(fd)
