from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from feeder.trainer.alexnet import AlexNetBN
from feeder.trainer.config import TrainConfig
from feeder.trainer.model import Conv, Norm, ResNet
from feeder.trainer.optimizer import make_optimizer
from feeder.trainer.step import make_state


def _shapes(model: ResNet | AlexNetBN, size: int = 64) -> dict[str, dict]:
    return jax.eval_shape(lambda: model.init(jax.random.key(0), jnp.zeros((1, size, size, 3)), train=False))


# The counts of He et al.'s nets with 1000 classes as everybody builds them.
@pytest.mark.parametrize(
    ("depth", "parameters"),
    [(18, 11_689_512), (34, 21_797_672), (50, 25_557_032), (101, 44_549_160), (152, 60_192_808)],
)
def test_parameter_count(depth: int, parameters: int) -> None:
    variables = _shapes(ResNet(depth, 1000))
    assert sum(leaf.size for leaf in jax.tree.leaves(variables["params"])) == parameters


def test_alexnet_layer_by_layer() -> None:
    model = AlexNetBN(1000)
    params = _shapes(model, 227)["params"]
    # Kernel and bias of each layer; grouped convolutions see half of the features before them.
    assert {name: layer["kernel"].size + layer["bias"].size for name, layer in params.items()} == {
        "conv1": 11 * 11 * 3 * 96 + 96,
        "conv2": 5 * 5 * 48 * 256 + 256,
        "conv3": 3 * 3 * 256 * 384 + 384,
        "conv4": 3 * 3 * 192 * 384 + 384,
        "conv5": 3 * 3 * 192 * 256 + 256,
        "fc6": 6 * 6 * 256 * 4096 + 4096,
        "fc7": 4096 * 4096 + 4096,
        "fc8": 4096 * 1000 + 1000,
    }
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == 60_965_224
    seen = _seen(model, 227)
    sides = {name: seen[name]["__call__"][0].shape[1:3] for name in ("conv1", "norm2", "norm3", "conv5")}
    assert sides == {"conv1": (55, 55), "norm2": (27, 27), "norm3": (13, 13), "conv5": (13, 13)}


def test_alexnet_drops_in_training_only() -> None:
    model = AlexNetBN(3, width=4, compute_dtype="float32")
    images = jax.random.normal(jax.random.key(0, impl="rbg"), (2, 67, 67, 3))
    variables = jax.jit(partial(model.init, train=False))(jax.random.key(1, impl="rbg"), images)

    @jax.jit
    def forward(key: jax.Array) -> jax.Array:
        return model.apply(variables, images, train=True, rngs={"dropout": key}, mutable=["batch_stats"])[0]

    first, again, other = (forward(jax.random.key(seed, impl="rbg")) for seed in (0, 0, 1))
    assert (first == again).all()
    assert (first != other).any()


@pytest.mark.parametrize(
    ("model", "count"), [(ResNet(50, 10, width=8), 53), (ResNet(18, 10), 20), (AlexNetBN(10), 4)]
)
def test_every_batch_normalisation_is_made_by_the_argument(model: ResNet | AlexNetBN, count: int) -> None:
    made = []

    def norm(**settings: Any) -> Norm:
        made.append(settings["name"])
        return Norm(**settings)

    _shapes(model.clone(norm=norm), 67)
    assert len(made) == count


@pytest.mark.parametrize("size", [(12, 18), (11, 17)])
def test_the_stem_on_blocks_is_the_plain_one(size: tuple[int, int]) -> None:
    images = jax.random.normal(jax.random.key(0, impl="rbg"), (2, *size, 3))
    plain, blocks = (Conv(4, 7, 2, on_blocks=on_blocks) for on_blocks in (False, True))
    variables = plain.init(jax.random.key(1, impl="rbg"), images)
    assert jax.eval_shape(lambda: blocks.init(jax.random.key(1), images)) == jax.eval_shape(lambda: variables)

    def out_and_gradient(conv: Conv) -> tuple[jax.Array, Any]:
        def loss(variables: Any) -> tuple[jax.Array, jax.Array]:
            out = conv.apply(variables, images)
            return jnp.sum(out**2), out

        gradient, out = jax.grad(loss, has_aux=True)(variables)
        return out, gradient["params"]["conv"]["kernel"]

    for one, other in zip(out_and_gradient(plain), out_and_gradient(blocks), strict=True):
        assert one.shape == other.shape
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


def test_a_resnet_on_blocks_has_the_same_parameters() -> None:
    assert jax.tree.structure(_shapes(ResNet(50, 10))) == jax.tree.structure(
        _shapes(ResNet(50, 10, space_to_depth=True))
    )


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
        assert not block["norm2"]["norm"]["scale"].any()
        assert (block["norm1"]["norm"]["scale"] == 1).all()


def _seen(model: ResNet | AlexNetBN, size: int) -> dict[str, Any]:
    """What comes out of each module for one image."""
    images = jnp.zeros((1, size, size, 3))
    apply = partial(model.apply, train=False, capture_intermediates=True, mutable=["intermediates"])
    return jax.eval_shape(lambda variables: apply(variables, images), _shapes(model, size))[1][
        "intermediates"
    ]


def test_the_stride_of_a_bottleneck_is_in_its_3x3() -> None:
    block = _seen(ResNet(50, 10, width=8), 224)["stage2_block1"]
    sides = [block[name]["__call__"][0].shape[1] for name in ("conv1", "conv2", "conv3", "shortcut")]
    assert sides == [56, 28, 28, 28]


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("size", [64, 63])
def test_both_stems_reduce_by_four(small: bool, size: int) -> None:
    seen = _seen(ResNet(8, 10, width=8, small_stem=small), size)
    assert seen["stage1_block1"]["__call__"][0].shape == (1, 16, 16, 8)
