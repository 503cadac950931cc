"""Batches as JAX arrays: transfer ahead of use, sharded if asked for, made RGB and normalised on the
device."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from feeder.client.arguments import integer
from feeder.client.batch import Batch
from feeder.client.pixels import MEAN, STD, Chroma, split_planes, to_rgb
from feeder.order import Position

__all__ = ["MEAN", "STD", "DeviceBatch", "normalize", "prefetch_to_device", "yuv420_to_rgb"]


@dataclass(frozen=True, slots=True, eq=False)
class DeviceBatch:
    """A Batch on the device.

    Attributes:
        images: uint8 [B, S, S, 3], or [B, S * S * 3 / 2] with output "yuv420"; B is the global batch where
            the sharding spans several processes.
        labels: int32 [B], -1 where masked.
        mask: bool [B].
        position: where a stream goes on after this batch.
    """

    images: jax.Array
    labels: jax.Array
    mask: jax.Array
    position: Position


def prefetch_to_device(
    stream: Iterable[Batch], sharding: jax.sharding.Sharding | None = None, size: int = 2
) -> Iterator[DeviceBatch]:
    """The batches of a stream on the device, the transfer of the next ones under way while one is used.

    Args:
        stream: what to take batches from. It runs ahead by `size`, and its own `position` with it: save the
            `position` of the batch that was used last.
        sharding: of the first axis, for images, labels and mask alike, such as
            `NamedSharding(mesh, PartitionSpec("data"))`. Where it spans several processes, each brings its
            own part, in the order of the consumers. None: JAX's default device.
        size: batches on the device ahead of the one in use, at least 1.

    Raises:
        ConfigError: size is less than 1, or no integer.
    """
    return _prefetch(iter(stream), sharding, integer("size", size, least=1))


def _prefetch(
    batches: Iterator[Batch], sharding: jax.sharding.Sharding | None, size: int
) -> Iterator[DeviceBatch]:
    ready: deque[DeviceBatch] = deque()
    for batch in batches:
        ready.append(
            DeviceBatch(
                _put(batch.images, sharding),
                _put(batch.labels, sharding),
                _put(batch.mask, sharding),
                batch.position,
            )
        )
        if len(ready) > size:
            yield ready.popleft()
    yield from ready


def _put(array: np.ndarray[Any, Any], sharding: jax.sharding.Sharding | None) -> jax.Array:
    devices = jax.devices() if sharding is None else sharding.device_set
    if any(device.platform == "cpu" for device in devices):
        # A CPU array may share memory with the NumPy array that it is made of, which is the caller's to write
        # to.
        array = array.copy()
    placed: jax.Array
    if sharding is None:
        placed = jax.device_put(array)
    else:
        placed = jax.make_array_from_process_local_data(sharding, array)  # type: ignore[no-untyped-call]
    return placed


def normalize(
    images: jax.Array,
    dtype: DTypeLike = jnp.bfloat16,
    mean: Sequence[float] = MEAN,
    std: Sequence[float] = STD,
) -> jax.Array:
    """(images / 255 - mean) / std for each channel, computed in float32; for use inside jit, where it costs
    no pass of its own.

    Args:
        images: [..., 3], uint8, or floating point on the same scale, as `yuv420_to_rgb` gives it.
        dtype: of the result, which has the same shape.
        mean: of each channel, in [0, 1].
        std: of each channel, more than 0.
    """
    scale = 1.0 / (255.0 * np.asarray(std, np.float32))
    shift = -np.asarray(mean, np.float32) / np.asarray(std, np.float32)
    return (images.astype(jnp.float32) * scale + shift).astype(dtype)


def yuv420_to_rgb(images: jax.Array, dtype: DTypeLike = jnp.float32, chroma: Chroma = "smooth") -> jax.Array:
    """RGB of batches with output "yuv420"; for use inside jit, as in `normalize(yuv420_to_rgb(images))`.

    Args:
        images: uint8 [..., S * S * 3 / 2].
        dtype: of the result; whole numbers are rounded.
        chroma: on its way to twice the size: "smooth", weighed 3/4 and 1/4 as libjpeg does it, or "nearest".

    Returns:
        [..., S, S, 3] in [0, 255], computed in float32.

    Raises:
        ConfigError: the images are no YUV 4:2:0, or `chroma` is unknown.
    """
    y, cb, cr = (plane.astype(jnp.float32) for plane in split_planes(images))
    rgb = jnp.stack(to_rgb(jnp, y, cb, cr, chroma), axis=-1)
    return (jnp.round(rgb) if jnp.issubdtype(dtype, jnp.integer) else rgb).astype(dtype)
