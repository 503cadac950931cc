from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from feeder.wire.messages import Compression
from feeder.worker.packing import CODECS, pack


@pytest.mark.parametrize("compression", [Compression.LZ4, Compression.ZSTD])
def test_pixels_come_back_from_fewer_bytes(compression: Compression) -> None:
    assert compression in CODECS
    pixels = np.repeat(np.arange(250, dtype=np.uint8), 40)
    packed = pack(pixels, compression)
    assert packed is not None
    assert (packed.compression, packed.packing_s >= 0) == (compression, True)
    assert len(packed.pixels) < len(pixels)
    name = "lz4_raw" if compression is Compression.LZ4 else "zstd"
    assert pa.Codec(name).decompress(packed.pixels, len(pixels), asbytes=True) == pixels.tobytes()


def test_nothing_is_packed_where_nobody_asks_or_nothing_is_gained() -> None:
    noise = np.random.default_rng(0).integers(0, 256, 1000, np.uint8)
    assert pack(np.zeros(1000, np.uint8), Compression.NONE) is None
    assert [pack(noise, compression) for compression in CODECS] == [None, None]
