"""YUV 4:2:0 of RGB pixels: what is no YCbCr JPEG for the kernel goes this way, and all of the portable
path."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["rgb_to_yuv420"]

_TO_YCC = np.array(
    [[0.299, 0.587, 0.114], [-0.168736, -0.331264, 0.5], [0.5, -0.418688, -0.081312]], np.float32
)
"""JFIF 1.02, section 7: BT.601 in full range."""


def rgb_to_yuv420(pixels: npt.NDArray[np.uint8], out: npt.NDArray[np.uint8]) -> None:
    """Converts by JFIF's formula, chroma as the mean of 2x2.

    Args:
        pixels: uint8 [H, W, 3]; H and W are even.
        out: uint8 [3 H / 2, W], C-contiguous: the rows of Y, and behind them those of Cb and then of Cr, of
            which two fit in one.
    """
    height, width, _ = pixels.shape
    out[:height] = pixels @ _TO_YCC[0] + np.float32(0.5)
    means = pixels.reshape(height // 2, 2, width // 2, 2, 3).mean((1, 3), np.float32)
    chroma = out[height:].reshape(2, height // 2, width // 2)
    for plane, weights in zip(chroma, _TO_YCC[1:], strict=True):
        plane[...] = (means @ weights + np.float32(128.5)).clip(max=255)  # blue alone, or red, has 255.5
