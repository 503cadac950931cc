"""The slow and obvious answer that every contestant's output is held against before it is timed."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Agreement", "agreement", "expected"]

Images = npt.NDArray[np.uint8]

FAR_OFF = 8
"""A channel value that is off by more than this many levels counts as far off."""


@dataclass(frozen=True)
class Agreement:
    """How far outputs lie from the oracle's, over all channel values, in levels of 0 to 255."""

    mean_abs: float
    far_off: float
    """Share of the values that are off by more than 8."""
    worst_image: float
    """Largest mean absolute difference of one image."""


def expected(
    images: Sequence[bytes],
    windows: npt.NDArray[np.int64],
    flips: npt.NDArray[np.bool_],
    size: int,
    *,
    antialias: bool,
) -> Images:
    """Full decode by Pillow, crop, resize, flip, one image after the other.

    Args:
        images: encoded files.
        windows: [n, 4], (x, y, width, height) in pixels.
        flips: [n].
        size: height and width of the output in pixels.
        antialias: Pillow's own BILINEAR; without it the four pixels around each sample point (half-pixel
            centres).

    Returns:
        uint8 [n, size, size, 3].
    """
    from PIL import Image

    out = np.empty((len(images), size, size, 3), dtype=np.uint8)
    for slot, data, (x, y, width, height), flip in zip(out, images, windows.tolist(), flips, strict=True):
        with Image.open(io.BytesIO(data)) as file:
            crop = file.convert("RGB").crop((x, y, x + width, y + height))
        if antialias:
            pixels = np.asarray(crop.resize((size, size), Image.Resampling.BILINEAR))
        else:
            pixels = _four_pixels(np.asarray(crop), size)
        slot[:] = pixels[:, ::-1] if flip else pixels
    return out


def agreement(outputs: Images, wanted: Images) -> Agreement:
    """Compares [n, H, W, 3] with [n, H, W, 3].

    Raises:
        ValueError: shape or dtype differ.
    """
    if outputs.shape != wanted.shape or outputs.dtype != wanted.dtype:
        raise ValueError(
            f"output is {outputs.dtype} {list(outputs.shape)}, wanted {wanted.dtype} {list(wanted.shape)}"
        )
    difference = np.abs(outputs.astype(np.int16) - wanted)
    return Agreement(
        mean_abs=round(float(difference.mean()), 3),
        far_off=round(float((difference > FAR_OFF).mean()), 5),
        worst_image=round(float(difference.mean(axis=(1, 2, 3)).max()), 3),
    )


def _four_pixels(crop: Images, size: int) -> Images:
    rows, row_weights = _taps(crop.shape[0], size)
    columns, column_weights = _taps(crop.shape[1], size)
    source = crop.astype(np.float32)
    wide = _mix(source[:, columns[0]], source[:, columns[1]], column_weights[None, :, None])
    mixed = _mix(wide[rows[0]], wide[rows[1]], row_weights[:, None, None])
    return (mixed + 0.5).astype(np.uint8)


def _mix(
    near: npt.NDArray[np.float32], far: npt.NDArray[np.float32], weight: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32]:
    return near + (far - near) * weight


def _taps(length: int, size: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Neighbours, int64 [2, size], of each sample point and the weight of the second one, float32 [size]."""
    centre = (np.arange(size) + 0.5) * (length / size) - 0.5
    floor = np.floor(centre).astype(np.int64)
    neighbours = np.clip(np.stack((floor, floor + 1)), 0, length - 1)
    return neighbours, (centre - floor).astype(np.float32)
