"""Which part of an image a sample shows, and whether it is mirrored: functions of (seed, epoch, record, image
size).

All windows are (x, y, width, height) in source pixels, at least 1 x 1 and inside the image. Only integer
arithmetic and the IEEE operations + - * / sqrt rint are used, each rounded as IEEE 754 says, never exp or log
of a C library: every machine draws the same windows."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from feeder.order.hashing import Purpose, Words, draws, fold, stream_key
from feeder.spec import Augment, Sampler

__all__ = ["Sizes", "Windows", "eval_windows", "smallest_window", "train_windows", "whole_windows"]

Sizes: TypeAlias = NDArray[np.int32]
"""int32 [n, 2]: width and height of each image, at least 1."""
Windows: TypeAlias = NDArray[np.int32]
"""int32 [n, 4]: x, y, width, height."""

# torchvision's RandomResizedCrop(scale, ratio) and the reference ResNet's sample_distorted_bounding_box use
# the same numbers; the latter's effective minimum area is its min_object_covered, since its one object is the
# whole image.
ATTEMPTS = 10
MIN_AREA, MAX_AREA = 0.08, 1.0
MIN_RATIO, MAX_RATIO = 3 / 4, 4 / 3
MIN_COVERED = 0.1

_LOG_MAX_RATIO = 0.2876820724517809
"""log(4/3), and -log(3/4)."""

_FLIP_COUNTER = 4 * ATTEMPTS
_COUNTERS = np.arange(_FLIP_COUNTER + 1, dtype=np.uint64)
_UNIT = 2.0**-53
_S11, _S32, _S63 = np.uint64(11), np.uint64(32), np.uint64(63)

# 1/k! for k = 8..0, the Taylor polynomial of exp.
_EXP_TERMS = (1 / 40320, 1 / 5040, 1 / 720, 1 / 120, 1 / 24, 1 / 6, 1 / 2, 1.0, 1.0)


def train_windows(
    sampler: Sampler,
    seed: int,
    epoch: int | NDArray[np.int64],
    records: NDArray[np.int64],
    sizes: Sizes,
) -> tuple[Windows, NDArray[np.bool_]]:
    """The random window and flip of each record in an epoch.

    Args:
        sampler: "torchvision" is RandomResizedCrop: area uniform in [0.08, 1] of the image, logarithm of the
            ratio width/height uniform between those of 3/4 and 4/3. "inception" is TensorFlow's
            sample_distorted_bounding_box as the reference ResNet calls it: ratio uniform in [3/4, 4/3], then
            height uniform among the whole numbers that keep the area in [0.08, 1], at least 0.1 of the image
            covered.
        seed: in [0, 2**63).
        epoch: one for all, or int64 [n] (what `Order.epochs_of` gives: under "wrap" each pass draws anew).
        records: int64 [n], numbers in the data set, from 0.
        sizes: int32 [n, 2], width and height.

    Returns:
        windows int32 [n, 4] and flips bool [n], each flip with probability 1/2.

    Where none of ten attempts fits, torchvision takes the largest centred window of an allowed ratio, and the
    reference its centred evaluation crop, which it also takes where the window happens to be the whole image.
    """
    epochs = np.array([epoch], np.uint64) if isinstance(epoch, int) else epoch.astype(np.uint64)
    keys = fold(fold(stream_key(Purpose.WINDOW, seed), epochs), records.astype(np.uint64))
    bits = draws(keys[:, None], _COUNTERS)
    flips = (bits[:, _FLIP_COUNTER] >> _S63).astype(np.bool_)
    attempts = bits[:, :_FLIP_COUNTER].reshape(-1, 4, ATTEMPTS)
    sides = sizes.astype(np.float64)
    if sampler == "torchvision":
        return _torchvision(attempts, sides), flips
    return _inception(attempts, sides), flips


def eval_windows(sampler: Sampler, image_size: int, sizes: Sizes) -> Windows:
    """The centred evaluation window of each image, int32 [n, 4].

    "torchvision": as Resize(round(image_size * 256 / 224)) and CenterCrop(image_size) take it, in whole
    source pixels (the nearest ones). "inception": a square of 7/8 of the short side, at ((side - square) + 1)
    // 2, as the reference does for 224; other image sizes keep that proportion."""
    if sampler == "inception":
        return _inception_center(sizes.astype(np.int64)).astype(np.int32)
    sides = sizes.astype(np.int64)
    short = sides.min(axis=1, keepdims=True)
    resized_short = int(np.rint(image_size * 256 / 224))
    resized = resized_short * sides // short
    first = np.rint((resized - image_size) / 2)
    scale = sides / resized
    extent = np.clip(np.rint(image_size * scale), 1, sides)
    corner = np.clip(np.rint(first * scale), 0, sides - extent)
    return np.concatenate([corner, extent], axis=1).astype(np.int32)


