"""Parts of Snappy streams against the library that writes them."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feeder.records.pages import Chunk, Value, values
from feeder.records.snappy import NotSeparable, SnappyBlocks
from feeder.records.stream import open_window
from feeder.records.unpack import Garbled, unpack_page


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("snappy") / "stream"


def varint(value: int) -> bytes:
    return bytes([value & 0x7F | 0x80]) + varint(value >> 7) if value > 0x7F else bytes([value])


def literal(data: bytes) -> bytes:
    return b"\xf4" + (len(data) - 1).to_bytes(2, "little") + data


def copy(count: int, back: int) -> bytes:
    return bytes([(count - 1) << 2 | 3]) + back.to_bytes(4, "little")


@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 90_000)), max_size=6),
    st.lists(st.integers(1, 100_000), max_size=12),
    st.randoms(),
)
@settings(max_examples=100, deadline=None)
def test_every_piece_unpacks_alone(
    file: Path, parts: list[tuple[bool, int]], pieces: list[int], source: random.Random
) -> None:
    """Of data that are noise here and repeat there, whatever the pieces."""
    data = b"".join(
        source.randbytes(count) if noise else source.randbytes(50) * (count // 50) for noise, count in parts
    )
    stored = pa.compress(data, codec="snappy", asbytes=True)
    file.write_bytes(b"before" + stored + b"behind")
    fd = os.open(file, os.O_RDONLY)
    try:
        window = open_window(fd, "stream", start=6, stop=6 + len(stored))
        blocks = SnappyBlocks(window, len(data))
        done = 0
        for count in pieces:
            count = min(count, blocks.left())
            if not count:
                break
            want = data[done : done + count]
            assert blocks.take(count).tobytes() == want
            offset, length, start, unpacked = blocks.place(count)
            part = unpack_page(os.pread(fd, length, offset), unpacked, "SNAPPY")
            assert part[start : start + count] == want
            assert unpacked <= count + 2 * 65535
            done += count
        assert blocks.left() == len(data) - done
    finally:
        os.close(fd)


@given(st.binary(max_size=400), st.integers(0, 1 << 17))
@settings(max_examples=300, deadline=None)
def test_any_bytes_unpack_or_are_refused(file: Path, data: bytes, unpacked: int) -> None:
    file.write_bytes(varint(unpacked) + data)
    fd = os.open(file, os.O_RDONLY)
    try:
        blocks = SnappyBlocks(open_window(fd, "stream"), unpacked)
        while count := min(1000, blocks.left()):
            assert len(blocks.take(count)) == count
    except (Garbled, NotSeparable):
        pass
    finally:
        os.close(fd)


@pytest.mark.parametrize(
    "stream",
    [
        literal(bytes(65536)) + copy(64, 65500) + literal(bytes(936)),  # refers to the block before
        literal(bytes(65000)) + literal(bytes(1536)),  # an element lies across the border
    ],
)
def test_streams_by_another_rule_are_read_as_a_whole(file: Path, stream: bytes) -> None:
    """By the format they are legal; a page of them is unpacked as a whole."""
    unpacked = len(pa.decompress(varint(66536) + stream, 66536, codec="snappy", asbytes=True))
    file.write_bytes(varint(unpacked) + stream)
    fd = os.open(file, os.O_RDONLY)
    try:
        with pytest.raises(NotSeparable):
            SnappyBlocks(open_window(fd, "stream"), unpacked).take(unpacked)
        body = varint(unpacked) + stream
        numbers = [varint(2 * number) for number in (0, unpacked, len(body), 2, 0, 3, 3)]
        kind, size, stored, count, encoding, levels, repeats = (b"\x15" + number for number in numbers)
        page = kind + size + stored + b"\x2c" + count + encoding + levels + repeats + b"\0\0" + body
        file.write_bytes(page)
        # Zeros are values of no bytes: their lengths.
        first, second = values(fd, "page", Chunk(0, len(page), 2, "SNAPPY", 0))
        assert first == second == Value(0, 0, 0, 0, 0, 0)
    finally:
        os.close(fd)


def test_a_length_that_is_not_the_headers(file: Path) -> None:
    file.write_bytes(pa.compress(bytes(1000), codec="snappy", asbytes=True))
    fd = os.open(file, os.O_RDONLY)
    try:
        with pytest.raises(Garbled, match="says it unpacks to 1000 bytes, its page header says 999"):
            SnappyBlocks(open_window(fd, "stream"), 999)
    finally:
        os.close(fd)
