"""From what a batch holds to pixels: what the adapters of the frameworks share, and the NumPy one itself.

YUV 4:2:0 is that of `StreamSpec.output`. Chroma lies amid its four pixels; on the way back to RGB it is
either repeated, or made smooth as libjpeg does: a pixel is 3/4 of the nearer and 1/4 of the other sample of
each axis, which gives about 1 dB less noise.
"""

from __future__ import annotations

import math
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from feeder.errors import ConfigError

__all__ = ["MEAN", "STD", "Chroma", "split_planes", "to_rgb", "yuv420_to_rgb"]

Chroma: TypeAlias = Literal["smooth", "nearest"]

MEAN = (0.485, 0.456, 0.406)
"""Of ImageNet's R, G, B on a scale of 0 to 1, as the MLPerf ResNet-50 reference and torchvision's weights use
it."""
STD = (0.229, 0.224, 0.225)
"""The standard deviation that goes with `MEAN`."""


def split_planes(images: Any) -> tuple[Any, Any, Any]:
    """The planes of YUV 4:2:0.

    Args:
        images: uint8 [..., S * S * 3 / 2], an array of NumPy or JAX, or a tensor.

    Returns:
        Y [..., S, S], Cb and Cr [..., S / 2, S / 2]; views where `images` is contiguous and not JAX's.

    Raises:
        ConfigError: the last axis is none of YUV 4:2:0, as that of RGB images.
    """
    nbytes = images.shape[-1] if images.ndim else 0
    size = math.isqrt(nbytes * 2 // 3)
    if not size or size % 2 or size * size * 3 != nbytes * 2:
        raise ConfigError(
            f"images of YUV 4:2:0 have shape [..., S * S * 3 / 2] with an even S, got {list(images.shape)}: "
            "are they of a stream with output='yuv420'?"
        )
    rest, half, luma = tuple(images.shape[:-1]), size // 2, size * size
    return (
        images[..., :luma].reshape(*rest, size, size),
        images[..., luma : luma + half * half].reshape(*rest, half, half),
        images[..., luma + half * half :].reshape(*rest, half, half),
    )


def to_rgb(xp: Any, y: Any, cb: Any, cr: Any, chroma: Chroma) -> tuple[Any, Any, Any]:
    """R, G and B of planes, by JFIF's formula.

    Args:
        xp: numpy, jax.numpy or torch.
        y: float32 [..., S, S].
        cb, cr: float32 [..., S / 2, S / 2].
        chroma: "smooth" or "nearest".

    Returns:
        float32 [..., S, S] each, within 0 to 255, not rounded.

    Raises:
        ConfigError: `chroma` is neither.
    """
    if chroma not in get_args(Chroma):
        raise ConfigError(f"chroma must be one of {', '.join(get_args(Chroma))}, got {chroma!r}")
    double = _smooth if chroma == "smooth" else _repeat
    cb, cr = (double(xp, double(xp, plane - 128.0, -1), -2) for plane in (cb, cr))
    red, green, blue = y + 1.402 * cr, y - 0.344136 * cb - 0.714136 * cr, y + 1.772 * cb
    return red.clip(0.0, 255.0), green.clip(0.0, 255.0), blue.clip(0.0, 255.0)


def _smooth(xp: Any, plane: Any, axis: int) -> Any:
    """Twice as many samples along an axis; those at the ends lean to themselves."""
    if axis == -1:
        first, last = plane[..., :1], plane[..., -1:]
        before, after = plane[..., :-1], plane[..., 1:]
    else:
        first, last = plane[..., :1, :], plane[..., -1:, :]
        before, after = plane[..., :-1, :], plane[..., 1:, :]
    near = 0.75 * plane
    pairs = (
        near + 0.25 * xp.concatenate((first, before), axis=axis),
        near + 0.25 * xp.concatenate((after, last), axis=axis),
    )
    return _in_turns(xp, pairs, axis)


def _repeat(xp: Any, plane: Any, axis: int) -> Any:
    return _in_turns(xp, (plane, plane), axis)


def _in_turns(xp: Any, pairs: tuple[Any, Any], axis: int) -> Any:
    shape = list(pairs[0].shape)
    shape[axis] *= 2
    return xp.stack(pairs, axis=axis).reshape(*shape)


def yuv420_to_rgb(images: NDArray[np.uint8], chroma: Chroma = "smooth") -> NDArray[np.uint8]:
    """RGB of a batch with output "yuv420", on the CPU: uint8 [..., S * S * 3 / 2] to uint8 [..., S, S, 3].

    Raises:
        ConfigError: the images are no YUV 4:2:0, or `chroma` is unknown.
    """
    y, cb, cr = (plane.astype(np.float32) for plane in split_planes(images))
    return np.stack([(one + 0.5).astype(np.uint8) for one in to_rgb(np, y, cb, cr, chroma)], axis=-1)