def whole_windows(sizes: Sizes) -> Windows:
    """The whole of each image, int32 [n, 4]."""
    windows = np.zeros((len(sizes), 4), np.int32)
    windows[:, 2:] = sizes
    return windows


def smallest_window(augment: Augment, sampler: Sampler, sizes: Sizes, image_size: int) -> Sizes:
    """Lower bounds of the width and the height of any window of each image, int32 [n, 2], for reduce="auto".

    Depends on the spec and the image's size only, never on what is drawn. For "eval" and "none" the bound is
    the window."""
    if augment == "none":
        return sizes.astype(np.int32)
    if augment == "eval":
        return eval_windows(sampler, image_size, sizes)[:, 2:]
    sides = sizes.astype(np.float64)
    area = sides[:, :1] * sides[:, 1:]
    if sampler == "torchvision":
        # Either side of a window of area a and a ratio in [3/4, 4/3] is at least sqrt(3/4 a).
        drawn = np.floor(np.sqrt(MIN_AREA * MIN_RATIO * area))
        fallback = _ratio_center(sides)
    else:
        # w * h >= 0.1 area, and rounding w = rint(h * ratio) leaves h <= (w + 1/2) * 4/3 and w <= h * 4/3 +
        # 1/2: so w * (w + 1/2) and h * (h + 3/8) are at least 3/40 of the area.
        least = MIN_COVERED * MIN_RATIO * area
        drawn = np.floor((np.sqrt(0.25 + 4 * least) - 0.5) / 2)
        fallback = _inception_center(sizes.astype(np.int64)).astype(np.float64)
    return np.maximum(1, np.minimum(drawn, fallback[:, 2:])).astype(np.int32)


def _torchvision(attempts: Words, sides: NDArray[np.float64]) -> Windows:
    """attempts uint64 [n, 4 (area, ratio, y, x), 10]; sides float64 [n, 2] (width, height)."""
    uniform = _uniform(attempts[:, :2])
    width, height = sides[:, :1], sides[:, 1:]
    area = uniform[:, 0] * (MAX_AREA - MIN_AREA)
    area += MIN_AREA
    area *= width * height
    ratio = _exp((uniform[:, 1] * 2.0 - 1.0) * _LOG_MAX_RATIO)
    widths = np.rint(np.sqrt(area * ratio))
    heights = np.rint(np.sqrt(area / ratio))
    fits = (widths <= width) & (heights <= height) & (widths >= 1) & (heights >= 1)
    windows = _first(fits, widths, heights, attempts, sides, last_offset=True)
    missed = ~fits.any(axis=1)
    if missed.any():
        windows[missed] = _ratio_center(sides[missed])
    return windows.astype(np.int32)


