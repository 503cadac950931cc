"""ResNet v1.5 in Flax Linen, from 8 to 152 layers.

v1.5 is ResNet v1 with the stride of a bottleneck in its 3x3 instead of its first 1x1: a little better, a
little slower. Everything else follows the reference TPU code: explicit padding on strided convolutions, SAME
max-pool, batch normalisation with momentum 0.9 and epsilon 1e-5, the last batch-norm scale of each block
starts at 0 (so that a block starts as the identity), convolutions start from a truncated normal distribution
of variance 1 / fan-in, dense weights from N(0, 0.01).

Convolutions and the matrix product run in `compute_dtype`. Parameters, batch-norm statistics and their
running averages, and the logits that the loss sees are float32.

Shapes below are for `images` of [B, 224, 224, 3], depth 50, width 64.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from feeder.trainer.config import DEPTHS

__all__ = ["ResNet"]

BOTTLENECK_EXPANSION = 4
BATCH_NORM_MOMENTUM = 0.9
BATCH_NORM_EPSILON = 1e-5
DENSE_STDDEV = 0.01

_conv_init = nn.initializers.variance_scaling(1.0, "fan_in", "truncated_normal")


class Conv(nn.Module):
    """Square convolution without bias. Pads by a fixed (size - 1) / 2 on each side whatever the stride.

    "SAME" would put the padding of a strided convolution to the right and bottom only where the size is even,
    and so would shift the features by half a pixel between image sizes.
    """

    features: int
    size: int
    stride: int = 1
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """[B, H, W, C] to [B, H / stride, W / stride, features], rounded up."""
        padding = (self.size - 1) // 2
        conv = nn.Conv(
            self.features,
            (self.size, self.size),
            strides=self.stride,
            padding=((padding, padding), (padding, padding)),
            use_bias=False,
            dtype=self.dtype,
            kernel_init=_conv_init,
            name="conv",
        )
        y: jax.Array = conv(x)
        return y


class Norm(nn.Module):
    """Batch normalisation over [B, H, W]: computed in float32, handed on in `dtype`."""

    train: bool
    zero: bool = False
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """[B, H, W, C] to the same. With `train` the statistics are the batch's own, and update the running
        ones."""
        norm = nn.BatchNorm(
            use_running_average=not self.train,
            momentum=BATCH_NORM_MOMENTUM,
            epsilon=BATCH_NORM_EPSILON,
            dtype=self.dtype,
            scale_init=nn.initializers.zeros if self.zero else nn.initializers.ones,
            name="norm",
        )
        y: jax.Array = norm(x)
        return y


class Block(nn.Module):
    """A residual block: two 3x3 convolutions, or a bottleneck of 1x1, 3x3 (with the stride) and 1x1."""

    features: int
    stride: int
    bottleneck: bool
    train: bool
    dtype: Any

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """[B, H, W, C] to [B, H / stride, W / stride, features * (4 if bottleneck else 1)]."""
        conv = partial(Conv, dtype=self.dtype)
        norm = partial(Norm, train=self.train, dtype=self.dtype)
        if self.bottleneck:
            out = self.features * BOTTLENECK_EXPANSION
            y = nn.relu(norm()(conv(self.features, 1)(x)))
            y = nn.relu(norm()(conv(self.features, 3, self.stride)(y)))
            y = norm(zero=True)(conv(out, 1)(y))
        else:
            out = self.features
            y = nn.relu(norm()(conv(self.features, 3, self.stride)(x)))
            y = norm(zero=True)(conv(out, 3)(y))
        if x.shape != y.shape:
            x = norm(name="shortcut_norm")(conv(out, 1, self.stride, name="shortcut")(x))
        return nn.relu(x + y)


class ResNet(nn.Module):
    """Images to logits.

    Attributes:
        depth: a key of feeder.trainer.config.DEPTHS.
        classes: number of classes, the last axis of the logits.
        width: features of the first stage; 64 in the paper. Later stages have 2, 4 and 8 times as many.
        small_stem: one 7x7 convolution with stride 4 instead of stride 2 and a max-pool: the same features
            per pixel without the max-pool, whose gradient takes longer on a CPU than all of a small net.
        compute_dtype: "bfloat16" or "float32", of convolutions and the matrix product.
    """

    depth: int
    classes: int
    width: int = 64
    small_stem: bool = False
    compute_dtype: str = "bfloat16"

    @nn.compact
    def __call__(self, images: jax.Array, *, train: bool) -> jax.Array:
        """Normalised images, floating point [B, H, W, 3], to logits, float32 [B, classes]."""
        blocks, bottleneck = DEPTHS[self.depth]
        dtype = jnp.dtype(self.compute_dtype)
        norm = partial(Norm, train=train, dtype=dtype)
        x = images.astype(dtype)
        if self.small_stem:
            x = Conv(self.width, 7, 4, dtype=dtype, name="stem")(x)  # [B, 56, 56, 64]
            x = nn.relu(norm(name="stem_norm")(x))
        else:
            x = Conv(self.width, 7, 2, dtype=dtype, name="stem")(x)  # [B, 112, 112, 64]
            x = nn.relu(norm(name="stem_norm")(x))
            # [B, 56, 56, 64]
            x = nn.max_pool(x, (3, 3), (2, 2), "SAME")  # type: ignore[no-untyped-call]
        # [B, 56, 56, 256], [B, 28, 28, 512], [B, 14, 14, 1024], [B, 7, 7, 2048]
        for stage, count in enumerate(blocks):
            for index in range(count):
                x = Block(
                    features=self.width * 2**stage,
                    stride=2 if stage > 0 and index == 0 else 1,
                    bottleneck=bottleneck,
                    train=train,
                    dtype=dtype,
                    name=f"stage{stage + 1}_block{index + 1}",
                )(x)
        x = jnp.mean(x, axis=(1, 2), dtype=jnp.float32)  # [B, 2048]
        dense = nn.Dense(
            self.classes, dtype=dtype, kernel_init=nn.initializers.normal(DENSE_STDDEV), name="dense"
        )
        return dense(x).astype(jnp.float32)
