"""Sums over eight devices against NumPy, and what XLA makes of them against the cost model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from feeder.trainer.gradients import SCHEMES, Flat, Scheme, sum_gradients
from feeder.trainer.grid import Grid
from feeder.trainer.replicas import ALL, Replicas
from feeder.trainer.sharded import Rule, ShardedState, ShardedUpdate
from feeder.trainer.traffic import costs

CollectivesOf = Callable[[str], list[tuple[str, frozenset[frozenset[int]], int]]]
GRIDS = [Grid(8, 1), Grid(4, 2), Grid(2, 4)]


def _gradients() -> dict[str, np.ndarray]:
    """Of eight replicas, over the first axis: 89 numbers each, which no grid divides."""
    rng = np.random.default_rng(0)
    shapes = {"kernel": (3, 5, 5), "scale": (13,), "scalar": ()}
    return {name: rng.normal(size=(8, *shape)).astype(np.float32) for name, shape in shapes.items()}


def _compiled(grid: Grid, scheme: Scheme, group: int = 2) -> Any:
    replicas = Replicas(grid, group)

    def local(stacked: Any) -> Any:
        return sum_gradients(jax.tree.map(lambda leaf: leaf[0], stacked), scheme)

    summed = jax.shard_map(local, mesh=replicas.mesh, in_specs=PartitionSpec(ALL), out_specs=PartitionSpec())
    return jax.jit(summed).lower(_gradients()).compile()


def _rings(grid: Grid, along: str) -> frozenset[frozenset[int]]:
    numbers = np.arange(grid.replicas).reshape(grid.x, grid.y)
    rows = {"x": numbers.T, "y": numbers, "xy": numbers.reshape(1, -1)}[along]
    return frozenset(frozenset(row.tolist()) for row in rows)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_the_sum_is_the_sum(grid: Grid, scheme: Scheme) -> None:
    gradients = _gradients()
    summed = _compiled(grid, scheme)(gradients)
    for name, leaf in gradients.items():
        assert summed[name].shape == leaf.shape[1:]
        assert summed[name].sharding.is_fully_replicated
        # Eight float32 numbers of about 1 added in another order.
        np.testing.assert_allclose(summed[name], leaf.sum(0, dtype=np.float64), rtol=0, atol=2e-6)


@pytest.mark.parametrize(("scheme", "cost"), [("1d", 0), ("2d", 1)])
def test_the_compiled_sum_has_the_collectives_of_the_cost_model(
    scheme: Scheme, cost: int, collectives_of: CollectivesOf
) -> None:
    grid = Grid(4, 2)
    expected = [
        (collective.operation, _rings(grid, collective.along), collective.payload_bytes)
        for collective in costs(grid, 89)[cost].collectives
    ]
    assert Counter(collectives_of(_compiled(grid, scheme).as_text())) == Counter(expected)
    assert len(expected) == (2 if scheme == "1d" else 6)


@pytest.mark.parametrize("scheme", ["1d", "2d"])
def test_a_tree_comes_back_from_the_buffer(scheme: Scheme) -> None:
    tree = {name: jnp.asarray(leaf[0]) for name, leaf in _gradients().items()}
    flat = Flat(tree, scheme, replicas=8)
    parts = flat.split(tree)
    assert {part.shape for part in parts} == {(flat.part,)}
    assert flat.part % 8 == 0
    assert flat.size == 89
    jax.tree.map(np.testing.assert_array_equal, flat.join(parts), tree)
    assert not jnp.concatenate(parts)[89:].any()


def test_a_compiled_sharded_update_has_those_too_and_one_sum_of_norms(collectives_of: CollectivesOf) -> None:
    grid = Grid(4, 2)
    replicas = Replicas(grid, 4)
    params = {name: leaf[0] for name, leaf in _gradients().items()}
    adapted = {"kernel": True, "scale": False, "scalar": False}
    update = ShardedUpdate(Rule("scaled", 0.9, 1e-4), lambda step: 0.1, params, adapted, "2d", 8)

    def local(stacked: Any, state: ShardedState, params: Any) -> tuple[Any, ShardedState]:
        return update.update(jax.tree.map(lambda leaf: leaf[0], stacked), state, params)[:2]

    everywhere = PartitionSpec()
    mapped = jax.shard_map(
        local,
        mesh=replicas.mesh,
        in_specs=(PartitionSpec(ALL), update.specs, everywhere),
        out_specs=(everywhere, update.specs),
    )
    state = ShardedState(jnp.int32(0), tuple(jnp.zeros(update.flat.part) for _ in update.flat.routes))
    text = jax.jit(mapped).lower(_gradients(), state, params).compile().as_text()
    expected = [
        (collective.operation, _rings(grid, collective.along), collective.payload_bytes)
        for collective in costs(grid, 89)[2].collectives
    ]
    # Squares of weights and gradients of three tensors, and of the padding.
    norms = ("all-reduce", _rings(grid, "xy"), 2 * (3 + 1) * 4)
    assert Counter(collectives_of(text)) == Counter([*expected, norms])
