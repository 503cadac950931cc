from __future__ import annotations

import contextlib

import numpy as np
import pytest

from feeder.decode import Limits, open_decoder
from feeder.decode.header import read_header
from feeder.errors import DataError


@pytest.mark.parametrize(
    "kind", ["444", "420", "gray", "progressive", "restarts", "cmyk", "png", "gif", "bmp"]
)
def test_size_and_format(picture, encode, kind):
    header = read_header(encode(picture(37, 23), kind))
    assert (header.width, header.height) == (37, 23)
    assert header.format == (kind.upper() if kind in ("png", "gif", "bmp") else "JPEG")


@pytest.mark.parametrize(
    "options", [{}, {"lossless": True}, {"exif": b"Exif\0\0MM\0*\0\0\0\x08\0\0\0\0\0\0"}]
)
def test_the_three_kinds_of_webp(picture, encode, options):
    header = read_header(encode(picture(37, 23), "webp", **options))
    assert (header.format, header.width, header.height) == ("WEBP", 37, 23)


def test_no_prefix_raises_anything_else(picture, encode):
    for kind in ("420", "png", "gif", "bmp", "webp"):
        data = encode(picture(16, 16), kind)
        for length in range(min(len(data), 400)):
            with contextlib.suppress(DataError):  # any other exception fails the test
                read_header(data[:length])


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (Limits(max_bytes=100), "bytes, the limit is 100"),
        (Limits(max_pixels=500), "JPEG of 37 x 23 pixels, the limit is 500 in all"),
        (Limits(max_scans=2), r"JPEG of \d+ scans"),
    ],
)
def test_limits(picture, encode, limits, message):
    data = encode(picture(37, 23), "progressive")
    with pytest.raises(DataError, match=message):
        read_header(data, limits)
    for kind in ("auto", "portable"):
        decoder = open_decoder(1, kind, limits=limits)
        _, (size_reason,) = decoder.sizes([data])
        out = np.zeros((1, 8, 8, 3), np.uint8)
        (reason,) = decoder.decode([data], np.array([[0, 0, 8, 8]], np.int32), np.zeros(1, np.bool_), out)
        decoder.close()
        assert size_reason == reason
        with pytest.raises(DataError, match=message):
            raise DataError(reason)


def test_both_decoders_read_the_same_headers(native, portable, sample, odd_images):
    images = sample + [image.data for image in odd_images]
    native_sizes, native_reasons = native.sizes(images)
    portable_sizes, portable_reasons = portable.sizes(images)
    assert np.array_equal(native_sizes, portable_sizes)
    assert native_reasons == portable_reasons


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "empty"),
        (b"hello", "not an image"),
        (b"\xff\xd8\xff\xd9", "without a scan"),
        (b"\xff\xd8\xff\xc3\x00\x0b\x08\x00\x08\x00\x08\x01\x01\x11\x00", "SOF3"),
        (b"\xff\xd8\xff\xc0\x00\x11\x08\x00\x00\x00\x08\x03", "does not fit"),
        (b"RIFF\x00\x00\x00\x00WEBPJUNK" + bytes(16), "WebP without an image"),
    ],
)
def test_reasons(data, message):
    with pytest.raises(DataError, match=message):
        read_header(data)
