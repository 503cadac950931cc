"""Crop and resize of decoded pixels with Pillow: the portable path's half of the work.

Geometry, the same as the native kernel's: a window (x, y, width, height) is in pixels of the full image. Of
an image decoded at 1/r the pixels that the window touches are cut out, and the window's own, fractional, box
of them is resampled; nothing outside of the cut contributes. Pixel centres are at half-integers. With
antialias the filter's support grows with the scale, as Pillow and torchvision do it; without, it stays at one
source pixel. "tf1_bicubic" is TensorFlow 1's resize_bicubic: pixel centres are at whole numbers, and nothing
antialiases.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from PIL import Image

from feeder.spec import Resample

__all__ = ["crop_resize"]

_FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
_CUBIC_A = -0.5  # Pillow's, and torchvision's where it antialiases
_TF1_CUBIC_A = -0.75


def crop_resize(
    pixels: npt.NDArray[np.uint8],
    window: tuple[int, int, int, int],
    out: npt.NDArray[np.uint8],
    *,
    reduction: int,
    flip: bool,
    resample: Resample,
    antialias: bool,
) -> None:
    """Resamples a window of decoded pixels into a slot.

    Args:
        pixels: uint8 [h, w, 3], the image decoded at 1/reduction.
        window: (x, y, width, height) in pixels of the full image, within it.
        out: uint8 [H, W, 3], written in full.
        reduction: 1, 2, 4 or 8.
        flip: mirror left and right after resampling.
        resample: "bilinear", "bicubic" or "tf1_bicubic".
        antialias: whether the filter grows with the scale.
    """
    x, y, width, height = window
    left, top = x // reduction, y // reduction
    right, bottom = -(-(x + width) // reduction), -(-(y + height) // reduction)
    cut = pixels[top:bottom, left:right]
    box = (
        x / reduction - left,
        y / reduction - top,
        (x + width) / reduction - left,
        (y + height) / reduction - top,
    )
    if antialias and resample != "tf1_bicubic":
        image = Image.fromarray(np.ascontiguousarray(cut))
        resized = np.asarray(image.resize((out.shape[1], out.shape[0]), _FILTERS[resample], box=box))
    else:
        taps = _tf1_taps if resample == "tf1_bicubic" else _taps
        columns = taps(box[0], box[2], cut.shape[1], out.shape[1], resample)
        rows = taps(box[1], box[3], cut.shape[0], out.shape[0], resample)
        resized = _interpolate(cut, rows, columns)
    out[...] = resized[:, ::-1] if flip else resized


_Taps = tuple[npt.NDArray[np.intp], npt.NDArray[np.float32]]


def _taps(start: float, end: float, pixels: int, outputs: int, resample: Resample) -> _Taps:
    """Source positions and weights (both [outputs, taps]) of an interpolation that does not antialias.

    Taps beyond the edge have no weight, and the others are scaled up to a sum of 1; for bilinear that is the
    same as repeating the edge pixel.
    """
    support = 1 if resample == "bilinear" else 2
    centers = start + (np.arange(outputs) + 0.5) * ((end - start) / outputs)
    first = np.floor(centers - 0.5).astype(np.intp) - (support - 1)
    positions = first[:, None] + np.arange(2 * support)
    distance = np.abs(positions + 0.5 - centers[:, None])
    if resample == "bilinear":
        weights = np.maximum(1.0 - distance, 0.0)
    else:
        near = ((_CUBIC_A + 2) * distance - (_CUBIC_A + 3)) * distance**2 + 1
        far = ((distance - 5) * distance + 8) * distance * _CUBIC_A - 4 * _CUBIC_A
        weights = np.where(distance < 1, near, np.where(distance < 2, far, 0.0))
    weights[(positions < 0) | (positions >= pixels)] = 0.0
    weights /= weights.sum(axis=1, keepdims=True)
    return positions.clip(0, pixels - 1), weights.astype(np.float32)


def _tf1_taps(start: float, end: float, pixels: int, outputs: int, _: Resample) -> _Taps:
    """As _taps, in TensorFlow's float32: positions are rounded to 1/1024, edge pixels are repeated."""
    scale = np.float32(end - start) / np.float32(outputs)
    centers = np.float32(start) + scale * np.arange(outputs, dtype=np.float32)
    first = np.floor(centers)
    offset = np.rint((centers - first) * np.float32(1024)).astype(np.float64) / 1024
    distance = np.abs(offset[:, None] + np.array([1.0, 0.0, -1.0, -2.0]))
    near = ((_TF1_CUBIC_A + 2) * distance - (_TF1_CUBIC_A + 3)) * distance**2 + 1
    far = ((distance - 5) * distance + 8) * distance * _TF1_CUBIC_A - 4 * _TF1_CUBIC_A
    weights = np.where(distance <= 1, near, far)
    positions = first.astype(np.intp)[:, None] + np.arange(-1, 3)
    return positions.clip(0, pixels - 1), weights.astype(np.float32)


def _interpolate(pixels: npt.NDArray[np.uint8], rows: _Taps, columns: _Taps) -> npt.NDArray[np.uint8]:
    positions, weights = rows
    tall = np.zeros((len(positions), *pixels.shape[1:]), np.float32)
    for tap in range(positions.shape[1]):
        tall += pixels[positions[:, tap]] * weights[:, tap, None, None]
    positions, weights = columns
    wide = np.full(
        (tall.shape[0], len(positions), 3), 0.5, np.float32
    )  # half a level, so that the cast rounds
    for tap in range(positions.shape[1]):
        wide += tall[:, positions[:, tap]] * weights[None, :, tap, None]
    return wide.clip(0, 255).astype(np.uint8)
