"""Which part of an image a sample shows, and whether it is mirrored.

Both are functions of (seed, epoch, record) and of the image's size.

Windows are (x, y, width, height) in source pixels, at least 1 x 1 and inside the image. Only integer
arithmetic and the IEEE operations + - * / sqrt rint are used, each rounded as IEEE 754 says, never exp or log
of a C library: every machine draws the same windows.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from feeder.order.hashing import Purpose, draws, fold, key_of, steps_of
from feeder.spec import Augment, Sampler

__all__ = ["Sizes", "Windows", "eval_windows", "smallest_window", "train_windows", "whole_windows"]

Sizes: TypeAlias = NDArray[np.int32]
"""int32 [n, 2]: width and height of each image, at least 1."""
Windows: TypeAlias = NDArray[np.int32]
"""int32 [n, 4]: x, y, width, height."""
Halves: TypeAlias = NDArray[np.uint32]
"""uint32 [n, 2, attempts, 2]: four draws an attempt, each uniform in [0, 2**32)."""

# torchvision's RandomResizedCrop(scale, ratio) and the reference ResNet's sample_distorted_bounding_box use
# the same numbers. The latter's effective least area is its min_object_covered, since its one object is the
# whole image; its largest area, all of the image, needs no factor below.
ATTEMPTS = 10
MIN_AREA, MAX_AREA = 0.08, 1.0
MIN_RATIO, MAX_RATIO = 3 / 4, 4 / 3
MIN_COVERED = 0.1

_ROOT_MIN_AREA = float(np.sqrt(MIN_AREA))
_LOG_MAX_RATIO = 0.2876820724517809
"""log(4/3), and -log(3/4)."""

_STEPS = steps_of(2 * ATTEMPTS + 1)
_UNIT = 2.0**-32
_HALF = np.uint64(1 << 63)

# 1/k! for k = 8..0: the Taylor polynomial of exp. The first term left out is at most 0.28769**9 / 9! =
# 3.8e-11 for |x| <= log(4/3), and all that follow add 3 % to it: the relative error is below 1e-10.
_EXP_TERMS = (1 / 40320, 1 / 5040, 1 / 720, 1 / 120, 1 / 24, 1 / 6, 1 / 2, 1.0, 1.0)


def _exp(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """exp(x) for |x| <= log(4/3), with a relative error below 1e-10."""
    result = np.full_like(x, _EXP_TERMS[0])
    for term in _EXP_TERMS[1:]:
        result *= x
        result += term
    return result


# Square roots of ratios between 3/4 and 4/3, evenly spaced in the logarithm, each at the middle of its
# interval; a step changes a width of 4,000 pixels by 0.02.
_RATIO_BITS = 16
_ROOT_RATIOS = np.sqrt(
    _exp((2.0 * (np.arange(2.0**_RATIO_BITS) + 0.5) / 2**_RATIO_BITS - 1.0) * _LOG_MAX_RATIO)
)


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
    Draws are 32 bits fine, sums in float64 (the reference's in float32): the distributions are theirs, not
    the very numbers.
    """
    if isinstance(epoch, int):
        keys = key_of(Purpose.WINDOW, seed, epoch)
    else:
        keys = fold(key_of(Purpose.WINDOW, seed), epoch.view(np.uint64))
    keys = fold(keys, records.view(np.uint64))
    bits = draws(keys[:, None], _STEPS)
    flips = bits[:, -1] >= _HALF
    # Each number gives two draws of 32 bits, the lower half first on machines of either byte order.
    halves = bits.astype("<u8", copy=False)[:, :-1].view("<u4").reshape(-1, 2, ATTEMPTS, 2)
    sides = sizes.astype(np.float64)
    windows = (_torchvision if sampler == "torchvision" else _inception)(halves, sides)
    return windows, flips


def eval_windows(sampler: Sampler, image_size: int, sizes: Sizes) -> Windows:
    """The centred evaluation window of each image, int32 [n, 4].

    "torchvision": as Resize(round(image_size * 256 / 224)) and CenterCrop(image_size) take it, in whole
    source pixels (the nearest ones). "inception": a square of 7/8 of the short side, at ((side - square) + 1)
    // 2, as the reference does for 224; other image sizes keep that proportion.
    """
    if sampler == "inception":
        return _inception_center(sizes.astype(np.float64)).astype(np.int32)
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
    """The least width and height that a window of each image can have, int32 [n, 2], for reduce="auto".

    Depends on the spec and the image's size only, never on what is drawn. A lower bound under "train" (some
    windows may never be that small); under "eval" and "none" the window's own size.
    """
    if augment == "none":
        return sizes.astype(np.int32)
    if augment == "eval":
        return eval_windows(sampler, image_size, sizes)[:, 2:]
    sides = sizes.astype(np.float64)
    area = sides[:, :1] * sides[:, 1:]
    if sampler == "torchvision":
        # Either side of a window of area a and a ratio in [3/4, 4/3] is at least sqrt(3/4 a).
        drawn = np.floor(np.sqrt(MIN_AREA * MIN_RATIO * area))
        fallback = _ratio_extent(sides)
    else:
        # w * h >= 0.1 area, and rounding w = rint(h * ratio) leaves h <= (w + 1/2) * 4/3 and w <= h * 4/3 +
        # 1/2: so w * (w + 1/2) and h * (h + 3/8) are at least 3/40 of the area.
        least = MIN_COVERED * MIN_RATIO * area
        drawn = np.floor((np.sqrt(0.25 + 4 * least) - 0.5) / 2).repeat(2, axis=1)
        fallback = _inception_square(sides)
    return np.maximum(1, np.minimum(drawn, fallback)).astype(np.int32)


