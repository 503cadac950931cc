"""The sharded update against the same rules in NumPy, tensor by tensor."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from feeder.trainer.gradients import Scheme
from feeder.trainer.grid import Grid
from feeder.trainer.replicas import ALL, Replicas
from feeder.trainer.sharded import Rule, ShardedState, ShardedUpdate

RATE = 0.1
SHAPES = {"bias": (13,), "kernel": (5, 7), "one": (1,), "zero": (40,)}
ADAPTED = {"bias": False, "kernel": True, "one": True, "zero": True}


def _expected(rule: Rule, steps: int, params: Any, grads: Any) -> Any:
    """Weights and velocity of each tensor, in float64."""
    result = {}
    for name, adapted in ADAPTED.items():
        w, g = params[name].astype(np.float64), grads[name].mean(0, dtype=np.float64)
        v = np.zeros_like(w)
        for step in range(steps):
            w_norm, g_norm = np.linalg.norm(w), np.linalg.norm(g)
            rate = RATE * (step + 1)
            if rule.form != "momentum" and adapted and w_norm > 0 and g_norm > 0:
                rate *= rule.trust * w_norm / (g_norm + rule.weight_decay * w_norm + rule.epsilon)
            d = g + rule.weight_decay * w if adapted and rule.add_decay else g
            if rule.form == "scaled":
                v = rule.momentum * v + rate * d
                w = w - v
            else:
                v = rule.momentum * v + d
                w = w - rate * (rule.momentum * v + d if rule.nesterov else v)
        result[name] = (w, v)
    return result


@pytest.mark.parametrize(
    ("scheme", "rule"),
    [
        ("2d", Rule("momentum", 0.9, 0.1, nesterov=True)),
        ("2d", Rule("scaled", 0.9, 0.1, trust=0.5, epsilon=0.1)),
        ("1d", Rule("unscaled", 0.9, 0.1, add_decay=False, trust=0.5)),
    ],
    ids=lambda value: value if isinstance(value, str) else value.form,
)
def test_shards_move_as_whole_tensors_do(scheme: Scheme, rule: Rule) -> None:
    rng = np.random.default_rng(0)
    params = {name: rng.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}
    params["zero"] *= 0  # its trust ratio is 1
    grads = {name: rng.normal(size=(8, *shape)).astype(np.float32) for name, shape in SHAPES.items()}
    replicas = Replicas(Grid(4, 2))
    update = ShardedUpdate(rule, lambda step: RATE * (step + 1), params, ADAPTED, scheme, 8)

    def local(grads: Any, state: ShardedState, params: Any) -> tuple[Any, ShardedState, jax.Array]:
        return update.update(jax.tree.map(lambda leaf: leaf[0], grads), state, params)

    everywhere = PartitionSpec()
    step = jax.jit(
        jax.shard_map(
            local,
            mesh=replicas.mesh,
            in_specs=(PartitionSpec(ALL), update.specs, everywhere),
            out_specs=(everywhere, update.specs, everywhere),
        )
    )
    state = ShardedState(jnp.int32(0), tuple(jnp.zeros(update.flat.part) for _ in update.flat.routes))
    moved = params
    for _ in range(3):
        moved, state, norm = step(grads, state, moved)
    assert state.step == 3
    means = [leaf.mean(0, dtype=np.float64).ravel() for leaf in grads.values()]
    assert float(norm) == pytest.approx(np.linalg.norm(np.concatenate(means)), rel=1e-5)
    assert {len(v.addressable_shards[0].data) for v in state.velocity} == {update.flat.part // 8}
    velocity = update.flat.join(state.velocity)
    for name, (w, v) in _expected(rule, 3, params, grads).items():
        np.testing.assert_allclose(moved[name], w, rtol=0, atol=2e-6)
        np.testing.assert_allclose(velocity[name], v, rtol=0, atol=2e-6)