def _inception(attempts: Words, sides: NDArray[np.float64]) -> Windows:
    """attempts uint64 [n, 4 (ratio, height, y, x), 10]; sides float64 [n, 2] (width, height)."""
    width, height = sides[:, :1], sides[:, 1:]
    total = width * height
    least = MIN_AREA * total
    ratio = _uniform(attempts[:, 0]) * (MAX_RATIO - MIN_RATIO) + MIN_RATIO
    low = np.rint(np.sqrt(least / ratio))
    high = np.rint(np.sqrt(MAX_AREA * total / ratio))
    # The tallest window whose rounded width still fits. The reference keeps 1e-7 off the half for rounding.
    narrow = np.rint(high * ratio) > width
    tallest = np.floor((width + (0.5 - 1e-7)) / ratio)
    tallest -= np.rint(tallest * ratio) > width
    high = np.minimum(np.where(narrow, tallest, high), height)
    low = np.minimum(low, high)
    heights = low + _whole(attempts[:, 1], high - low + 1)
    # Rounding may have put the area a little outside of its range: one row more, then one row less, may mend
    # it.
    widths = np.rint(heights * ratio)
    heights += widths * heights < least
    widths = np.rint(heights * ratio)
    heights -= widths * heights > MAX_AREA * total
    widths = np.rint(heights * ratio)
    areas = widths * heights
    fits = (areas >= max(MIN_AREA, MIN_COVERED) * total) & (areas <= MAX_AREA * total) & (widths >= 1)
    fits &= (widths <= width) & (heights <= height)
    windows = _first(fits, widths, heights, attempts, sides, last_offset=False)
    center = ~fits.any(axis=1) | (windows[:, 2:] == sides).all(axis=1)
    if center.any():
        windows[center] = _inception_center(sides[center].astype(np.int64))
    return windows.astype(np.int32)


def _first(
    fits: NDArray[np.bool_],
    widths: NDArray[np.float64],
    heights: NDArray[np.float64],
    attempts: Words,
    sides: NDArray[np.float64],
    *,
    last_offset: bool,
) -> NDArray[np.float64]:
    """The first attempt that fits, at a random place, float64 [n, 4]; rubbish where none fits.

    Offsets are uniform in [0, room], or in [0, room) where last_offset is false, with room the side less the
    extent."""
    lines = np.arange(len(fits))
    first = fits.argmax(axis=1)
    windows = np.empty((len(fits), 4))
    extent = windows[:, 2:]
    extent[:, 0] = widths[lines, first]
    extent[:, 1] = heights[lines, first]
    room = sides - extent
    room = room + 1 if last_offset else np.maximum(room, 1)
    places = attempts[lines, 2:, first]
    windows[:, 0] = _whole(places[:, 1], np.maximum(room[:, 0], 1))
    windows[:, 1] = _whole(places[:, 0], np.maximum(room[:, 1], 1))
    return windows


def _ratio_center(sides: NDArray[np.float64]) -> NDArray[np.float64]:
    """The largest centred window whose ratio is within [3/4, 4/3], as RandomResizedCrop falls back to; [n,
    4]."""
    width, height = sides[:, 0], sides[:, 1]
    windows = np.empty((len(sides), 4))
    windows[:, 2] = np.where(width / height > MAX_RATIO, np.rint(height * MAX_RATIO), width)
    windows[:, 3] = np.where(width / height < MIN_RATIO, np.rint(width / MIN_RATIO), height)
    windows[:, :2] = np.floor((sides - windows[:, 2:]) / 2)
    return windows


def _inception_center(sides: NDArray[np.int64]) -> NDArray[np.int64]:
    square = np.maximum(1, sides.min(axis=1) * 7 // 8)[:, None]
    corner = np.minimum((sides - square + 1) // 2, sides - square)
    return np.concatenate([corner, square, square], axis=1)


def _uniform(bits: Words) -> NDArray[np.float64]:
    """The upper 53 bits as a multiple of 2**-53 in [0, 1)."""
    return (bits >> _S11).astype(np.float64) * _UNIT


def _whole(bits: Words, limits: NDArray[np.float64]) -> NDArray[np.float64]:
    """The upper 32 bits as a whole number in [0, limit), limits whole and in [1, 2**31]; bias below 2**-16 of
    a share."""
    scaled = (bits >> _S32) * limits.astype(np.uint64)
    return (scaled >> _S32).astype(np.float64)


def _exp(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """exp(x) for |x| <= log(4/3), by Taylor's polynomial of degree 8; the relative error is below 1e-10.

    The first term left out is at most 0.28769**9 / 9! = 3.8e-11, and all that follow add 3 % to it.
    """
    result = np.full_like(x, _EXP_TERMS[0])
    for term in _EXP_TERMS[1:]:
        result *= x
        result += term
    return result
