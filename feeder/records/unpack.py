"""Unpacking of compressed Parquet pages and of parts of them."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

__all__ = ["Garbled", "unpack_page"]

# The codecs whose names in Parquet and in Arrow differ in more than case.
_ARROW_NAMES = {"LZ4": "lz4_raw"}


class Garbled(Exception):
    """Stored bytes cannot be unpacked; the text says why."""


def unpack_page(stored: bytes | memoryview, unpacked: int, codec: str) -> memoryview:
    """What a compressed page, or a run of blocks of one, unpacks to: exactly `unpacked` bytes.

    Args:
        stored: compressed; by Snappy without the length in front.
        unpacked: length.
        codec: as Parquet calls it.

    Raises:
        Garbled: it does not unpack to that.
    """
    parts: Sequence[bytes | memoryview] = (stored,)
    if codec == "SNAPPY":
        parts = (_varint(unpacked), stored)
    try:
        out = pa.decompress(b"".join(parts), unpacked, codec=_ARROW_NAMES.get(codec, codec.lower()))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise Garbled(f"its {codec} data are damaged: {str(error).splitlines()[0]}") from None
    view = memoryview(out).cast("B")  # Arrow says signed bytes
    if len(view) != unpacked:
        raise Garbled(f"its {codec} data unpack to {len(view)} bytes instead of {unpacked}")
    return view


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
