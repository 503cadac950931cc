"""YUV 4:2:0 of RGB pixels, in the arithmetic of the kernel: what both decoders mean by it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["rgb_to_yuv420"]

_Y = np.array([19595, 38470, 7471], np.int32)
_CHROMA = np.array([[-11059, -21709, 32768], [32768, -27439, -5329]], np.int32)
"""JFIF 1.02, section 7 (BT.601 in full range), in 65,536ths, as libjpeg has them."""


def rgb_to_yuv420(pixels: npt.NDArray[np.uint8], out: npt.NDArray[np.uint8]) -> None:
    """Converts by JFIF's formula, chroma that of the mean of 2x2, halves of which are rounded down.

    Args:
        pixels: uint8 [H, W, 3]; H and W are even.
        out: uint8 [3 H / 2, W], C-contiguous: the rows of Y, and behind them those of Cb and then of Cr, of
            which two fit in one.
    """
    height, width, _ = pixels.shape
    out[:height] = (pixels @ _Y + (1 << 15)) >> 16
    sums = pixels.reshape(height // 2, 2, width // 2, 2, 3).sum((1, 3), np.int32)
    chroma = out[height:].reshape(2, height // 2, width // 2)
    for plane, weights in zip(chroma, _CHROMA, strict=True):
        plane[...] = 128 + ((sums @ weights + ((1 << 17) - 1)) >> 18)
