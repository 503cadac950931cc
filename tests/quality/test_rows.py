"""What is kept of each record, against slow or foreign ways to find it."""

from __future__ import annotations

import hashlib
import io

import numpy as np
import pytest
import simplejpeg
from odd_corpus import Corpus
from PIL import Image

from feeder.decode.header import read_header
from feeder.errors import DataError
from feeder.quality.rows import MODES, ROW, describe, process_name, sampling_name, spreads


def encoded(mode: str, kind: str = "JPEG", **options: object) -> bytes:
    out = io.BytesIO()
    Image.new(mode, (40, 30), 7).save(out, kind, **options)
    return out.getvalue()


def described(data: bytes) -> np.void:
    row = np.zeros(1, ROW)[0]
    describe(row, memoryview(data), read_header(data))
    return row


@pytest.mark.parametrize(
    ("data", "mode", "process", "sampling"),
    [
        (encoded("RGB", subsampling=0), "YCbCr", "baseline", "4:4:4"),
        (encoded("RGB", subsampling=1), "YCbCr", "baseline", "4:2:2"),
        (encoded("RGB", subsampling=2, progressive=True), "YCbCr", "progressive", "4:2:0"),
        (encoded("L"), "gray", "baseline", ""),
        (encoded("CMYK", subsampling=0), "CMYK", "baseline", "1x1 1x1 1x1 1x1"),
        (encoded("RGB", "PNG"), "PNG", "", ""),
        (encoded("P", "GIF"), "GIF", "", ""),
        (encoded("RGB", "BMP"), "BMP", "", ""),
    ],
)
def test_what_an_image_says_of_itself(data: bytes, mode: str, process: str, sampling: str) -> None:
    row = described(data)
    assert (row["width"], row["height"], row["nbytes"]) == (40, 30, len(data))
    assert row["digest"].tobytes() == hashlib.sha256(data).digest()[:16]
    assert MODES[row["mode"]] == mode
    assert process_name(row["process"]) == process
    assert sampling_name(int(row["sampling"])) == sampling


def test_modes_and_samplings_are_those_of_libjpeg(corpus: Corpus) -> None:
    """Of every odd image whose header both read; TurboJPEG names fewer samplings."""
    seen = set()
    for file in corpus.of("images"):
        try:
            header = read_header(file.data)
            _, _, mode, sampling = simplejpeg.decode_jpeg_header(file.data)
        except (DataError, ValueError):
            continue
        assert header.mode.lower() == mode.lower(), file.name
        if len(header.sampling) == 3:
            assert sampling_name(int.from_bytes(header.sampling, "little")).replace(":", "") == sampling, (
                file.name
            )
        seen.add(mode.lower())
    assert {"gray", "ycbcr", "rgb", "cmyk"} <= seen


@pytest.mark.parametrize(
    ("sampling", "name"),
    [
        (0x111122, "4:2:0"),
        (0x222222, "4:4:4"),
        (0x111112, "4:4:0"),
        (0x111141, "4:1:1"),
        (0x112122, "2x2 2x1 1x1"),
        (0x22, ""),
        (0, ""),
    ],
)
def test_names_of_samplings(sampling: int, name: str) -> None:
    assert sampling_name(sampling) == name


def test_spreads_are_standard_deviations() -> None:
    pictures = np.random.default_rng(0).integers(0, 256, (5, 64, 64, 3), np.uint8)
    pictures[1] = 200
    pictures[2, ..., 0] = 255
    pictures[3] //= 32
    pictures[4, :, :32], pictures[4, :, 32:] = 0, 255
    slow = [max(picture[..., colour].astype(float).std() for colour in range(3)) for picture in pictures]
    np.testing.assert_allclose(spreads(pictures), slow, atol=1e-6)
    assert spreads(pictures)[[1, 4]].tolist() == [0, 127.5]
    assert spreads(pictures[:0]).shape == (0,)
