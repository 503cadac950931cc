"""AlexNet with batch normalisation, as the author of LARS trained it at batches of up to 32,768.

Layer by layer `models/alexnet_bn/train_val2_fp16.prototxt` of github.com/borisgin/nvcaffe, which its
solvers for batches of 8,192 to 32,768 name: the two-tower AlexNet (grouped conv2, conv4 and conv5) without
local response normalisation. Batch normalisation comes before conv2 to conv5, after the ReLU or the
pooling, and has neither scale nor bias (running averages 0.9, epsilon 1e-4). Dropout of a half after fc6
and fc7. Weights start from N(0, 0.01), those of fc6 and fc7 from N(0, 0.005); biases at 0.01, those of fc6
and fc7 at 0.1.

Not the same here: the input is normalised by the mean and deviation of each colour instead of a mean image
and 1/256, and convolutions run in bfloat16 instead of float16 with a scaled loss.

Shapes below are for `images` of [B, 227, 227, 3] and width 64; 60,965,224 parameters with 1000 classes.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from feeder.trainer.model import Norm, NormMaker

__all__ = ["AlexNetBN"]

BATCH_NORM_EPSILON = 1e-4
DROPOUT = 0.5
CONV_STDDEV, FULL_STDDEV = 0.01, 0.005
BIAS, FULL_BIAS = 0.01, 0.1
FULL_WIDTH = 64
"""The width that gives the paper's numbers of features."""


class AlexNetBN(nn.Module):
    """Images to logits. With `train` it needs a random key by the name "dropout".

    Attributes:
        classes: number of classes, the last axis of the logits.
        width: 64 in the paper; all numbers of features change in proportion. A multiple of 4.
        compute_dtype: "bfloat16" or "float32", of convolutions and matrix products.
        norm: makes each batch normalisation, see feeder.trainer.model.
    """

    classes: int
    width: int = FULL_WIDTH
    compute_dtype: str = "bfloat16"
    norm: NormMaker = Norm

    @nn.compact
    def __call__(self, images: jax.Array, *, train: bool) -> jax.Array:
        """Normalised images, floating point [B, H, W, 3] of at least 67 pixels, to float32 [B, classes]."""
        dtype = jnp.dtype(self.compute_dtype)
        norm = partial(self.norm, train=train, affine=False, epsilon=BATCH_NORM_EPSILON, dtype=dtype)
        pool = partial(nn.max_pool, window_shape=(3, 3), strides=(2, 2))
        drop = nn.Dropout(DROPOUT, deterministic=not train)

        def conv(features: int, size: int, name: str, **settings: Any) -> Any:
            return nn.Conv(
                self._scaled(features),
                (size, size),
                dtype=dtype,
                kernel_init=nn.initializers.normal(CONV_STDDEV),
                bias_init=nn.initializers.constant(BIAS),
                name=name,
                **settings,
            )

        def full(features: int, name: str) -> Any:
            return nn.Dense(
                self._scaled(features),
                dtype=dtype,
                kernel_init=nn.initializers.normal(FULL_STDDEV),
                bias_init=nn.initializers.constant(FULL_BIAS),
                name=name,
            )

        x = images.astype(dtype)
        x = nn.relu(conv(96, 11, "conv1", strides=4, padding="VALID")(x))  # [B, 55, 55, 96]
        x = norm(name="norm2")(pool(x))  # [B, 27, 27, 96]
        x = nn.relu(conv(256, 5, "conv2", padding=2, feature_group_count=2)(x))  # [B, 27, 27, 256]
        x = norm(name="norm3")(pool(x))  # [B, 13, 13, 256]
        x = norm(name="norm4")(nn.relu(conv(384, 3, "conv3", padding=1)(x)))  # [B, 13, 13, 384]
        x = nn.relu(conv(384, 3, "conv4", padding=1, feature_group_count=2)(x))  # [B, 13, 13, 384]
        x = norm(name="norm5")(x)
        x = nn.relu(conv(256, 3, "conv5", padding=1, feature_group_count=2)(x))  # [B, 13, 13, 256]
        x = pool(x).reshape(len(x), -1)  # [B, 6 * 6 * 256]
        x = drop(nn.relu(full(4096, "fc6")(x)))
        x = drop(nn.relu(full(4096, "fc7")(x)))
        logits = nn.Dense(
            self.classes,
            dtype=dtype,
            kernel_init=nn.initializers.normal(CONV_STDDEV),
            bias_init=nn.initializers.constant(BIAS),
            name="fc8",
        )
        return logits(x).astype(jnp.float32)

    def _scaled(self, features: int) -> int:
        return features * self.width // FULL_WIDTH
