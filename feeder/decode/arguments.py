"""What every decoder checks of its arguments before it touches a byte."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from feeder.decode.reduce import REDUCTIONS
from feeder.errors import ConfigError
from feeder.spec import Resample

__all__ = ["check_arguments", "check_array"]

_REDUCTIONS = frozenset(REDUCTIONS)
_RESAMPLES = get_args(Resample)
_LEAST_WINDOW = np.array([0, 0, 1, 1], np.int32)


def check_arguments(
    images: Sequence[bytes | memoryview],
    windows: npt.NDArray[np.int32],
    flips: npt.NDArray[np.bool_],
    out: npt.NDArray[np.uint8],
    resample: str,
    reductions: npt.NDArray[np.uint8] | None,
    places: npt.NDArray[np.int64] | None,
) -> None:
    """Checks a batch call.

    Raises:
        ConfigError: an array of the wrong dtype, shape or layout, an empty or negative window, a reduction
            that is not 1, 2, 4 or 8, a place that `out` does not have, or an unknown resample.
    """
    count = len(images)
    check_array("windows", windows, np.int32, (count, 4))
    check_array("flips", flips, np.bool_, (count,))
    check_array("out", out, np.uint8, slots_shape(out, count if places is None else None))
    if not out.flags.writeable or out.size == 0 < count:
        raise ConfigError(
            f"out must be writable and not empty, got shape {out.shape}, {out.flags.writeable=}"
        )
    if places is not None:
        check_array("places", places, np.int64, (count,))
        if count and places.view(np.uint64).max() >= len(out):  # of which a negative one is the largest
            raise ConfigError(f"places must be in [0, {len(out)}), got {places.tolist()}")
    if reductions is not None:
        check_array("reductions", reductions, np.uint8, (count,))
        if not _REDUCTIONS.issuperset(reductions.tolist()):
            raise ConfigError(f"reductions must be 1, 2, 4 or 8, got {np.unique(reductions).tolist()}")
    if resample not in _RESAMPLES:
        raise ConfigError(f"resample must be one of {', '.join(_RESAMPLES)}, got {resample!r}")
    bad = windows < _LEAST_WINDOW
    if bad.any():
        index = int(bad.any(axis=1).argmax())
        raise ConfigError(
            f"window {index} must be (x >= 0, y >= 0, width >= 1, height >= 1), got {windows[index]}"
        )


def slots_shape(out: Any, count: int | None) -> tuple[int | None, ...]:
    """The shape that `out` must have, of `count` slots: that of YUV 4:2:0 where it has three axes.

    Raises:
        ConfigError: sides of YUV 4:2:0 that are not even.
    """
    if getattr(out, "ndim", 4) != 3:
        return count, None, None, 3
    if out.shape[1] % 3 or out.shape[2] % 2:
        raise ConfigError(f"out must have shape (n, 3 H / 2, W) with even H and W, got {out.shape}")
    return count, None, None


def check_array(name: str, array: Any, dtype: type[np.generic], shape: tuple[int | None, ...]) -> None:
    """Raises ConfigError unless `array` is C-contiguous and has this dtype and shape; None is any length."""
    if not isinstance(array, np.ndarray) or array.dtype != dtype:
        raise ConfigError(
            f"{name} must be an array of {dtype.__name__}, got {getattr(array, 'dtype', type(array))}"
        )
    if array.shape != shape and (
        len(shape) != array.ndim
        or any(want not in (None, got) for want, got in zip(shape, array.shape, strict=True))
    ):
        raise ConfigError(f"{name} must have shape {shape}, got {array.shape}".replace("None", "any"))
    if not array.flags.c_contiguous:
        raise ConfigError(f"{name} must be C-contiguous, got strides {array.strides}")
