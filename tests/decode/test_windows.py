"""The planes of any window are cut out of the planes of the whole image: libjpeg's, bit for bit."""

from __future__ import annotations

import io
import itertools
import shutil
import subprocess

import numpy as np
import pytest
from PIL import Image

kernel = pytest.importorskip("feeder.decode._kernel")

KINDS = ("444", "422", "420", "440", "411", "Gray")
RESTARTS = {
    "no restarts": {},
    "each MCU": {"restart_marker_blocks": 1},
    "7 MCUs": {"restart_marker_blocks": 7},
    "each row": {"restart_marker_rows": 1},
}
SAMPLING = {"444": 0, "422": 1, "420": 2}  # which Pillow can write with restart markers


@pytest.fixture(scope="module")
def kernels():
    """As it is, and with nothing but libjpeg."""
    pair = [kernel.Kernel(1, 1 << 28, 1 << 28, 100, 1 << 34, "best", only) for only in (False, True)]
    yield pair
    for one in pair:
        one.close()


def encoded(picture, encode, kind, restarts, width, height):
    pixels = picture(width, height)
    if not RESTARTS[restarts]:
        return encode(pixels, kind)
    buffer = io.BytesIO()
    if kind == "Gray":
        Image.fromarray(pixels).convert("L").save(buffer, "JPEG", quality=85, **RESTARTS[restarts])
    elif kind in SAMPLING:
        Image.fromarray(pixels).save(
            buffer, "JPEG", quality=85, subsampling=SAMPLING[kind], **RESTARTS[restarts]
        )
    else:
        return restarted(encode(pixels, kind), RESTARTS[restarts])
    return buffer.getvalue()


def restarted(data, options):
    """What Pillow cannot write."""
    jpegtran = shutil.which("jpegtran")
    if jpegtran is None:
        pytest.skip("restart markers at this sampling need jpegtran (Debian and Ubuntu: libjpeg-turbo-progs)")
    every = f"{options['restart_marker_blocks']}B" if "restart_marker_blocks" in options else "1"
    return subprocess.run([jpegtran, "-restart", every], input=data, capture_output=True, check=True).stdout


def windows(width, height):
    """On and off the edges of MCUs of 8, 16 and 32 pixels, at all four edges of the image, and one pixel."""
    lefts = {0, 1, 8, 15, 16, 31, 32, width // 2, width - 1}
    tops = {0, 1, 7, 8, 16, 17, height // 2, height - 1}
    for left, top in itertools.product(
        sorted(x for x in lefts if 0 <= x < width), sorted(y for y in tops if 0 <= y < height)
    ):
        for right, bottom in (
            (width, height),
            (left + 1, top + 1),
            (left + 16, top + 8),
            (left + 21, top + 33),
        ):
            yield left, top, min(right, width) - left, min(bottom, height) - top


def assert_cut_of_whole(found, whole, window):
    planes, facts = found
    for index, plane in enumerate(planes):
        left, top, right, bottom = facts[5 + 8 * index :][4:8].tolist()
        assert np.array_equal(plane, whole[index][top:bottom, left:right]), (window, index)


def points_of(kernels, data):
    seek, outcomes = np.zeros((1, kernel.SEEK_BYTES), np.uint8), np.zeros(1, np.uint8)
    assert kernels[0].learn([data], seek, outcomes) == [None]
    return seek


def prefixes(kernels, data, width, height):
    """No points, those of the upper half, and all of them."""
    half, outcomes = np.zeros((1, kernel.SEEK_BYTES), np.uint8), np.zeros(1, np.uint8)
    out = np.empty((1, 1, 1, 3), np.uint8)
    window = np.array([[0, 0, width, max(1, height // 2)]], np.int32)
    one = np.ones(1, np.uint8)
    assert kernels[0].decode(
        [data], window, np.zeros(1, np.bool_), out, "bilinear", True, one, half, outcomes
    ) == [None]
    return [None, half, points_of(kernels, data)]


@pytest.mark.parametrize("restarts", RESTARTS)
@pytest.mark.parametrize("kind", KINDS)
def test_windows(kernels, picture, encode, kind, restarts):
    width, height = 101, 83
    data = encoded(picture, encode, kind, restarts, width, height)
    whole, _ = kernels[1].planes(data)
    for seek in prefixes(kernels, data, width, height):
        for window in windows(width, height):
            known = None if seek is None else seek.copy()
            assert_cut_of_whole(kernels[0].planes(data, window, seek=known), whole, window)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [(1, 1), (2, 3), (8, 8), (9, 17), (16, 1), (1, 40), (33, 16)])
def test_small_images(kernels, picture, encode, kind, size):
    width, height = size
    data = encode(picture(width, height), kind)
    whole, _ = kernels[1].planes(data)
    for seek in prefixes(kernels, data, width, height):
        for window in windows(width, height):
            known = None if seek is None else seek.copy()
            assert_cut_of_whole(kernels[0].planes(data, window, seek=known), whole, window)


@pytest.mark.parametrize(
    ("kind", "restarts", "size"),
    [
        ("420", "no restarts", (8192, 8192)),
        ("444", "each row", (2048, 4096)),
        ("422", "no restarts", (8192, 40)),
        ("440", "no restarts", (40, 8192)),
    ],
)
def test_large_images(kernels, picture, encode, kind, restarts, size):
    width, height = size
    tile = np.tile(picture(256, 256), (-(-height // 256), -(-width // 256), 1))[:height, :width]
    data = encoded(lambda *_: np.ascontiguousarray(tile), encode, kind, restarts, width, height)
    whole, _ = kernels[1].planes(data)
    seek = points_of(kernels, data)
    for window in [
        (0, 0, width, 9),
        (width // 2 + 3, height // 2 + 5, width // 3, height // 4),
        (width - 17, height - 33, 17, 33),
    ]:
        for known in (None, seek.copy()):
            assert_cut_of_whole(kernels[0].planes(data, window, seek=known), whole, window)


def test_real_files(kernels, sample):
    random = np.random.default_rng(5)
    for data in sample:
        whole, facts = kernels[1].planes(data)
        width, height = facts[3:5].tolist()
        left, top = int(random.integers(width)), int(random.integers(height))
        window = (
            left,
            top,
            int(random.integers(1, width - left + 1)),
            int(random.integers(1, height - top + 1)),
        )
        for seek in (None, points_of(kernels, data)):
            assert_cut_of_whole(kernels[0].planes(data, window, seek=seek), whole, window)
