"""Decoding a window gives the very pixels that decoding everything and cutting it out gives.

One to one they are those of libjpeg, which rounds chroma to bytes after it smoothes it, and pixels again; the
kernel rounds once, at the end. So pixels of colour may differ by one level.
"""

from __future__ import annotations

import io

import numpy as np
import pytest
import simplejpeg
from PIL import Image

KINDS = ["444", "422", "420", "440", "411", "gray", "progressive", "restarts"]
SIZES = [(1, 1), (2, 3), (1, 40), (40, 1), (7, 9), (16, 16), (17, 33), (95, 71)]


def near(pixels, others, most=1):
    return np.abs(pixels.astype(np.int16) - others).max() <= most


def windows_of(width, height, count, seed=0):
    """The corners, the edges of MCUs, and random windows."""
    random = np.random.default_rng(seed)
    fixed = [(0, 0, width, height), (0, 0, 1, 1), (width - 1, height - 1, 1, 1), (0, height - 1, width, 1)]
    for edge in (7, 8, 15, 16, 17, 31, 33):
        if edge < width and edge < height:
            fixed.append((edge, edge, width - edge, height - edge))
            fixed.append((edge, edge, 1, 1))
    for _ in range(count):
        w, h = int(random.integers(1, width + 1)), int(random.integers(1, height + 1))
        fixed.append((int(random.integers(0, width - w + 1)), int(random.integers(0, height - h + 1)), w, h))
    return fixed


@pytest.mark.parametrize("kind", KINDS)
def test_window_equals_cut_of_full_decode(native, one, picture, encode, kind):
    for width, height in SIZES:
        data = encode(picture(width, height), kind)
        full, reason = one(native, data, (0, 0, width, height))
        assert reason is None
        assert near(full, simplejpeg.decode_jpeg(data), 0 if kind == "gray" else 1), (width, height)
        for window in windows_of(width, height, 30):
            x, y, w, h = window
            pixels, reason = one(native, data, window)
            assert reason is None
            assert np.array_equal(pixels, full[y : y + h, x : x + w]), (kind, width, height, window)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reduction", [2, 4, 8])
def test_reduced_window_equals_cut_of_reduced_decode(native, one, picture, encode, kind, reduction):
    width, height = 96, 64  # multiples of the reduction: one source pixel for each of the output
    data = encode(picture(width, height), kind)
    full, _ = one(
        native, data, (0, 0, width, height), (height // reduction, width // reduction), reduction=reduction
    )
    reference = simplejpeg.decode_jpeg(data, min_height=height // reduction, min_width=width // reduction)
    assert near(full, reference)
    for x, y, w, h in windows_of(width // reduction, height // reduction, 30):
        window = tuple(side * reduction for side in (x, y, w, h))
        pixels, reason = one(native, data, window, (h, w), reduction=reduction)
        assert reason is None
        assert np.array_equal(pixels, full[y : y + h, x : x + w]), (kind, window)


def test_real_files(native, one, sample):
    random = np.random.default_rng(3)
    for data in sample[::25]:
        full = simplejpeg.decode_jpeg(data)
        height, width = full.shape[:2]
        w, h = int(random.integers(1, width + 1)), int(random.integers(1, height + 1))
        x, y = int(random.integers(0, width - w + 1)), int(random.integers(0, height - h + 1))
        pixels, reason = one(native, data, (x, y, w, h))
        assert reason is None
        assert near(pixels, full[y : y + h, x : x + w])


def test_flip_is_the_mirror_image(decoder, one, picture, encode):
    data = encode(picture(83, 61), "420")
    for size in ((61, 70), (31, 33), (20, 101)):
        plain, _ = one(decoder, data, (5, 3, 70, 50), size)
        flipped, _ = one(decoder, data, (5, 3, 70, 50), size, flip=True)
        assert np.array_equal(flipped, plain[:, ::-1])


def test_a_window_never_reads_what_is_below_it(native, one, picture, encode):
    """Damage below the window is no business of the native decoder; above and within it is."""
    data = encode(picture(160, 160), "444")
    cut = data[: len(data) * 3 // 4]
    top, reason = one(native, cut, (10, 10, 100, 60))
    assert reason is None
    assert near(top, simplejpeg.decode_jpeg(data)[10:70, 10:110])
    _, reason = one(native, cut, (10, 95, 100, 60))
    assert reason is not None
    assert reason.startswith("damaged JPEG: ")


def test_tables_of_one_file_never_serve_the_next(native, one, picture, encode):
    data = encode(picture(40, 30), "420")
    assert one(native, data, (0, 0, 40, 30))[1] is None
    at = data.index(b"\xff\xdb")
    length = int.from_bytes(data[at + 2 : at + 4], "big")
    without_tables = data[:at] + data[at + 2 + length :]
    _, reason = one(native, without_tables, (0, 0, 40, 30))
    assert reason is not None
    assert "Quantization table" in reason


def test_arithmetic_data_that_may_have_been_cut_is_damaged(decoder, one, odd_files):
    """It may end anywhere, without a warning; so an end marker has to be there."""
    data = (odd_files / "images/arithmetic_sof9.jpg").read_bytes()
    assert one(decoder, data, (0, 0, 16, 16))[1] is None
    assert one(decoder, data[:-2], (0, 0, 16, 16))[1] == "damaged JPEG: ends before its last row"


def test_a_component_without_a_scan_is_damage(decoder, one, odd_images):
    """libjpeg would make gray of it."""
    for image in odd_images:
        if "_scan_missing" in image.name or "_scans_missing" in image.name:
            reason = one(decoder, image.data, (0, 0, 97, 61))[1]
            assert reason == "damaged JPEG: has no scan of one of its components"


def test_progressive_that_lost_its_last_scans_is_damaged(decoder, one, picture):
    buffer = io.BytesIO()
    Image.fromarray(picture(64, 64)).save(buffer, "JPEG", progressive=True)
    data = buffer.getvalue()
    last = data.rindex(b"\xff\xda")
    assert one(decoder, data, (0, 0, 64, 64))[1] is None
    assert one(decoder, data[:last], (0, 0, 64, 64))[1] == "damaged JPEG: ends before its last scan"
    assert one(decoder, data[:-2], (0, 0, 64, 64))[1] is None, "complete, only its end marker is missing"
