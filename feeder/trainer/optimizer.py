"""Learning rate over the steps, and SGD with momentum.

Step t counts from 0; a run has T steps, the first W of them warm up. The rate of step t, with `peak` as
TrainConfig.peak_rate, is

    t in [0, W)      peak * t / W
    t in [W, T)      cosine   peak * (1 + cos(pi * (t - W) / (T - W))) / 2
                     poly     peak * (1 - (t - W) / (T - W + 1)) ** 2
                     step     peak * 0.1 ** (number of boundaries b with t >= b * T)

So step 0 has rate 0 where there is a warm-up, as in the references: it only moves the batch-norm statistics.
Step W has the peak, and no later step has rate 0. For W = 5, T = 20, peak 1:

    step      0      1      4      5      6        19 (last)
    cosine    0      0.2    0.8    1      0.98907  0.01093
    poly      0      0.2    0.8    1      0.87891  0.01563
    step      0      0.2    0.8    1      1        0.01          (boundaries 0.5 and 0.75)

Weight decay is added to the gradient here, before momentum, which is the same as an L2 term of weight_decay /
2 * |w|**2 in the loss; the loss has none. It holds for kernels only: batch-norm scales, and biases of any
layer, are moved by their plain gradient.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import optax

from feeder.trainer.config import TrainConfig

__all__ = ["decayed", "make_optimizer", "make_schedule"]

POLY_POWER = 2
STEP_FACTOR = 0.1


def make_schedule(config: TrainConfig, steps: int, warmup: int) -> optax.Schedule:
    """The learning rate as a function of the step: int32 [] to float32 [], as in the table above.

    Args:
        config: peak rate and decay.
        steps: T.
        warmup: W, in [0, T).
    """
    peak = config.peak_rate

    def schedule(step: jax.typing.ArrayLike) -> jax.Array:
        t = jnp.asarray(step, jnp.float32)
        after = t - warmup
        if config.decay == "cosine":
            factor = (1 + jnp.cos(jnp.pi * after / (steps - warmup))) / 2
        elif config.decay == "poly":
            factor = (1 - after / (steps - warmup + 1)) ** POLY_POWER
        else:
            bounds = jnp.array([math.ceil(share * steps) for share in config.boundaries], jnp.float32)
            factor = STEP_FACTOR ** jnp.sum(t >= bounds)
        return peak * jnp.where(t < warmup, t / max(warmup, 1), factor)

    return schedule


def decayed(params: optax.Params) -> optax.Params:
    """For each parameter, whether weight decay applies: to kernels, told by their name."""
    return jax.tree_util.tree_map_with_path(lambda path, _: path[-1].key == "kernel", params)


def make_optimizer(config: TrainConfig, schedule: optax.Schedule) -> optax.GradientTransformation:
    """With d = g + weight_decay * w:  v = momentum * v + d;  w -= rate * v, or with Nesterov
    w -= rate * (momentum * v + d)."""
    return optax.chain(
        optax.add_decayed_weights(config.weight_decay, mask=decayed),
        optax.trace(config.momentum, nesterov=config.nesterov),
        optax.scale_by_learning_rate(schedule),
    )
