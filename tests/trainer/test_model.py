from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from feeder.trainer.config import TrainConfig
from feeder.trainer.model import Norm, ResNet
from feeder.trainer.optimizer import make_optimizer
from feeder.trainer.step import make_state


def _shapes(model: ResNet, size: int = 64) -> dict[str, dict]:
    return jax.eval_shape(lambda: model.init(jax.random.key(0), jnp.zeros((1, size, size, 3)), train=False))


# The counts of He et al.'s nets with 1000 classes as everybody builds them.
@pytest.mark.parametrize(
    ("depth", "parameters"),
    [(18, 11_689_512), (34, 21_797_672), (50, 25_557_032), (101, 44_549_160)],
)
def test_parameter_count(depth: int, parameters: int) -> None:
    variables = _shapes(ResNet(depth, 1000))
    assert sum(leaf.size for leaf in jax.tree.leaves(variables["params"])) == parameters


def test_everything_that_is_kept_is_float32_and_convolutions_are_bfloat16() -> None:
    model = ResNet(8, 10, width=8)
    images = jnp.zeros((2, 32, 32, 3))
    variables = _shapes(model)
    assert {leaf.dtype for leaf in jax.tree.leaves(variables)} == {jnp.dtype("float32")}

    def forward(variables: Any) -> tuple[jax.Array, dict]:
        return model.apply(variables, images, train=True, mutable=["batch_stats"])

    logits, updated = jax.eval_shape(forward, variables)
    assert logits.dtype == jnp.float32
    assert {leaf.dtype for leaf in jax.tree.leaves(updated)} == {jnp.dtype("float32")}
    equations = jax.make_jaxpr(forward)(variables).eqns
    inner = [e for e in equations if e.primitive.name in ("conv_general_dilated", "dot_general")]
    assert len(inner) == 10  # stem, 3 blocks of 2, 2 shortcuts, dense
    assert {variable.aval.dtype for e in inner for variable in e.invars} == {jnp.dtype("bfloat16")}


def test_running_averages_do_not_stick_as_in_bfloat16() -> None:
    norm = Norm(train=True, dtype=jnp.bfloat16)
    images = jnp.full((2, 4, 4, 1), 1.001)
    variables = norm.init(jax.random.key(0), images)
    update = jax.jit(lambda v: {**v, **norm.apply(v, images, mutable=["batch_stats"])[1]})
    for _ in range(200):
        variables = update(variables)
    # Averages in bfloat16 would have stopped early: a tenth of what is missing rounds to nothing.
    assert abs(float(variables["batch_stats"]["norm"]["mean"][0]) - 1.001) < 1e-3


def test_blocks_start_as_the_identity(config: TrainConfig) -> None:
    params = make_state(config, make_optimizer(config, lambda step: 0.1)).params
    blocks = [block for name, block in params.items() if name.startswith("stage")]
    assert len(blocks) == 3
    for block in blocks:
        assert not block["Norm_1"]["norm"]["scale"].any()
        assert (block["Norm_0"]["norm"]["scale"] == 1).all()


def _seen(model: ResNet, size: int) -> dict[str, Any]:
    """What comes out of each module for one image."""
    images = jnp.zeros((1, size, size, 3))
    apply = partial(model.apply, train=False, capture_intermediates=True, mutable=["intermediates"])
    return jax.eval_shape(lambda variables: apply(variables, images), _shapes(model))[1]["intermediates"]


def test_the_stride_of_a_bottleneck_is_in_its_3x3() -> None:
    block = _seen(ResNet(50, 10, width=8), 224)["stage2_block1"]
    sides = [block[name]["__call__"][0].shape[1] for name in ("Conv_0", "Conv_1", "Conv_2", "shortcut")]
    assert sides == [56, 28, 28, 28]


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("size", [64, 63])
def test_both_stems_reduce_by_four(small: bool, size: int) -> None:
    seen = _seen(ResNet(8, 10, width=8, small_stem=small), size)
    assert seen["stage1_block1"]["__call__"][0].shape == (1, 16, 16, 8)
