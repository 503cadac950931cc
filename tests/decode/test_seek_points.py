"""Seek points change what is decoded for a window, never the result."""

from __future__ import annotations

import numpy as np
import pytest

kernel = pytest.importorskip("feeder.decode._kernel")

KINDS = ["444", "422", "420", "440", "gray", "restarts"]
USED, GREW, REFUSED = 1, 2, 4


@pytest.fixture(scope="module")
def native():
    opened = kernel.Kernel(1, 1 << 27, 1 << 28, 100, 1 << 34, "best", False)
    yield opened
    opened.close()


def decode(native, images, windows, seek=None, size=(24, 31)):
    """Pixels, verdicts and outcomes of a window of each image."""
    count = len(images)
    out, outcomes = np.zeros((count, *size, 3), np.uint8), np.full(count, 99, np.uint8)
    verdicts = native.decode(
        images,
        np.array(windows, np.int32),
        np.zeros(count, np.bool_),
        out,
        False,
        True,
        np.ones(count, np.uint8),
        seek,
        None if seek is None else outcomes,
    )
    return out, verdicts, outcomes


def learn(native, images):
    seek, outcomes = np.zeros((len(images), kernel.SEEK_BYTES), np.uint8), np.zeros(len(images), np.uint8)
    return seek, native.learn(images, seek, outcomes), outcomes


def windows_of(random, width, height, count):
    windows = [(0, 0, width, height), (0, 0, 1, 1), (width - 1, height - 1, 1, 1)]
    for _ in range(count):
        w, h = int(random.integers(1, width + 1)), int(random.integers(1, height + 1))
        windows.append(
            (int(random.integers(0, width - w + 1)), int(random.integers(0, height - h + 1)), w, h)
        )
    return windows


@pytest.mark.parametrize("kind", KINDS)
def test_same_pixels_with_all_points(native, picture, encode, kind):
    random = np.random.default_rng(1)
    for width, height in [(1, 1), (16, 16), (17, 33), (95, 71), (8, 1300)]:
        data = encode(picture(width, height), kind)
        points, verdicts, outcomes = learn(native, [data])
        assert verdicts == [None]
        assert outcomes[0] == GREW
        windows = windows_of(random, width, height, 60)
        images = [data] * len(windows)
        expected, _, _ = decode(native, images, windows)
        pixels, verdicts, outcomes = decode(native, images, windows, points.repeat(len(windows), axis=0))
        assert verdicts == [None] * len(windows)
        assert (outcomes == USED).all()
        assert np.array_equal(pixels, expected)
