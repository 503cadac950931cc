"""TFRecord framing: records in a file, one after another, each with a checked length and a checked payload.

    uint64 length | uint32 masked crc32c of the length | payload | uint32 masked crc32c of the payload

All little-endian. The mask is TensorFlow's (tensorflow/core/lib/hash/crc32c.h): rotate right by 15, add
0xa282ead8.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

import google_crc32c
import numpy as np

from feeder.errors import BadShard, StorageError
from feeder.records.storage import retry

__all__ = ["FOOTER_BYTES", "HEADER_BYTES", "MAX_RECORD_BYTES", "Frame", "Torn", "frame", "frames", "unmask"]

HEADER_BYTES = 12
FOOTER_BYTES = 4

MAX_RECORD_BYTES = 256 << 20
"""Longest payload that is believed; the longest record of ImageNet is 16 MB."""

READ_BYTES = 4 << 20
"""Size of one sequential read; larger ones were no faster, and each indexing thread holds one such buffer."""

_MASK_DELTA = 0xA282EAD8
_HEADER = struct.Struct("<QI")
_LENGTH = struct.Struct("<Q")
_CRC = struct.Struct("<I")

# google_crc32c takes objects whose buffers need no release: bytes and NumPy arrays, but no memoryview.
_crc32c: Callable[[bytes | np.ndarray], int] = google_crc32c.value


def mask(crc: int) -> int:
    """The form in which TFRecord stores a crc32c."""
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF


def unmask(masked: int) -> int:
    """The crc32c whose masked form is given."""
    rotated = (masked - _MASK_DELTA) & 0xFFFFFFFF
    return ((rotated >> 17) | (rotated << 15)) & 0xFFFFFFFF


def frame(payload: bytes) -> tuple[bytes, bytes, int]:
    """What to write before and after a payload, and the payload's crc32c (not masked)."""
    length = _LENGTH.pack(len(payload))
    crc = _crc32c(payload)
    return length + _CRC.pack(mask(_crc32c(length))), _CRC.pack(mask(crc)), crc


class Frame(NamedTuple):
    """One record as it lies in the file.

    Attributes:
        offset: where the payload starts, in bytes from the start of the file.
        payload: the bytes; valid until the next frame is asked for.
        crc: crc32c that the file states for the payload, not masked.
        intact: whether the payload has that crc.
    """

    offset: int
    payload: memoryview
    crc: int
    intact: bool


class Torn(Exception):
    """The framing breaks at `offset` (a length field); nothing behind it can be found.

    Attributes:
        offset: byte where the record that cannot be read starts.
        reason: what is wrong there.
    """

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(f"offset {offset}: {reason}")
        self.offset = offset
        self.reason = reason


class _Window:
    """A reusable buffer that slides over a file; `lo:hi` of it are bytes that were read and not yet used."""

    def __init__(self, fd: int, path: str, size: int, advance: Callable[[int], None] | None) -> None:
        self._fd = fd
        self._path = path
        self._size = size
        self._advance = advance
        self._read = 0
        self.bytes = np.empty(min(READ_BYTES, size), np.uint8)
        self.view = self.bytes.data
        self.lo = self.hi = 0

    def ensure(self, count: int) -> None:
        """Makes at least `count` unread bytes available; the caller knows that the file has them."""
        kept = self.hi - self.lo
        if kept >= count:
            return
        old = self.bytes
        if count > len(old):
            self.bytes = np.empty(count, np.uint8)
            self.view = self.bytes.data
        self.bytes[:kept] = old[self.lo : self.hi]
        self.lo, self.hi = 0, kept
        while self.hi < count:
            got = retry(lambda: os.preadv(self._fd, [self.view[self.hi :]], self._read), self._path)
            if got == 0:
                raise StorageError(
                    f"{self._path}: ends at byte {self._read}, was {self._size}: it shrank meanwhile"
                )
            self.hi += got
            self._read += got
            if self._advance is not None:
                self._advance(got)


def frames(
    fd: int,
    path: str,
    *,
    max_record_bytes: int = MAX_RECORD_BYTES,
    advance: Callable[[int], None] | None = None,
) -> Iterator[Frame]:
    """All records of an open file in order, read once from start to end.

    Args:
        fd: file to read, by position.
        path: what errors call it.
        max_record_bytes: a longer record counts as damage.
        advance: called with the number of bytes of each read.

    Raises:
        Torn: where the framing breaks, after all records before it.
        BadShard: the file is no TFRecord file, or a compressed one.
        StorageError: it cannot be read.
    """
    size = os.fstat(fd).st_size
    window = _Window(fd, path, size, advance)
    offset = 0
    while offset < size:
        left = size - offset
        if left < HEADER_BYTES:
            raise Torn(offset, f"cut in the length field: {left} bytes left, {HEADER_BYTES} needed")
        window.ensure(HEADER_BYTES)
        lo = window.lo
        length, length_crc = _HEADER.unpack_from(window.view, lo)
        if mask(_crc32c(window.bytes[lo : lo + 8])) != length_crc:
            if offset == 0:
                raise BadShard(f"{path}: {_what_it_is(bytes(window.view[lo : lo + HEADER_BYTES]))}")
            raise Torn(offset, "crc of the length field is wrong")
        if length > max_record_bytes:
            raise Torn(offset, f"length {length} is above the limit of {max_record_bytes} bytes a record")
        if length + HEADER_BYTES + FOOTER_BYTES > left:
            missing = length + HEADER_BYTES + FOOTER_BYTES - left
            raise Torn(offset, f"cut short: {missing} bytes of a record of {length} bytes are missing")
        window.ensure(HEADER_BYTES + length + FOOTER_BYTES)
        start = window.lo + HEADER_BYTES
        stop = start + length
        crc = unmask(_CRC.unpack_from(window.view, stop)[0])
        window.lo = stop + FOOTER_BYTES
        intact = _crc32c(window.bytes[start:stop]) == crc
        yield Frame(offset + HEADER_BYTES, window.view[start:stop], crc, intact)
        offset += HEADER_BYTES + length + FOOTER_BYTES


def _what_it_is(head: bytes) -> str:
    """Why a file with these first bytes is not read; they are known not to be a TFRecord length."""
    if head.startswith(b"\x1f\x8b"):
        return "is compressed with gzip, which feeder does not read: unpack it first (gzip -dc)"
    if head[0] == 0x78 and int.from_bytes(head[:2], "big") % 31 == 0:
        return "is compressed with zlib, which feeder does not read: unpack it first"
    return "is not a TFRecord file, or damaged from its first byte on: check the pattern, or copy it again"
