"""ResNet v1.5 in Flax Linen, from 8 to 152 layers; the batch normalisation that AlexNet shares.

v1.5 is ResNet v1 with the stride of a bottleneck in its 3x3 instead of its first 1x1: a little better, a
little slower. Everything else follows the reference TPU code: explicit padding on strided convolutions, SAME
max-pool, batch normalisation with momentum 0.9 and epsilon 1e-5, the last batch-norm scale of each block
starts at 0 (so that a block starts as the identity), convolutions start from a truncated normal distribution
of variance 1 / fan-in, dense weights from N(0, 0.01).

Batch normalisation is whatever the argument `norm` makes (see NormMaker), so that one over many devices takes
the place of Norm without a change here.

Convolutions and the matrix product run in `compute_dtype`. Parameters, batch-norm statistics and their
running averages, and the logits that the loss sees are float32.

Shapes below are for `images` of [B, 224, 224, 3], depth 50, width 64.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import flax.linen as nn
import jax
import jax.numpy as jnp

from feeder.trainer.config import DEPTHS

__all__ = ["Norm", "NormMaker", "ResNet", "conv7_on_blocks"]

NormMaker: TypeAlias = Callable[..., Any]
"""Called with the attributes of Norm and `name`; gives a module from [B, H, W, C] to the same."""

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
    on_blocks: bool = False
    """A 7x7 with stride 2, computed by conv7_on_blocks; the parameters are the same."""

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
            conv_general_dilated=conv7_on_blocks if self.on_blocks else None,
            name="conv",
        )
        y: jax.Array = conv(x)
        return y


def conv7_on_blocks(
    images: jax.Array, kernel: jax.Array, strides: Any, padding: Any, **settings: Any
) -> jax.Array:
    """The 7x7 convolution with stride 2 and padding 3 as one of 4x4 with stride 1 on 2x2 blocks of pixels.

    Three input channels leave the matrix unit of a TPU almost empty; twelve fill four times
    as much of it, as in Google's MLPerf v0.7 entries. The kernel gets a row and a
    column of zeros in front and is folded like the image, at each step, so what is trained and saved is the
    plain 7x7.

    Args:
        images: [B, H, W, C].
        kernel: [7, 7, C, F].
        strides, padding: must be 2 and 3: this is what they mean here.
        settings: of lax.conv_general_dilated, as flax.linen.Conv passes them; only `precision` is heeded.

    Returns:
        [B, H / 2, W / 2, F], rounded up.
    """
    if kernel.shape[:2] != (7, 7) or tuple(strides) != (2, 2) or tuple(padding) != ((3, 3), (3, 3)):
        raise ValueError(f"for 7x7, stride 2, padding 3 only, got {kernel.shape}, {strides}, {padding}")
    batch, height, width, channels = images.shape
    images = jnp.pad(images, ((0, 0), (0, height % 2), (0, width % 2), (0, 0)))
    blocks = images.reshape(batch, (height + 1) // 2, 2, (width + 1) // 2, 2, channels)
    blocks = blocks.transpose(0, 1, 3, 2, 4, 5).reshape(*blocks.shape[0:2], blocks.shape[3], 4 * channels)
    # Output row i sums over input rows 2i - 3 to 2i + 3; with the zero row in front over 2i - 4 to 2i + 3,
    # which are blocks i - 2 to i + 1.
    folded = jnp.pad(kernel, ((1, 0), (1, 0), (0, 0), (0, 0))).reshape(4, 2, 4, 2, channels, -1)
    folded = folded.transpose(0, 2, 1, 3, 4, 5).reshape(4, 4, 4 * channels, -1)
    return jax.lax.conv_general_dilated(
        blocks,
        folded,
        window_strides=(1, 1),
        padding=((2, 1), (2, 1)),
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        precision=settings.get("precision"),
    )


class Norm(nn.Module):
    """Batch normalisation over [B, H, W]: computed in float32, handed on in `dtype`.

    With `axes`, inside `jax.shard_map`, the statistics are of the batches of all replicas along these: means
    of values and of squares are averaged in one collective, forward and backward.

    Attributes:
        train: use the batch's statistics, and update the running ones.
        zero: the scale starts at 0 instead of 1.
        affine: has a scale and a bias.
        epsilon: added to the variance.
        dtype: of what is handed on.
        axes: names of mesh axes.
    """

    train: bool
    zero: bool = False
    affine: bool = True
    epsilon: float = BATCH_NORM_EPSILON
    dtype: Any = jnp.float32
    axes: tuple[str, ...] | None = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """[B, H, W, C] to the same."""
        norm = nn.BatchNorm(
            use_running_average=not self.train,
            momentum=BATCH_NORM_MOMENTUM,
            epsilon=self.epsilon,
            dtype=self.dtype,
            axis_name=self.axes,  # type: ignore[arg-type]  # one name or several
            use_scale=self.affine,
            use_bias=self.affine,
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
    norm: NormMaker
    dtype: Any

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """[B, H, W, C] to [B, H / stride, W / stride, features * (4 if bottleneck else 1)]."""
        conv, norm = partial(Conv, dtype=self.dtype), self.norm
        if self.bottleneck:
            out = self.features * BOTTLENECK_EXPANSION
            y = nn.relu(norm(name="norm1")(conv(self.features, 1, name="conv1")(x)))
            y = nn.relu(norm(name="norm2")(conv(self.features, 3, self.stride, name="conv2")(y)))
            y = norm(zero=True, name="norm3")(conv(out, 1, name="conv3")(y))
        else:
            out = self.features
            y = nn.relu(norm(name="norm1")(conv(self.features, 3, self.stride, name="conv1")(x)))
            y = norm(zero=True, name="norm2")(conv(out, 3, name="conv2")(y))
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
        space_to_depth: the large stem by conv7_on_blocks.
        compute_dtype: "bfloat16" or "float32", of convolutions and the matrix product.
        norm: makes each batch normalisation.
    """

    depth: int
    classes: int
    width: int = 64
    small_stem: bool = False
    space_to_depth: bool = False
    compute_dtype: str = "bfloat16"
    norm: NormMaker = Norm

    @nn.compact
    def __call__(self, images: jax.Array, *, train: bool) -> jax.Array:
        """Normalised images, floating point [B, H, W, 3], to logits, float32 [B, classes]."""
        blocks, bottleneck = DEPTHS[self.depth]
        dtype = jnp.dtype(self.compute_dtype)
        norm = partial(self.norm, train=train, dtype=dtype)
        x = images.astype(dtype)
        if self.small_stem:
            x = Conv(self.width, 7, 4, dtype=dtype, name="stem")(x)  # [B, 56, 56, 64]
            x = nn.relu(norm(name="stem_norm")(x))
        else:
            # [B, 112, 112, 64]
            x = Conv(self.width, 7, 2, dtype=dtype, on_blocks=self.space_to_depth, name="stem")(x)
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
                    norm=norm,
                    dtype=dtype,
                    name=f"stage{stage + 1}_block{index + 1}",
                )(x)
        x = jnp.mean(x, axis=(1, 2), dtype=jnp.float32)  # [B, 2048]
        dense = nn.Dense(
            self.classes, dtype=dtype, kernel_init=nn.initializers.normal(DENSE_STDDEV), name="dense"
        )
        return dense(x).astype(jnp.float32)
