"""When to decode a JPEG at 1/2, 1/4 or 1/8: a rule of the spec and the image, never of the crop at hand."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from feeder.errors import ConfigError

__all__ = ["REDUCTIONS", "reductions"]

REDUCTIONS = (1, 2, 4, 8)
"""Denominators that the scaled IDCT of libjpeg-turbo computes directly."""


def reductions(
    reduce: Literal["auto"] | int | None,
    smallest: npt.NDArray[np.int32],
    sizes: npt.NDArray[np.int32],
    image_size: int,
) -> npt.NDArray[np.uint8]:
    """Denominator of the scale that each image is decoded at.

    Args:
        reduce: "auto" halves while the smallest window that the sampler can draw is still no smaller than the
            output; a number N halves while the short side of the image stays at N pixels or more; None never
            does.
        smallest: int32 [n, 2], (width, height) in pixels of the smallest window of each image.
        sizes: int32 [n, 2], (width, height) in pixels of each image.
        image_size: output side in pixels.

    Returns:
        uint8 [n], each 1, 2, 4 or 8.

    Raises:
        ConfigError: reduce is none of the above.
    """
    if reduce is None:
        return np.ones(len(sizes), np.uint8)
    if reduce == "auto":
        extents, at_least = smallest, image_size
    elif type(reduce) is int and reduce >= 1:
        extents, at_least = sizes, reduce
    else:
        raise ConfigError(f"reduce must be 'auto', None or a number of pixels, got {reduce!r}")
    side = np.minimum(extents[:, 0], extents[:, 1])
    result = np.ones(len(side), np.uint8)
    for denominator in REDUCTIONS[1:]:
        result[side >= at_least * denominator] = denominator
    return result