def _torchvision(halves: Halves, sides: NDArray[np.float64]) -> Windows:
    """RandomResizedCrop. Draws of an attempt: area, ratio; x, y."""
    extents = np.empty((2, len(sides), ATTEMPTS))
    roots = halves[:, 0, :, 0] * ((MAX_AREA - MIN_AREA) * _UNIT)
    roots += MIN_AREA
    roots *= (sides[:, 0] * sides[:, 1])[:, None]
    np.sqrt(roots, roots)
    root_ratios = _ROOT_RATIOS.take(halves[:, 0, :, 1] >> (32 - _RATIO_BITS))
    np.multiply(roots, root_ratios, extents[0])
    np.divide(roots, root_ratios, extents[1])
    np.rint(extents, extents)
    windows, missed = _place(extents, extents[0] * extents[1] > 0, halves, sides, spare=1)
    if missed.any():
        windows[missed] = _ratio_center(sides[missed])
    return windows


def _inception(halves: Halves, sides: NDArray[np.float64]) -> Windows:
    """sample_distorted_bounding_box. Draws of an attempt: ratio, height; x, y."""
    width, height = sides[:, :1], sides[:, 1:]
    total = width * height
    least = MIN_AREA * total
    ratios = halves[:, 0, :, 0] * ((MAX_RATIO - MIN_RATIO) * _UNIT)
    ratios += MIN_RATIO
    roots = np.sqrt(total / ratios)
    # The tallest that neither is too wide, once its width is rounded, nor too high. The 1e-7 is the
    # reference's.
    high = np.minimum(np.rint(roots), np.floor((width + (0.5 - 1e-7)) / ratios))
    high = np.minimum(high, height)
    low = np.minimum(np.rint(roots * _ROOT_MIN_AREA), high)
    heights = low + np.floor(halves[:, 0, :, 1] * (high - low + 1.0) * _UNIT)
    # Rounding may have put the area a little outside of its range: one row more or less may mend it.
    areas = np.rint(heights * ratios) * heights
    heights += areas < least
    heights -= areas > total
    extents = np.empty((2, len(sides), ATTEMPTS))
    np.rint(heights * ratios, extents[0])
    extents[1] = heights
    np.multiply(extents[0], heights, areas)
    fits = areas >= MIN_COVERED * total
    fits &= areas <= total
    windows, missed = _place(extents, fits, halves, sides, spare=0)
    whole = windows[:, 2:] == sides
    missed |= whole[:, 0] & whole[:, 1]
    if missed.any():
        windows[missed] = _inception_center(sides[missed])
    return windows


def _place(
    extents: NDArray[np.float64],
    fits: NDArray[np.bool_],
    halves: Halves,
    sides: NDArray[np.float64],
    *,
    spare: int,
) -> tuple[Windows, NDArray[np.bool_]]:
    """The first attempt that fits into the image, at a random place.

    Args:
        extents: float64 [2, n, attempts], widths and heights.
        fits: bool [n, attempts], what else an attempt must meet.
        halves: the draws; the second of an attempt place it.
        sides: float64 [n, 2].
        spare: an offset is uniform in [0, side - extent + spare), or 0 where that is empty.

    Returns:
        windows int32 [n, 4], and bool [n] where no attempt fits (and the window is rubbish).
    """
    inside = extents <= sides.T[:, :, None]
    fits &= inside[0]
    fits &= inside[1]
    rows, chosen = np.arange(len(sides)), fits.argmax(axis=1)
    missed = ~fits[rows, chosen]
    extent = extents[:, rows, chosen].T
    room = sides - extent
    room += spare
    room *= halves[rows, 1, chosen]  # below 2**17 times 32 bits: exact in float64
    room *= _UNIT
    windows = np.empty((len(sides), 4), np.int32)
    windows[:, :2] = room
    windows[:, 2:] = extent
    return windows, missed


def _ratio_center(sides: NDArray[np.float64]) -> NDArray[np.float64]:
    """float64 [n, 4]: the largest centred window of a ratio in [3/4, 4/3], RandomResizedCrop's last
    resort.
    """
    extent = _ratio_extent(sides)
    windows = np.empty((len(sides), 4))
    windows[:, :2] = np.floor((sides - extent) / 2)
    windows[:, 2:] = extent
    return windows


def _ratio_extent(sides: NDArray[np.float64]) -> NDArray[np.float64]:
    """float64 [n, 2], of `_ratio_center`: no side is longer than 4/3 of the other."""
    return np.minimum(sides, np.rint(sides[:, ::-1] * MAX_RATIO))


def _inception_center(sides: NDArray[np.float64]) -> NDArray[np.float64]:
    """float64 [n, 4]: the reference's evaluation crop."""
    square = _inception_square(sides)
    windows = np.empty((len(sides), 4))
    windows[:, :2] = np.floor(np.minimum((sides - square + 1) / 2, sides - square))
    windows[:, 2:] = square
    return windows


def _inception_square(sides: NDArray[np.float64]) -> NDArray[np.float64]:
    """float64 [n, 1], side of `_inception_center`: 7/8 of the short one, rounded down, and never empty."""
    return np.maximum(1, np.floor(np.minimum(sides[:, :1], sides[:, 1:]) * (7 / 8)))
