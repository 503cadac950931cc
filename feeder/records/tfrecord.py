"""TFRecord framing: records in a file, one after another, each with a checked length and a checked payload.

    uint64 length | uint32 masked crc32c of the length | payload | uint32 masked crc32c of the payload

All little-endian. The mask is TensorFlow's (tensorflow/core/lib/hash/crc32c.h): rotate right by 15, add
0xa282ead8.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

import google_crc32c
import numpy as np

from feeder.errors import BadShard
from feeder.records.stream import MAX_RECORD_BYTES, Torn, Window

__all__ = ["FOOTER_BYTES", "HEADER_BYTES", "Frame", "frame", "frames", "looks_like_tfrecord", "unmask"]

HEADER_BYTES = 12
FOOTER_BYTES = 4

_MASK_DELTA = 0xA282EAD8
_HEADER = struct.Struct("<8sI")
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
        offset: where the payload starts, in bytes from the start of the stream.
        payload: the bytes; valid until the next frame is asked for.
        crc: crc32c that the file states for the payload, not masked.
        intact: whether the payload has that crc.
    """

    offset: int
    payload: memoryview
    crc: int
    intact: bool


def frames(window: Window, *, max_record_bytes: int = MAX_RECORD_BYTES) -> Iterator[Frame]:
    """All records of a file in order, read once from start to end.

    Args:
        window: over the file, at its start. Who asks may use up whole records of it, which then don't come.
        max_record_bytes: a longer record counts as damage.

    Raises:
        Torn: where the framing breaks, after all records before it.
        BadShard: the file is no TFRecord file.
        StorageError: it cannot be read.
    """
    while True:
        offset = window.position
        if window.hi - window.lo < HEADER_BYTES and (there := window.have(HEADER_BYTES)) < HEADER_BYTES:
            if not there and not window.broken:
                return
            raise Torn(
                offset,
                window.broken or f"cut in the length field: {there} bytes left, {HEADER_BYTES} needed",
            )
        lo = window.lo
        field, length_crc = _HEADER.unpack_from(window.view, lo)
        if mask(_crc32c(field)) != length_crc:
            if offset == 0:
                raise BadShard(
                    f"{window.path}: is not a TFRecord file, or damaged from its first byte on: "
                    f"check the pattern, or copy it again"
                )
            raise Torn(offset, "crc of the length field is wrong")
        length = int.from_bytes(field, "little")
        if length > max_record_bytes:
            raise Torn(offset, f"length {length} is above the limit of {max_record_bytes} bytes a record")
        whole = HEADER_BYTES + length + FOOTER_BYTES
        if window.hi - lo < whole and (there := window.have(whole)) < whole:
            raise Torn(
                offset,
                window.broken
                or f"cut short: {whole - there} bytes of a record of {length} bytes are missing",
            )
        start = window.lo + HEADER_BYTES
        stop = start + length
        crc = unmask(_CRC.unpack_from(window.view, stop)[0])
        window.lo = stop + FOOTER_BYTES
        intact = _crc32c(window.bytes[start:stop]) == crc
        yield Frame(offset + HEADER_BYTES, window.view[start:stop], crc, intact)


def looks_like_tfrecord(head: bytes) -> bool:
    """Whether a file that starts with these bytes starts with a length field whose crc is right."""
    if len(head) < HEADER_BYTES:
        return False
    field, length_crc = _HEADER.unpack_from(head)
    return bool(mask(_crc32c(field)) == length_crc)
