"""Compression of chunks on their way to clients that ask for it, by the codecs that Arrow has."""

from __future__ import annotations

import time

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from feeder.wire.messages import Compression, Packed

__all__ = ["CODECS", "pack"]

_ARROW = {Compression.LZ4: ("lz4_raw", None), Compression.ZSTD: ("zstd", 1)}
"""Name and level. Higher levels of zstd gain another twentieth of photos for three times the time."""

CODECS = tuple(kind for kind, (name, _) in _ARROW.items() if pa.Codec.is_available(name))
"""What this installation of Arrow has."""


def pack(pixels: NDArray[np.uint8], compression: Compression) -> Packed | None:
    """Compresses pixels of a chunk, uint8 [bytes]; None where that was not asked for, or gains nothing."""
    if compression not in CODECS:
        return None
    begun_s = time.thread_time()
    name, level = _ARROW[compression]
    packed: bytes = pa.Codec(name, compression_level=level).compress(pixels, asbytes=True)
    if len(packed) >= len(pixels):
        return None
    return Packed(compression, packed, time.thread_time() - begun_s)
