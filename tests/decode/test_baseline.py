"""The kernel's own way through a baseline file gives the pixels and the verdicts of libjpeg."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

KINDS = ["444", "422", "420", "440", "411", "gray", "restarts"]


@pytest.fixture(scope="module")
def both():
    """The decoder as it is, and one that uses nothing but libjpeg."""
    pytest.importorskip("feeder.decode._kernel")
    from feeder.decode.kernel import NativeDecoder

    decoders = NativeDecoder(1), NativeDecoder(1, libjpeg_only=True)
    yield decoders
    for decoder in decoders:
        decoder.close()


@pytest.fixture(scope="module")
def compare(both):
    """Decodes a batch of images through windows both ways; returns how many decoded."""

    def decode(decoder, images, windows, size, **settings):
        out = np.zeros((len(images), *size, 3), np.uint8)
        flips = np.arange(len(images)) % 2 == 1
        return out, decoder.decode(images, np.array(windows, np.int32), flips, out, **settings)

    def check(images, windows, size=(24, 31), **settings):
        (pixels, reasons), (expected, verdicts) = (
            decode(decoder, images, windows, size, **settings) for decoder in both
        )
        assert reasons == verdicts
        good = np.array([reason is None for reason in reasons], np.bool_)
        differ = np.flatnonzero((pixels != expected).any(axis=(1, 2, 3)) & good)
        assert not differ.size, [windows[index] for index in differ]
        return int(good.sum())

    return check


def random_windows(random, width, height, count):
    windows = []
    for _ in range(count):
        w, h = int(random.integers(1, width + 1)), int(random.integers(1, height + 1))
        windows.append(
            (int(random.integers(0, width - w + 1)), int(random.integers(0, height - h + 1)), w, h)
        )
    return windows


@pytest.mark.parametrize("kind", KINDS)
def test_every_sampling_and_size(compare, picture, encode, kind):
    random = np.random.default_rng(5)
    for width, height in [(1, 1), (3, 2), (4, 5), (5, 4), (6, 40), (40, 6), (16, 16), (33, 31), (95, 71)]:
        data = encode(picture(width, height), kind)
        windows = [(0, 0, width, height), *random_windows(random, width, height, 60)]
        assert compare([data] * len(windows), windows) == len(windows)


def test_real_files(compare, both, sample):
    random = np.random.default_rng(6)
    sizes, _ = both[0].sizes(sample)
    windows = [random_windows(random, *size, 1)[0] for size in sizes.tolist()]
    for start in range(0, len(sample), 50):
        part = slice(start, start + 50)
        settings = {"resample": ("bilinear", "bicubic")[start // 50 % 2], "antialias": start % 100 == 0}
        assert compare(sample[part], windows[part], (96, 80), **settings) == len(sample[part])


@pytest.mark.parametrize("kind", KINDS)
def test_the_end_is_missed_where_libjpeg_misses_it(compare, picture, encode, kind):
    """Cut at every byte near where the window's last row ends, with and without an end marker."""
    width, height = 50, 64
    data = encode(picture(width, height), kind)
    random = np.random.default_rng(7)
    images, windows = [], []
    for bottom in (8, 14, 15, 16, 17, 31, 32, 33, 62, 63, 64):
        for length in random.integers(len(data) // 4, len(data) + 1, 150).tolist():
            images.append(data[:length] + (b"\xff\xd9" if length % 2 else b""))
            windows.append((7, bottom - 4, 20, 4))
    assert 0 < compare(images, windows, (4, 5)) < len(images)


@pytest.mark.parametrize("kind", KINDS)
def test_damage_gets_the_same_verdict(compare, picture, encode, kind):
    width, height = 90, 60
    data = encode(picture(width, height), kind)
    head = data.index(b"\xff\xda") + 14
    random = np.random.default_rng(8)
    images = []
    for index in range(1500):
        damaged = bytearray(data)
        begin, end = ((0, head), (head, len(data)))[index % 2]
        for place in random.integers(begin, end, int(random.integers(1, 4))):
            damaged[place] = (0xFF, int(random.integers(256)))[int(random.integers(4)) > 0]
        images.append(bytes(damaged))
    compare(images, random_windows(random, width, height, len(images)), (9, 10))


def test_gray_with_sampling_factors(compare, picture, encode):
    """They mean nothing to a lone component, but how many rows of blocks libjpeg decodes together."""
    data = encode(picture(50, 70), "gray")
    at = data.index(b"\xff\xc0") + 11
    for factors in (0x11, 0x22, 0x12, 0x21, 0x44, 0x13):
        changed = data[:at] + bytes([factors]) + data[at + 1 :]
        images = [changed[:length] for length in range(len(data) // 2, len(data), 7)]
        for bottom in (8, 9, 24, 33, 70):
            compare(images, [(3, bottom - 8, 40, 8)] * len(images), (4, 5))


def test_tables_of_16_bits_and_large_coefficients(compare, picture):
    """What makes libjpeg-turbo's 16-bit arithmetic overflow comes out the same too."""
    random = np.random.default_rng(9)
    for scale in (1, 40, 300):
        buffer = io.BytesIO()
        tables = [[int(value) for value in random.integers(1, 256, 64)] for _ in range(2)]
        Image.fromarray(picture(64, 48)).save(buffer, "JPEG", qtables=tables, subsampling=0)
        data = bytearray(buffer.getvalue())
        for at in range(len(data)):
            if data[at : at + 4] != b"\xff\xdb\x00\x43":
                continue
            values = b"".join((value * scale % 65536).to_bytes(2, "big") for value in data[at + 5 : at + 69])
            data[at : at + 69] = b"\xff\xdb\x00\x83" + bytes([data[at + 4] | 0x10]) + values
        assert data.count(b"\xff\xdb\x00\x83") == 2
        windows = random_windows(random, 64, 48, 20)
        assert compare([bytes(data)] * 20, windows) == 20


def test_colour_that_is_not_ycc(compare, picture):
    buffer = io.BytesIO()
    Image.fromarray(picture(64, 48)).save(buffer, "JPEG", keep_rgb=True)
    assert compare([buffer.getvalue()], [(5, 6, 50, 40)]) == 1
