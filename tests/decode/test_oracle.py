"""Both decoders against the slow reference: Pillow decodes everything, crops, and resizes."""

from __future__ import annotations

import io
import math

import numpy as np
import pytest
import simplejpeg
from PIL import Image

# Of channel values: mean absolute difference, and the share of them that are off by more than 8.
MEAN_BOUND, FAR_BOUND = 1.0, 0.01


def reference(data, window, size, resample, flip):
    x, y, width, height = window
    with Image.open(io.BytesIO(data)) as image:
        cut = image.convert("RGB").crop((x, y, x + width, y + height))
    pixels = np.asarray(cut.resize(size[::-1], resample))
    return pixels[:, ::-1] if flip else pixels


def random_windows(sizes, seed):
    """Windows as a training sampler draws them: 8 to 100 % of the area, 3:4 to 4:3."""
    random = np.random.default_rng(seed)
    windows = np.empty((len(sizes), 4), np.int32)
    for index, (width, height) in enumerate(sizes.tolist()):
        area = width * height * random.uniform(0.08, 1)
        ratio = np.exp(random.uniform(np.log(3 / 4), np.log(4 / 3)))
        w = min(width, max(1, round((area * ratio) ** 0.5)))
        h = min(height, max(1, round((area / ratio) ** 0.5)))
        windows[index] = random.integers(0, width - w + 1), random.integers(0, height - h + 1), w, h
    return windows, random.random(len(sizes)) < 0.5


def test_each_real_file_within_bounds(native, portable, sample):
    sizes, reasons = native.sizes(sample)
    assert reasons == [None] * len(sample)
    windows, flips = random_windows(sizes, seed=len(sample))
    batches = []
    for decoder in (native, portable):
        out = np.empty((len(sample), 224, 224, 3), np.uint8)
        assert decoder.decode(sample, windows, flips, out) == [None] * len(sample)
        batches.append(out)
    for index, data in enumerate(sample):
        expected = reference(data, windows[index], (224, 224), Image.Resampling.BILINEAR, flips[index])
        for out in batches:
            difference = np.abs(out[index].astype(np.int16) - expected)
            assert difference.mean() <= MEAN_BOUND, (index, windows[index])
            assert (difference > 8).mean() <= FAR_BOUND, (index, windows[index])


@pytest.fixture
def pale(picture):
    """A picture without black, white or pure colours, which are clipped before resampling or after it."""
    return picture(300, 200) // 2 + 64


@pytest.mark.parametrize(
    ("window", "size"),
    [
        ((0, 0, 300, 200), (224, 224)),
        ((3, 5, 40, 30), (224, 224)),  # enlarged
        ((0, 0, 300, 200), (3, 5)),  # shrunk 60-fold: the path of 32-bit sums
        ((7, 9, 280, 190), (1, 1)),
        ((10, 20, 1, 1), (9, 7)),
        ((10, 20, 2, 150), (64, 31)),
    ],
)
@pytest.mark.parametrize("resample", ["bilinear", "bicubic"])
def test_antialiased_filters_are_those_of_pillow(decoder, one, pale, encode, window, size, resample):
    data = encode(pale, "444")
    pixels, reason = one(decoder, data, window, size, resample=resample)
    assert reason is None
    expected = reference(data, window, size, Image.Resampling[resample.upper()], flip=False)
    # Pillow rounds between its two passes.
    difference = np.abs(pixels.astype(np.int16) - expected)
    assert difference.mean() <= 0.5
    assert difference.max() <= 2


@pytest.mark.parametrize("resample", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [(224, 224), (30, 40), (1, 1)])
def test_without_antialias_both_decoders_agree(native, portable, one, pale, encode, resample, size):
    data = encode(pale, "444")
    first, _ = one(native, data, (11, 13, 250, 150), size, resample=resample, antialias=False)
    second, _ = one(portable, data, (11, 13, 250, 150), size, resample=resample, antialias=False)
    assert np.abs(first.astype(np.int16) - second).max() <= 2


def tf1_resize_bicubic(pixels, size):
    """TensorFlow 1's resize_bicubic (half_pixel_centers and align_corners false) by its definition."""

    def kernel(distance):
        a = -0.75
        if distance <= 1:
            return (a + 2) * distance**3 - (a + 3) * distance**2 + 1
        return a * distance**3 - 5 * a * distance**2 + 8 * a * distance - 4 * a

    def matrix(pixels, outputs):
        weights = np.zeros((outputs, pixels))
        scale = np.float32(pixels) / np.float32(outputs)
        for output in range(outputs):
            position = scale * np.float32(output)
            base = math.floor(position)
            offset = round(float((position - np.float32(base)) * np.float32(1024))) / 1024
            for tap in (-1, 0, 1, 2):
                weights[output, min(max(base + tap, 0), pixels - 1)] += kernel(abs(offset - tap))
        return weights

    height, width = pixels.shape[:2]
    rows, columns = matrix(height, size[0]), matrix(width, size[1])
    return np.einsum("yh,hwc,xw->yxc", rows, pixels, columns, optimize=True)


@pytest.mark.parametrize("antialias", [True, False])
@pytest.mark.parametrize(
    ("window", "size"),
    [
        ((0, 0, 300, 200), (224, 224)),
        ((3, 5, 40, 30), (96, 81)),
        ((11, 13, 250, 150), (9, 4)),
        ((10, 20, 1, 1), (5, 7)),
        ((10, 20, 3, 2), (16, 16)),
    ],
)
def test_tf1_bicubic_is_that_of_tensorflow(decoder, one, pale, encode, window, size, antialias):
    data = encode(pale, "444")
    pixels, reason = one(decoder, data, window, size, resample="tf1_bicubic", antialias=antialias)
    assert reason is None
    x, y, width, height = window
    cut = simplejpeg.decode_jpeg(data)[y : y + height, x : x + width]
    expected = tf1_resize_bicubic(cut, size).clip(0, 255)
    assert np.abs(pixels - expected).max() <= 1.5, "the decoders round to whole levels"


def test_bilinear_without_antialias_takes_the_two_nearest_pixels(decoder, one):
    columns = np.repeat(np.arange(0, 256, 16, dtype=np.uint8)[None, :, None], 16, axis=0).repeat(3, axis=2)
    buffer = io.BytesIO()
    Image.fromarray(columns).save(buffer, "PNG")
    pixels, _ = one(decoder, buffer.getvalue(), (0, 0, 16, 16), (1, 4), antialias=False)
    # Output centers fall on source positions 2, 6, 10, 14: half way between pixels 1 and 2, 5 and 6, ...
    assert pixels[0, :, 0].tolist() == [24, 88, 152, 216]


def test_antialias_flattens_a_checkerboard(decoder, one, odd_images):
    (checker,) = [image for image in odd_images if image.name.endswith("resize_checker.jpg")]
    smooth, _ = one(decoder, checker.data, (0, 0, 320, 240), (60, 80))
    assert np.abs(smooth.astype(np.int16) - 127).max() <= 12


@pytest.mark.parametrize("reduction", [2, 4, 8])
def test_reduced_decoding_stays_near_the_full_one(decoder, one, picture, encode, reduction):
    data = encode(picture(401, 303), "420")
    size = (16, 16)
    for window in ((0, 0, 401, 303), (33, 21, 301, 250), (1, 1, 400, 302)):
        full, _ = one(decoder, data, window, size)
        reduced, reason = one(decoder, data, window, size, reduction=reduction)
        assert reason is None
        assert np.abs(full.astype(np.int16) - reduced).mean() < 3, (
            "a window that is off by a pixel gives more"
        )
