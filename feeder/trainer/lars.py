"""LARS: a learning rate for each tensor, by the ratio of the norms of weights and gradient.

You, Gitman and Ginsburg 2017 (arXiv 1708.03888). For a tensor with weights w and gradient g, in float32,

    trust = eta * |w| / (|g| + wd * |w| + epsilon)        1 where |w| or |g| is 0

and, of the two rules that both go by the name,

    scaled      v = mu * v + rate * trust * (g + wd * w);  w -= v
    unscaled    v = mu * v + g + wd * w;                   w -= rate * trust * v

"scaled" is the paper's; "unscaled" is what TensorFlow's contrib optimiser did until 1.14, and so, unless
they ran other builds, the ImageNet pods of 2018. They agree while rate and trust stand still; when the rate
falls, "scaled" goes on with the larger steps of before. A rate that suits one is not that of the other.

With the weight decay in the loss, g holds wd * w already: it is not added again, and still counts in the
denominator, as in the reference code. Tensors that are not adapted (batch-norm scales and biases) move by
momentum with the plain rate, without decay.

`optax.lars` differs: its denominator is |g + wd * w| + epsilon, and there is no unscaled form.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from feeder.trainer.config import LarsForm

__all__ = ["LarsState", "lars", "trust_ratio"]


class LarsState(NamedTuple):
    """Of the optimiser.

    Attributes:
        step: int32 [], steps done.
        velocity: v of each tensor, like the parameters.
    """

    step: jax.Array
    velocity: Any


def trust_ratio(
    weights: jax.Array, gradient: jax.Array, *, trust: float, weight_decay: float, epsilon: float
) -> jax.Array:
    """float32 [], as in the head of this module."""
    weight_norm = jnp.linalg.norm(weights.astype(jnp.float32).ravel())
    gradient_norm = jnp.linalg.norm(gradient.astype(jnp.float32).ravel())
    usable = (weight_norm > 0) & (gradient_norm > 0)
    below = jnp.where(usable, gradient_norm + weight_decay * weight_norm + epsilon, 1.0)
    return jnp.where(usable, trust * weight_norm / below, 1.0)


def lars(
    schedule: optax.Schedule,
    *,
    form: LarsForm,
    momentum: float,
    weight_decay: float,
    add_decay: bool,
    adapted: Callable[[optax.Params], Any],
    trust: float = 0.001,
    epsilon: float = 0.0,
) -> optax.GradientTransformation:
    """The optimiser.

    Args:
        schedule: rate of each step, which counts from 0.
        form: "scaled" or "unscaled".
        momentum: mu.
        weight_decay: wd.
        add_decay: wd * w is added here; otherwise the gradient holds it already.
        adapted: parameters to a tree of the same shape: whether the rule holds for each.
        trust: eta.
        epsilon: in the denominator.
    """

    def init(params: optax.Params) -> LarsState:
        return LarsState(jnp.int32(0), jax.tree.map(jnp.zeros_like, params))

    def update(
        grads: optax.Updates, state: LarsState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, LarsState]:
        assert params is not None
        rate = schedule(state.step)

        def one(adapt: bool, w: jax.Array, g: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
            own_rate = rate
            if adapt:
                own_rate *= trust_ratio(w, g, trust=trust, weight_decay=weight_decay, epsilon=epsilon)
                if add_decay:
                    g = g + weight_decay * w
            if form == "scaled":
                v = momentum * v + own_rate * g
                return -v, v
            v = momentum * v + g
            return -own_rate * v, v

        moved = jax.tree.map(one, adapted(params), params, grads, state.velocity)
        updates, velocity = jax.tree.transpose(jax.tree.structure(params), jax.tree.structure((0, 0)), moved)
        return updates, LarsState(state.step + 1, velocity)

    return optax.GradientTransformation(init, update)
