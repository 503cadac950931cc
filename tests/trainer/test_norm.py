"""Batch normalisation over groups of replicas against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from feeder.trainer.grid import Grid
from feeder.trainer.model import BATCH_NORM_EPSILON, BATCH_NORM_MOMENTUM, Norm
from feeder.trainer.replicas import ALL, Replicas

EACH, SIDE, CHANNELS = 2, 3, 5
AXES = (0, 1, 2)


def _groups(grid: Grid, group: int) -> list[list[int]]:
    """Numbers of the replicas of each group, by the tile's definition."""
    along_x, along_y = grid.tile(group)
    return [
        [(left + i) * grid.y + top + j for i in range(along_x) for j in range(along_y)]
        for left in range(0, grid.x, along_x)
        for top in range(0, grid.y, along_y)
    ]


def _oracle(x: np.ndarray, pull: np.ndarray, scale: np.ndarray, bias: np.ndarray) -> dict[str, np.ndarray]:
    """Of the samples of one group: output, statistics, and the gradients of sum(output * pull)."""
    mean, var = x.mean(AXES), x.var(AXES)
    deviation = np.sqrt(var + BATCH_NORM_EPSILON)
    unit = (x - mean) / deviation
    pulled = pull * scale
    of_x = (pulled - pulled.mean(AXES) - unit * (pulled * unit).mean(AXES)) / deviation
    return {
        "y": unit * scale + bias,
        "mean": (1 - BATCH_NORM_MOMENTUM) * mean,
        "var": BATCH_NORM_MOMENTUM + (1 - BATCH_NORM_MOMENTUM) * var,
        "x": of_x,
        "scale": (pull * unit).sum(AXES),
        "bias": pull.sum(AXES),
    }


def _compiled(grid: Grid, group: int, x: Any, pull: Any, variables: Any, dtype: Any) -> Any:
    """On eight replicas, x and pull to output, running averages of each group, and gradients by input and
    parameters."""
    replicas = Replicas(grid, group)
    norm = Norm(train=True, dtype=dtype, axes=replicas.norm_axes)

    def local(x: jax.Array, pull: jax.Array) -> Any:
        def loss(x: jax.Array, params: Any) -> Any:
            y, updated = norm.apply({**variables, "params": params}, x, mutable=["batch_stats"])
            return jnp.sum(y.astype(jnp.float32) * pull), (y, updated["batch_stats"]["norm"])

        params = jax.lax.pcast(variables["params"], ALL, to="varying")
        (of_x, of_params), (y, stats) = jax.grad(loss, argnums=(0, 1), has_aux=True)(x, params)
        stats = jax.tree.map(lambda leaf: leaf[None], stats)
        return y, stats, of_x, jax.tree.map(lambda leaf: leaf[None], of_params["norm"])

    by_replica, by_group = PartitionSpec(ALL), replicas.per_group.spec
    mapped = jax.shard_map(
        local,
        mesh=replicas.mesh,
        in_specs=(by_replica, by_replica),
        out_specs=(by_replica, by_group, by_replica, by_replica),
    )
    return jax.jit(mapped).lower(x, pull).compile()


@pytest.mark.parametrize(
    ("grid", "group", "dtype"),
    [
        (Grid(4, 2), 1, "float32"),
        (Grid(4, 2), 2, "float32"),
        (Grid(4, 2), 4, "float32"),
        (Grid(2, 4), 4, "float32"),
        (Grid(8, 1), 8, "float32"),
        (Grid(2, 4), 8, "bfloat16"),
    ],
    ids=str,
)
def test_each_group_has_the_statistics_of_its_own_samples(
    grid: Grid, group: int, dtype: str, collectives_of: Callable[[str], list[Any]]
) -> None:
    rng = np.random.default_rng(0)
    shape = (8 * EACH, SIDE, SIDE, CHANNELS)
    # Replicas differ a lot, so that statistics of the wrong group would not pass.
    x = rng.normal(size=shape) + np.repeat(np.arange(8), EACH)[:, None, None, None]
    x, pull = (np.asarray(jnp.asarray(a, dtype), np.float64) for a in (x, rng.normal(size=shape)))
    scale, bias = rng.normal(size=(2, CHANNELS)).astype(np.float32)
    variables = {
        "params": {"norm": {"scale": scale, "bias": bias}},
        "batch_stats": {
            "norm": {"mean": np.zeros(CHANNELS, np.float32), "var": np.ones(CHANNELS, np.float32)}
        },
    }
    given = jnp.asarray(x, dtype), jnp.asarray(pull, jnp.float32)
    compiled = _compiled(grid, group, *given, variables, dtype)
    groups = frozenset(map(frozenset, _groups(grid, group)))
    # Forward means of values and squares, backward their gradients: one collective each.
    both = ("all-reduce", groups, 2 * CHANNELS * 4)
    assert collectives_of(compiled.as_text()) == ([both, both] if group > 1 else [])
    y, stats, of_x, of_params = compiled(*given)
    assert y.dtype == of_x.dtype == dtype
    assert stats["mean"].dtype == jnp.float32
    # Variance as mean of squares less squared mean: about 50 - 25 here, of which float32 keeps 6 digits.
    near, rough = {"rtol": 1e-4, "atol": 1e-4}, {"rtol": 2**-7, "atol": 2**-6}
    tolerance = near if dtype == "float32" else rough
    of_scale = of_bias = 0
    for number, members in enumerate(_groups(grid, group)):
        slots = [slot for member in members for slot in range(member * EACH, (member + 1) * EACH)]
        expected = _oracle(x[slots], pull[slots], scale, bias)
        np.testing.assert_allclose(np.asarray(y, np.float64)[slots], expected["y"], **tolerance)
        np.testing.assert_allclose(np.asarray(of_x, np.float64)[slots], expected["x"], **tolerance)
        np.testing.assert_allclose(stats["mean"][number], expected["mean"], **near)
        np.testing.assert_allclose(stats["var"][number], expected["var"], **near)
        of_scale, of_bias = of_scale + expected["scale"], of_bias + expected["bias"]
    for name, total in (("scale", of_scale), ("bias", of_bias)):
        np.testing.assert_allclose(of_params[name].sum(0), total, **tolerance)
