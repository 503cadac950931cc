"""Restart intervals are decoded without libjpeg, to its pixels and its verdicts."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

kernel = pytest.importorskip("feeder.decode._kernel")


@pytest.fixture(scope="module")
def decode():
    """Decodes a window of each image with the kernel as it is, and with nothing but libjpeg."""
    kernels = [kernel.Kernel(1, 1 << 27, 1 << 28, 100, 1 << 34, "best", only) for only in (False, True)]

    def both(images, window):
        count = len(images)
        results = []
        for one in kernels:
            out = np.zeros((count, window[3], window[2], 3), np.uint8)
            windows = np.array([window] * count, np.int32)
            verdicts = one.decode(
                images, windows, np.zeros(count, np.bool_), out, "bilinear", True, np.ones(count, np.uint8)
            )
            results.append((out, verdicts))
        return results

    yield both
    for one in kernels:
        one.close()


def encode(pixels, **options):
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=85, **options)
    return buffer.getvalue()


@pytest.mark.parametrize("subsampling", [0, 1, 2])
@pytest.mark.parametrize("interval", [1, 2, 7, 12, 100])
def test_same_pixels(decode, picture, subsampling, interval):
    data = encode(picture(95, 71), subsampling=subsampling, restart_marker_blocks=interval)
    assert data.count(b"\xff\xdd") == 1
    for window in [(0, 0, 95, 71), (33, 20, 30, 17), (90, 66, 5, 5)]:
        (pixels, verdicts), (expected, _) = decode([data], window)
        assert verdicts == [None]
        assert np.array_equal(pixels, expected)


def test_gray_and_rows(decode, picture):
    for data in (
        encode(picture(95, 71)[:, :, 0], restart_marker_blocks=5),
        encode(picture(95, 71), restart_marker_rows=2),
    ):
        (pixels, verdicts), (expected, _) = decode([data], (10, 11, 60, 50))
        assert verdicts == [None]
        assert np.array_equal(pixels, expected)


def test_odd_markers_get_the_same_verdict(decode, picture):
    data = encode(picture(95, 71), restart_marker_blocks=4)
    markers = [at for at in range(len(data) - 1) if data[at] == 0xFF and 0xD0 <= data[at + 1] <= 0xD7]
    images = []
    for at in markers:
        number = data[at + 1]
        images.append(data[: at + 1] + bytes([0xD0 + (number + 1) % 8]) + data[at + 2 :])  # out of order
        images.append(data[:at] + data[at + 2 :])  # missing
        images.append(data[:at] + b"\xff" + data[at:])  # with a fill byte
        images.append(data[:at] + b"\x00" + data[at:])  # with a byte too many before it
        images.append(data[: at - 1] + data[at:])  # with one too few
        images.append(data[: at + 2] + data[at : at + 2] + data[at + 2 :])  # twice
        images.append(data[:at] + b"\xff\xd9")  # with the end instead
        images.append(data[: at + 1])
    (pixels, verdicts), (expected, reference) = decode(images, (5, 5, 80, 60))
    assert verdicts == reference
    good = np.array([verdict is None for verdict in verdicts])
    assert good.any()
    assert np.array_equal(pixels[good], expected[good])
