"""The train and eval steps over a mesh of replicas, each with its part of the batch.

Parameters are the same on all replicas. Running averages of batch normalisation differ by group while
training runs, so that a state has one of each group then, over a first axis; evaluation and checkpoints take
their mean.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from feeder.errors import ConfigError
from feeder.trainer.config import TrainConfig
from feeder.trainer.gradients import Scheme, sum_gradients
from feeder.trainer.optimizer import decayed, get_velocity, make_optimizer, make_rule, set_velocity
from feeder.trainer.replicas import ALL, Replicas
from feeder.trainer.sharded import ShardedState, ShardedUpdate
from feeder.trainer.step import (
    EvalStep,
    Replica,
    State,
    TrainStep,
    make_eval_step,
    make_state,
    make_train_step,
)

__all__ = ["Parallel"]

_NOWHERE = jnp.iinfo(jnp.int32).max  # type: ignore[no-untyped-call]


class _OneOfMany(Replica):
    """A replica inside `jax.shard_map`."""

    def __init__(
        self, norm_axes: tuple[str, ...] | None, scheme: Scheme, sharded: ShardedUpdate | None
    ) -> None:
        self.norm_axes = norm_axes
        self._scheme = scheme
        self._sharded = sharded

    def own(self, params: Any) -> Any:
        # Gradients of what is the same everywhere would arrive summed already, tensor by tensor.
        return lax.pcast(params, ALL, to="varying")

    def update(
        self, optimizer: optax.GradientTransformation, grads: Any, opt_state: optax.OptState, params: Any
    ) -> tuple[Any, optax.OptState, jax.Array]:
        if self._sharded is not None:
            return self._sharded.update(grads, opt_state, params)
        count = lax.axis_size(ALL)
        mean = jax.tree.map(lambda leaf: leaf / count, sum_gradients(grads, self._scheme))
        return super().update(optimizer, mean, opt_state, params)

    def key(self, key: jax.Array) -> jax.Array:
        return jax.random.fold_in(key, lax.axis_index(ALL))

    def total(self, value: jax.Array) -> jax.Array:
        total: jax.Array = lax.psum(value, ALL)  # type: ignore[no-untyped-call]
        return total

    def mean(self, value: jax.Array) -> jax.Array:
        return self.total(value) / lax.axis_size(ALL)

    def first(self, slot: jax.Array, slots: int) -> jax.Array:
        place = jnp.where(slot < 0, _NOWHERE, lax.axis_index(ALL) * slots + slot)
        first = lax.pmin(place, ALL)  # type: ignore[no-untyped-call]
        return jnp.where(first == _NOWHERE, -1, first)


class Parallel:
    """A training over a mesh of replicas.

    A state comes in two shapes. As it is saved it is that of one device, the same on all replicas. While
    training runs, batch-norm averages differ by group, and where the update is sharded, the optimiser's state
    is a ShardedState.

    Attributes:
        replicas: the mesh.
        optimizer: of the run.
    """

    def __init__(
        self,
        config: TrainConfig,
        schedule: optax.Schedule,
        replicas: Replicas,
        scheme: Scheme = "psum",
        shard_update: bool = False,
    ) -> None:
        """
        Args:
            config: the run; batch_size is that of all replicas together.
            schedule: learning rate by step.
            replicas: made for the run's batch-norm groups.
            scheme: how gradients are summed.
            shard_update: each replica updates its shard of the parameters, see feeder.trainer.sharded.

        Raises:
            ConfigError: the update cannot be sharded under that scheme.
        """
        if shard_update and scheme == "psum":
            raise ConfigError("a sharded update needs gradients that are summed in 1d or 2d, not by psum")
        self.replicas = replicas
        self.optimizer = make_optimizer(config, schedule)
        self._config = config
        self._sharded: ShardedUpdate | None = None
        opt_spec: Any = PartitionSpec()  # type: ignore[no-untyped-call]
        if shard_update:
            params = jax.eval_shape(partial(make_state, config, self.optimizer)).params
            self._sharded = ShardedUpdate(
                make_rule(config), schedule, params, decayed(params), scheme, replicas.grid.replicas
            )
            opt_spec = self._sharded.specs
        everywhere, by_group = replicas.replicated, replicas.per_group
        self._specs: Any = State(everywhere.spec, everywhere.spec, by_group.spec, opt_spec)  # type: ignore[arg-type]
        self._replica = _OneOfMany(replicas.norm_axes, scheme, self._sharded)
        shardings = jax.tree.map(partial(NamedSharding, replicas.mesh), self._specs)
        self._compiled_spread = jax.jit(self._spread, out_shardings=shardings)
        self._compiled_settle = jax.jit(self._settle, out_shardings=everywhere)
        self._compiled_averages = jax.jit(_averages, out_shardings=everywhere)

    def start(self) -> State:
        """A fresh state, as it is saved."""
        return make_state(self._config, self.optimizer, self.replicas.replicated)

    def spread(self, saved: State) -> State:
        """The state to train on, of one as it is saved."""
        state: State = self._compiled_spread(saved)
        return state

    def settle(self, state: State) -> State:
        """The state as it is saved: batch-norm averages are the means over all groups."""
        saved: State = self._compiled_settle(state)
        return saved

    def for_eval(self, state: State) -> State:
        """The state to evaluate: batch-norm averages are the means over all groups, and there is no state of
        the optimiser."""
        return State(state.step, state.params, self._compiled_averages(state.batch_stats), ())

    def compile_train_step(self, state: State) -> TrainStep:
        """The compiled step: (state, images, labels) to (state, StepResult). It takes over the buffers of the
        state; images and labels are sharded as `replicas.batch` says."""
        step = make_train_step(self._config, self.optimizer, self._replica)

        def local(state: State, images: jax.Array, labels: jax.Array) -> tuple[State, Any]:
            own = state._replace(batch_stats=jax.tree.map(lambda leaf: leaf[0], state.batch_stats))
            after, result = step(own, images, labels)
            stats = jax.tree.map(lambda leaf: leaf[None], after.batch_stats)
            return after._replace(batch_stats=stats), result

        batch, everywhere = self.replicas.batch.spec, self.replicas.replicated.spec
        mapped = jax.shard_map(
            local,
            mesh=self.replicas.mesh,
            in_specs=(self._specs, batch, batch),
            out_specs=(self._specs, everywhere),
        )
        images, labels, _ = self._shapes()
        compiled: TrainStep = jax.jit(mapped, donate_argnums=0).lower(state, images, labels).compile()
        return compiled

    def compile_eval_step(self, state: State) -> EvalStep:
        """The compiled evaluation: (state, images, labels, mask) to EvalSums over all replicas. The state is
        one of `for_eval`."""
        batch, everywhere = self.replicas.batch.spec, self.replicas.replicated.spec
        mapped = jax.shard_map(
            make_eval_step(self._config, self._replica),
            mesh=self.replicas.mesh,
            in_specs=(everywhere, batch, batch, batch),
            out_specs=everywhere,
        )
        compiled: EvalStep = jax.jit(mapped).lower(state, *self._shapes()).compile()
        return compiled

    def _spread(self, saved: State) -> State:
        groups = self.replicas.groups
        stats = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (groups, *leaf.shape)), saved.batch_stats)
        opt_state = saved.opt_state
        if self._sharded is not None:
            opt_state = ShardedState(saved.step, self._sharded.flat.split(get_velocity(opt_state)))
        return State(saved.step, saved.params, stats, opt_state)

    def _settle(self, state: State) -> State:
        opt_state = state.opt_state
        if self._sharded is not None:
            # Gathered once, not tensor by tensor.
            parts = lax.with_sharding_constraint(  # type: ignore[no-untyped-call]
                opt_state.velocity, self.replicas.replicated
            )
            velocity = self._sharded.flat.join(parts)
            opt_state = set_velocity(self.optimizer.init(state.params), opt_state.step, velocity)
        return State(state.step, state.params, _averages(state.batch_stats), opt_state)

    def _shapes(self) -> tuple[Any, Any, Any]:
        """Shapes, types and shardings of images, labels and mask."""
        count = self._config.batch_size
        shape = partial(jax.ShapeDtypeStruct, sharding=self.replicas.batch)
        return (
            shape((count, *self._config.input_shape), jnp.uint8),
            shape((count,), jnp.int32),
            shape((count,), jnp.bool_),
        )


def _averages(batch_stats: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf.mean(0), batch_stats)
