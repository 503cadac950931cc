"""The optimiser's update on a shard of the parameters of each replica, between the scatter of the gradients
and the gather of the new parameters.

Where gradients are summed by scattering and gathering anyway, each replica can update what it holds after the
scatter and gather parameters instead of gradients: as many bytes on the wire, but each number is updated once
and not on every replica, and its velocity is kept once. Needed across shards are only the norms of LARS, sums
over the pieces of a tensor: one psum of two numbers a tensor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import PartitionSpec

from feeder.trainer.gradients import Flat, Route, Scheme
from feeder.trainer.replicas import ALL

__all__ = ["Form", "Rule", "ShardedState", "ShardedUpdate"]

Form: TypeAlias = Literal["momentum", "scaled", "unscaled"]


@dataclass(frozen=True)
class Rule:
    """What happens to a number w of a tensor with gradient g and velocity v at learning rate `rate`.

    With d = g + weight_decay * w for an adapted tensor if the optimiser adds the decay, else d = g, and

        ratio = trust * |w| / (|g| + weight_decay * |w| + epsilon)

    of the norms of an adapted tensor; 1 for others and where a norm is 0:

        momentum    v = momentum * v + d;                   w -= rate * v, Nesterov: rate * (momentum * v + d)
        scaled      v = momentum * v + rate * ratio * d;    w -= v
        unscaled    v = momentum * v + d;                   w -= rate * ratio * v

    Attributes:
        form: which of the three; the last two are LARS.
        momentum, nesterov, weight_decay, trust, epsilon: as above.
        add_decay: the optimiser adds the decay; otherwise there is none, or the gradient has it already.
    """

    form: Form
    momentum: float
    weight_decay: float
    add_decay: bool = True
    nesterov: bool = False
    trust: float = 0.001
    epsilon: float = 0.0


class ShardedState(NamedTuple):
    """Of the optimiser.

    Attributes:
        step: int32 [], steps done.
        velocity: for each part of the buffer float32 [part], sharded over all replicas.
    """

    step: jax.Array
    velocity: tuple[jax.Array, ...]


class ShardedUpdate:
    """The update of one model on one mesh.

    Attributes:
        flat: how the parameters lie in the buffer.
        specs: how the state is sharded: a ShardedState of partition specs.
    """

    def __init__(
        self, rule: Rule, schedule: optax.Schedule, params: Any, adapted: Any, scheme: Scheme, replicas: int
    ) -> None:
        """
        Args:
            rule: of the update.
            schedule: learning rate by step, from 0.
            params: a tree of arrays or shapes.
            adapted: the same tree of bools: whether decay and trust ratio hold.
            scheme: "1d" or "2d".
            replicas: of the whole mesh.
        """
        self.flat = Flat(params, scheme, replicas)
        step: Any = PartitionSpec()  # type: ignore[no-untyped-call]
        velocity: Any = tuple(
            PartitionSpec(route.first + route.second)  # type: ignore[no-untyped-call]
            for route in self.flat.routes
        )
        self.specs = ShardedState(step, velocity)
        self._rule = rule
        self._schedule = schedule
        self._ends = np.cumsum(self.flat.sizes).astype(np.int32)
        # The padding counts as one tensor more, which is not adapted.
        self._adapted = np.array([*jax.tree.leaves(adapted), False])

    def update(self, grads: Any, state: ShardedState, params: Any) -> tuple[Any, ShardedState, jax.Array]:
        """One step, inside `jax.shard_map`.

        Args:
            grads: this replica's; the step is along the mean of all.
            state: with this replica's shards of the velocity.
            params: the same on all replicas.

        Returns:
            The new parameters, the same on all replicas; the new state; the norm of the mean gradient.
        """
        routes, count = self.flat.routes, lax.axis_size(ALL)
        gradient = [
            _scatter(part, route) / count for part, route in zip(self.flat.split(grads), routes, strict=True)
        ]
        weights = [
            _own(part, route, count) for part, route in zip(self.flat.split(params), routes, strict=True)
        ]
        tensors = [self._tensors(number, route, count) for number, route in enumerate(routes)]
        ratios = jnp.ones(len(self._adapted))
        if self._rule.form != "momentum":
            ratios = self._ratios(weights, gradient, tensors)
        rate = self._schedule(state.step)
        moved = [
            self._move(w, g, v, rate * ratios[tensor], jnp.asarray(self._adapted)[tensor])
            for w, g, v, tensor in zip(weights, gradient, state.velocity, tensors, strict=True)
        ]
        gathered = tuple(_gather(w, route) for (w, _), route in zip(moved, routes, strict=True))
        squares = sum((jnp.vdot(g, g) for g in gradient), start=jnp.float32(0))
        norm = jnp.sqrt(lax.psum(squares, ALL))  # type: ignore[no-untyped-call]
        return self.flat.join(gathered), ShardedState(state.step + 1, tuple(v for _, v in moved)), norm

    def _tensors(self, number: int, route: Route, count: int) -> jax.Array:
        """int32 [part / replicas]: which tensor each number of this replica's shard of a part belongs to."""
        shard = self.flat.part // count
        begin = number * self.flat.part + lax.axis_index(route.first + route.second) * shard
        place = begin + lax.iota(jnp.int32, shard)
        return jnp.searchsorted(self._ends, place, side="right", method="scan_unrolled")

    def _ratios(
        self, weights: list[jax.Array], gradient: list[jax.Array], tensors: list[jax.Array]
    ) -> jax.Array:
        """float32 [tensors + 1]: the trust ratio of each, 1 where it is not adapted."""
        rule, count = self._rule, len(self._adapted)
        squares = sum(
            jnp.stack(
                [
                    jax.ops.segment_sum(jnp.square(values), tensor, count, indices_are_sorted=True)
                    for values in (w, g)
                ]
            )
            for w, g, tensor in zip(weights, gradient, tensors, strict=True)
        )
        w, g = jnp.sqrt(lax.psum(squares, ALL))  # type: ignore[no-untyped-call]
        usable = jnp.asarray(self._adapted) & (w > 0) & (g > 0)
        below = jnp.where(usable, g + rule.weight_decay * w + rule.epsilon, 1.0)
        return jnp.where(usable, rule.trust * w / below, 1.0)

    def _move(
        self, w: jax.Array, g: jax.Array, v: jax.Array, rate: jax.Array, adapted: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Weights and velocity after the step, all [part / replicas]."""
        rule = self._rule
        if rule.add_decay:
            g = g + jnp.where(adapted, rule.weight_decay, 0.0) * w
        if rule.form == "scaled":
            v = rule.momentum * v + rate * g
            return w - v, v
        v = rule.momentum * v + g
        return w - rate * (rule.momentum * v + g if rule.nesterov else v), v


def _scatter(part: jax.Array, route: Route) -> jax.Array:
    """This replica's shard of the sum over all replicas."""
    for axes in route:
        if axes:
            part = lax.psum_scatter(part, axes, tiled=True)  # type: ignore[no-untyped-call]
    return part


def _own(part: jax.Array, route: Route, count: int) -> jax.Array:
    """The same shard of a part that is the same everywhere."""
    shard = part.shape[0] // count
    begin = lax.axis_index(route.first + route.second) * shard
    return lax.dynamic_slice_in_dim(part, begin, shard)


def _gather(shard: jax.Array, route: Route) -> jax.Array:
    """The whole part, of the shards of all replicas."""
    for axes in reversed(route):
        if axes:
            shard = lax.all_gather(shard, axes, tiled=True, to="invarying")
    return shard
