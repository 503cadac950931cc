"""What pages of Parquet are written with: Thrift's compact protocol, and runs of small numbers.

(Apache Parquet format, Encodings.md; Apache Thrift, thrift-compact-protocol.md.)
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["BadPage", "rle_hybrid", "thrift_struct", "varint"]


class BadPage(Exception):
    """A page is damaged, or beyond what is read; the text says why and where."""


def rle_hybrid(data: bytes, width: int, count: int) -> npt.NDArray[np.uint32]:
    """The first `count` numbers of `width` bits of a run-length and bit-packing hybrid (Encodings.md).

    Raises:
        BadPage: there are fewer, or `width` is above 32.
    """
    if width > 32:
        raise BadPage(f"has numbers of {width} bits")
    parts: list[npt.NDArray[np.uint32]] = []
    pos = left = 0
    left = count
    while left:
        head, pos = varint(data, pos)
        if head & 1:
            size = (head >> 1) * width
            packed = data[pos : pos + size]
            pos += size
            if len(packed) < size and len(packed) * 8 < left * width:
                raise BadPage("ends in the middle of a run")
            if width:
                bits = np.unpackbits(np.frombuffer(packed, np.uint8), bitorder="little")
                rows = bits[: len(bits) // width * width].reshape(-1, width)[:left]
                run = (rows.astype(np.uint64) << np.arange(width, dtype=np.uint64)).sum(1).astype(np.uint32)
            else:
                run = np.zeros(min(left, (head >> 1) * 8), np.uint32)
        else:
            size = (width + 7) // 8
            run = np.full(min(left, head >> 1), int.from_bytes(data[pos : pos + size], "little"), np.uint32)
            pos += size
        if not len(run) or pos > len(data) + 8 * width:
            raise BadPage("has a run of no number")
        parts.append(run)
        left -= len(run)
    return np.concatenate(parts) if parts else np.empty(0, np.uint32)


def varint(data: bytes | memoryview, pos: int) -> tuple[int, int]:
    """An unsigned number of at most 64 bits in base 128 at `pos`, and the place behind it.

    Raises:
        BadPage: there is none.
    """
    value = shift = 0
    while pos < len(data) and shift < 70:
        byte = data[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, pos
        shift += 7
    raise BadPage("has a damaged number in it")


def thrift_struct(data: memoryview, pos: int, depth: int = 0) -> tuple[dict[int, object], int]:
    """A struct in the compact protocol, and the place behind it.

    Its booleans, integers and structs come by field number; the values of other fields are passed over.

    Raises:
        BadPage: it is damaged or cut.
    """
    found: dict[int, object] = {}
    number = 0
    while True:
        if pos >= len(data):
            raise BadPage("ends in the middle of a header")
        head = data[pos]
        pos += 1
        if head == 0:
            return found, pos
        if head >> 4:
            number += head >> 4
        else:
            value, pos = varint(data, pos)
            number = _unzigzag(value)
        found[number], pos = _thrift_value(data, pos, head & 15, depth)


def _thrift_value(data: memoryview, pos: int, kind: int, depth: int) -> tuple[object, int]:
    if depth > 8:
        raise BadPage("has a header that is nested too deep")
    if kind in (1, 2):
        return kind == 1, pos
    if kind == 3:
        return None, pos + 1
    if kind in (4, 5, 6):
        value, pos = varint(data, pos)
        return _unzigzag(value), pos
    if kind == 7:
        return None, pos + 8
    if kind == 8:
        size, pos = varint(data, pos)
        return None, pos + size
    if kind == 12:
        return thrift_struct(data, pos, depth + 1)
    raise BadPage(f"has a field of type {kind} in its header")


def _unzigzag(value: int) -> int:
    return value >> 1 ^ -(value & 1)
