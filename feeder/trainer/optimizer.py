"""Learning rate over the steps, and the optimiser.

Step t counts from 0; a run has T steps, the first W of them warm up. The rate of step t, with `peak`,
`start` and `end` for peak_rate, start_rate and end_rate of TrainConfig, is

    t in [0, W)      start + (peak - start) * t / W
    t in [W, T)      cosine    peak * (1 + cos(pi * (t - W) / (T - W))) / 2
                     poly      end + (peak - end) * (1 - (t - W) / (T - W + 1)) ** 2
                     poly_run  end + (peak - end) * (1 - t / T) ** 2
                     step      peak * 0.1 ** (number of boundaries b with t >= b * T)

So with start 0 step 0 has rate 0 where there is a warm-up, as in the references: it only moves the
batch-norm statistics. Step W has the peak, and no later step has rate 0. "poly" is the schedule of the TPU
reference code; "poly_run" is Caffe's, which decays over all of the run, so that the rate drops at the end
of the warm-up. For W = 5, T = 20, peak 1:

    step      0      1      4      5      6        19 (last)
    cosine    0      0.2    0.8    1      0.98907  0.01093
    poly      0      0.2    0.8    1      0.87891  0.01563
    poly_run  0      0.2    0.8    0.5625 0.49     0.0025
    step      0      0.2    0.8    1      1        0.01          (boundaries 0.5 and 0.75)

Weight decay sits in one place: in the optimiser, added to the gradient before momentum, or in the loss as
weight_decay / 2 * |w|**2 (see decay_loss), which for momentum SGD is the same. It holds for kernels only:
batch-norm scales, and biases of any layer, are moved by their plain gradient. (The reference code's loss
decays the last layer's bias, too.)
"""

from __future__ import annotations

import math
from collections import Counter

import jax
import jax.numpy as jnp
import optax

from feeder.trainer.config import TrainConfig
from feeder.trainer.lars import LarsState, lars
from feeder.trainer.sharded import Rule

__all__ = [
    "decay_loss",
    "decayed",
    "get_velocity",
    "make_optimizer",
    "make_rule",
    "make_schedule",
    "plain_tensors",
    "set_velocity",
]

POLY_POWER = 2
STEP_FACTOR = 0.1


def make_schedule(config: TrainConfig, steps: int, warmup: int) -> optax.Schedule:
    """The learning rate as a function of the step: int32 [...] to float32 [...], as in the table above.

    Args:
        config: rates and decay.
        steps: T.
        warmup: W, in [0, T).
    """
    peak, start, end = config.peak_rate, config.start_rate, config.end_rate

    def schedule(step: jax.typing.ArrayLike) -> jax.Array:
        t = jnp.asarray(step, jnp.float32)
        # Differences of whole numbers are exact, where 1 - t / T would lose the last steps' digits.
        if config.decay == "cosine":
            rate = peak * (1 + jnp.cos(jnp.pi * (t - warmup) / (steps - warmup))) / 2
        elif config.decay == "poly":
            rate = end + (peak - end) * ((steps + 1 - t) / (steps + 1 - warmup)) ** POLY_POWER
        elif config.decay == "poly_run":
            rate = end + (peak - end) * ((steps - t) / steps) ** POLY_POWER
        else:
            bounds = jnp.array([math.ceil(share * steps) for share in config.boundaries], jnp.float32)
            rate = peak * STEP_FACTOR ** jnp.sum(t[..., None] >= bounds, axis=-1)
        return jnp.where(t < warmup, start + (peak - start) * t / max(warmup, 1), rate)

    return schedule


def decayed(params: optax.Params) -> optax.Params:
    """For each parameter, whether weight decay and the trust ratio of LARS apply: to kernels, told by their
    name."""
    return jax.tree_util.tree_map_with_path(lambda path, _: path[-1].key == "kernel", params)


def plain_tensors(params: optax.Params) -> dict[str, int]:
    """The tensors that weight decay and LARS leave out, how many of each: by their last two names."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    plain = [
        path
        for (path, _), applies in zip(leaves, jax.tree.leaves(decayed(params)), strict=True)
        if not applies
    ]
    return dict(Counter("/".join(key.key for key in path[-2:]) for path in plain))


def decay_loss(config: TrainConfig, params: optax.Params) -> jax.Array:
    """What the loss has of weight decay: float32 [], 0 where it is in the optimiser."""
    if config.weight_decay_in != "loss":
        return jnp.zeros((), jnp.float32)
    leaves = zip(jax.tree.leaves(params), jax.tree.leaves(decayed(params)), strict=True)
    squares = [jnp.sum(jnp.square(w)) for w, applies in leaves if applies]
    half: jax.Array = config.weight_decay / 2 * jnp.sum(jnp.stack(squares))
    return half


def make_optimizer(config: TrainConfig, schedule: optax.Schedule) -> optax.GradientTransformation:
    """LARS as feeder.trainer.lars has it, or momentum SGD:

    With d = g + weight_decay * w:  v = momentum * v + d;  w -= rate * v, or with Nesterov
    w -= rate * (momentum * v + d). Where the loss holds the decay, d = g.
    """
    add_decay = config.weight_decay_in == "optimizer"
    if config.optimizer == "lars":
        assert config.lars_form is not None
        return lars(
            schedule,
            form=config.lars_form,
            momentum=config.momentum,
            weight_decay=config.weight_decay,
            add_decay=add_decay,
            adapted=decayed,
            trust=config.trust,
            epsilon=config.trust_epsilon,
        )
    return optax.chain(
        optax.add_decayed_weights(config.weight_decay if add_decay else 0.0, mask=decayed),
        optax.trace(config.momentum, nesterov=config.nesterov),
        optax.scale_by_learning_rate(schedule),
    )


def make_rule(config: TrainConfig) -> Rule:
    """The same, for an update that is sharded."""
    return Rule(
        form=config.lars_form or "momentum",
        momentum=config.momentum,
        weight_decay=config.weight_decay,
        add_decay=config.weight_decay_in == "optimizer",
        nesterov=config.nesterov,
        trust=config.trust,
        epsilon=config.trust_epsilon,
    )


def get_velocity(opt_state: optax.OptState) -> optax.Params:
    """The velocity in a state of make_optimizer's, like the parameters."""
    name = "velocity" if isinstance(opt_state, LarsState) else "trace"
    return optax.tree_utils.tree_get(opt_state, name)


def set_velocity(opt_state: optax.OptState, step: jax.Array, velocity: optax.Params) -> optax.OptState:
    """The state after `step` steps with this velocity."""
    if isinstance(opt_state, LarsState):
        return LarsState(step, velocity)
    return optax.tree_utils.tree_set(opt_state, count=step, trace=velocity)
