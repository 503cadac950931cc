from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from feeder.errors import ConfigError
from feeder.trainer.config import TrainConfig, config_names, load_config
from feeder.trainer.optimizer import decay_loss, decayed, make_optimizer, make_schedule, plain_tensors
from feeder.trainer.step import make_state

IMAGENET = 1_281_167
STEPS = (0, 1, 4, 5, 6, 19)


# W = 5, T = 20, peak 1: the table of the module's documentation.
@pytest.mark.parametrize(
    ("decay", "rates"),
    [
        ("cosine", (0, 0.2, 0.8, 1, (1 + math.cos(math.pi / 15)) / 2, (1 + math.cos(math.pi * 14 / 15)) / 2)),
        ("poly", (0, 0.2, 0.8, 1, (15 / 16) ** 2, (2 / 16) ** 2)),
        ("poly_run", (0, 0.2, 0.8, 0.5625, 0.49, 0.0025)),
        ("step", (0, 0.2, 0.8, 1, 1, 0.01)),
    ],
)
def test_schedule(config: TrainConfig, decay: str, rates: tuple[float, ...]) -> None:
    boundaries = (0.5, 0.75) if decay == "step" else ()
    config = dataclasses.replace(config, decay=decay, boundaries=boundaries, base_rate=1.0, batch_size=256)
    schedule = make_schedule(config, steps=20, warmup=5)
    np.testing.assert_allclose([schedule(step) for step in STEPS], rates, rtol=1e-5, atol=1e-7)


def test_steps_fall_at_their_boundary(config: TrainConfig) -> None:
    config = dataclasses.replace(config, decay="step", boundaries=(0.5, 0.75), base_rate=1.0, batch_size=256)
    schedule = make_schedule(config, steps=20, warmup=0)
    rates = [float(schedule(step)) for step in (0, 9, 10, 14, 15)]
    np.testing.assert_allclose(rates, [1, 1, 0.1, 0.1, 0.01], rtol=1e-5)


def test_the_peak_grows_with_the_batch(config: TrainConfig) -> None:
    assert dataclasses.replace(config, base_rate=0.1, batch_size=8192).peak_rate == pytest.approx(3.2)


def test_lengths_follow_the_real_number_of_steps(config: TrainConfig) -> None:
    epochs = dataclasses.replace(config, steps=None, epochs=3, warmup_steps=None, warmup_epochs=0.5)
    assert epochs.lengths(24 // 5) == (12, 2)
    with pytest.raises(ConfigError, match="5 steps does not fit a run of 5: shorten it with --warmup-steps"):
        dataclasses.replace(config, steps=5, warmup_steps=5).lengths(100)
    with pytest.raises(ConfigError, match="at most 2147483647 steps, got 2147483648"):
        dataclasses.replace(config, steps=2**31, epochs=None).lengths(100)


def test_momentum_and_decay_as_written_down(config: TrainConfig) -> None:
    rng = np.random.default_rng(0)
    w, b = rng.normal(size=(3, 4)), rng.normal(size=4)
    params = {"dense": {"kernel": jnp.asarray(w), "bias": jnp.asarray(b)}}
    for nesterov in (False, True):
        settings = dataclasses.replace(config, momentum=0.9, weight_decay=0.01, nesterov=nesterov)
        optimizer = make_optimizer(settings, lambda step: 0.1 / (1 + step))
        state, now = optimizer.init(params), params
        expected, velocity = {"kernel": w, "bias": b}, {"kernel": 0.0, "bias": 0.0}
        for step in range(3):
            grads = {"kernel": rng.normal(size=(3, 4)), "bias": rng.normal(size=4)}
            updates, state = optimizer.update({"dense": jax.tree.map(jnp.asarray, grads)}, state, now)
            now = jax.tree.map(jnp.add, now, updates)
            for name, decay in (("kernel", 0.01), ("bias", 0.0)):
                d = grads[name] + decay * expected[name]
                velocity[name] = 0.9 * velocity[name] + d
                move = 0.9 * velocity[name] + d if nesterov else velocity[name]
                expected[name] = expected[name] - 0.1 / (1 + step) * move
        np.testing.assert_allclose(now["dense"]["kernel"], expected["kernel"], rtol=1e-5)
        np.testing.assert_allclose(now["dense"]["bias"], expected["bias"], rtol=1e-5)


def test_without_gradient_only_kernels_shrink(config: TrainConfig) -> None:
    config = dataclasses.replace(config, weight_decay=0.01, nesterov=False)
    optimizer = make_optimizer(config, lambda step: jnp.float32(0.5))
    params = make_state(config, optimizer).params
    updates, _ = optimizer.update(jax.tree.map(jnp.zeros_like, params), optimizer.init(params), params)
    shrinks = decayed(params)
    assert sum(jax.tree.leaves(shrinks)) == 10
    for role, update, param in zip(*map(jax.tree.leaves, (shrinks, updates, params)), strict=True):
        np.testing.assert_allclose(update, -0.5 * 0.01 * param if role else np.zeros_like(param), rtol=1e-5)


def test_momentum_is_float32(config: TrainConfig) -> None:
    config = dataclasses.replace(config, compute_dtype="bfloat16")
    optimizer = make_optimizer(config, lambda step: 0.1)
    leaves = jax.tree.leaves(jax.eval_shape(lambda: make_state(config, optimizer)).opt_state)
    assert {leaf.dtype for leaf in leaves if leaf.ndim} == {jnp.dtype("float32")}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 3}, "exactly one of epochs and steps"),
        ({"warmup_steps": None}, "exactly one of warmup_epochs and warmup_steps"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"image_size": -1}, "image_size must be in"),
        ({"base_rate": -0.1}, "base_rate must be 0 or more, got -0.1"),
        ({"momentum": 1.0}, r"momentum must be in \[0, 1\), got 1.0"),
        ({"rate": 1.0}, "exactly one of base_rate and rate must be given, got 1.0 and 1.0"),
        ({"weight_decay_in": "loss,optimizer"}, "weight_decay_in must be one of optimizer, loss, got"),
        ({"weight_decay_in": ("loss", "optimizer")}, "weight_decay_in must be one of optimizer, loss, got"),
        ({"optimizer": "adam"}, "optimizer must be one of momentum, lars, got 'adam'"),
        (
            {"optimizer": "lars", "nesterov": False},
            "LARS needs its lars_form, scaled or unscaled: they are different rules",
        ),
        ({"optimizer": "lars", "lars_form": "scaled", "nesterov": True}, "LARS has none"),
        (
            {"optimizer": "lars", "lars_form": "scaled", "nesterov": False, "trust": 0.0},
            "trust must be more than 0, got 0.0",
        ),
        ({"lars_form": "scaled"}, "lars_form belongs to optimizer 'lars'"),
        ({"space_to_depth": True}, "space_to_depth belongs to a ResNet with its large stem"),
        ({"arch": "alexnet_bn", "width": 6}, "width of AlexNet must be a multiple of 4, got 6"),
        ({"arch": "alexnet_bn"}, "AlexNet needs images of 67 pixels or more, got 32"),
        ({"depth": 19}, "depth must be one of 8, 14, .*, got 19"),
        ({"compute_dtype": "float16"}, "compute_dtype must be one of bfloat16, float32, got 'float16'"),
        ({"decay": "step"}, "boundaries belong to decay 'step'"),
        ({"decay": "step", "boundaries": (0.5, 0.25)}, "ascending shares"),
    ],
)
def test_bad_settings(config: TrainConfig, changes: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(config, **changes)


# Of each ready configuration on ImageNet: T, W, and the rates of steps 0, 1, W - 1, W, W + 1 and the last
# (without a warm-up: of 0 four times, 1 and the last), worked out apart from the code under test. Epochs
# are of 1,281,167 // batch steps: 5,004, 1,251, 312, 156, 78, 39 and 19.
RATES = [
    ("resnet50", 450360, 25020, (0, 3.996803e-06, 0.099996, 0.1, 0.1, 0.0001)),
    ("resnet50-1k", 112590, 6255, (0, 6.394884e-05, 0.3999361, 0.4, 0.4, 0.0004)),
    ("resnet50-4k", 28080, 1560, (0, 0.001025641, 1.598974, 1.6, 1.6, 0.0016)),
    ("resnet50-8k", 14040, 780, (0, 0.004102564, 3.195897, 3.2, 3.2, 0.0032)),
    ("resnet50-lars-16k", 7020, 390, (0, 0.06410256, 24.9359, 25, 24.99246, 0.0001022743)),
    ("resnet50-lars-32k", 3510, 468, (0, 0.07264957, 33.92735, 34, 33.97766, 0.000114687)),
    ("resnet50-lars-64k", 1710, 646, (0, 0.05417957, 34.94582, 35, 34.9343, 0.0002234319)),
    ("resnet50-mlperf06-4k", 22464, 1560, (0, 0.006410256, 9.99359, 10, 9.999043, 0.0001000915)),
    ("resnet50-mlperf06-16k", 5616, 390, (0, 0.06410256, 24.9359, 25, 24.99044, 0.0001036601)),
    ("resnet50-mlperf06-32k", 2983, 975, (0, 0.032, 31.168, 31.2, 31.16895, 0.000130921)),
    ("resnet50-mlperf07-tf-64k", 1738, 589, (0, 0.04193379, 24.65707, 24.699, 24.65606, 0.0001747037)),
    ("resnet50-mlperf07-jax-64k", 1691, 627, (0, 0.0368118, 23.04419, 23.081, 23.03768, 0.000181398)),
    ("alexnet-bn-512", 250200, 0, (0.08, 0.08, 0.08, 0.08, 0.07999936, 1.277954e-12)),
    ("alexnet-bn-1k", 125100, 0, (2, 2, 2, 2, 1.999968, 1.277954e-10)),
    ("alexnet-bn-8k", 15600, 600, (1, 1.015, 9.985, 9.245562, 9.244329, 4.109139e-08)),
    ("alexnet-bn-16k", 7800, 400, (1, 1.0575, 23.9425, 21.60158, 21.59574, 3.944773e-07)),
    ("alexnet-bn-32k", 3900, 400, (1, 1.0775, 31.9225, 25.77252, 25.75779, 2.103879e-06)),
]


@pytest.mark.parametrize(("name", "steps", "warmup", "rates"), RATES, ids=[row[0] for row in RATES])
def test_rates_of_the_ready_configurations(
    name: str, steps: int, warmup: int, rates: tuple[float, ...]
) -> None:
    config = load_config(name)
    assert config.lengths(IMAGENET // config.batch_size) == (steps, warmup)
    schedule = make_schedule(config, steps, warmup)
    at = np.array([0, 1, warmup - 1, warmup, warmup + 1, steps - 1] if warmup else [0, 0, 0, 0, 1, steps - 1])
    np.testing.assert_allclose(schedule(at), rates, rtol=1e-5)


@pytest.mark.parametrize("name", ["resnet50", "resnet50-1k", "resnet50-4k", "resnet50-8k"])
def test_rates_fall_at_epochs_30_60_and_80(name: str) -> None:
    config = load_config(name)
    epoch = IMAGENET // config.batch_size
    schedule = make_schedule(config, *config.lengths(epoch))
    at = np.array([step for boundary in (30, 60, 80) for step in (boundary * epoch - 1, boundary * epoch)])
    expected = np.array([1, 0.1, 0.1, 0.01, 0.01, 0.001]) * config.peak_rate
    np.testing.assert_allclose(schedule(at), expected, rtol=1e-5)


def test_ready_configurations() -> None:
    assert config_names() == [row[0] for row in RATES[-5:] + RATES[:-5]] + ["tiny"]
    for name in config_names():
        config = load_config(name)
        large = config.arch == "resnet" and ("mlperf" in name or config.batch_size >= 16_384)
        assert config.optimizer == (
            "lars" if large or (config.rate is not None and config.rate > 1) else "momentum"
        )
        assert (config.lars_form is None) == (config.optimizer == "momentum")
    assert load_config("tiny").compute_dtype == "float32"
    with pytest.raises(ConfigError, match="no configuration 'huge'; there are alexnet-bn-512, "):
        load_config("huge")


def test_what_is_left_out_is_told_by_kind() -> None:
    config = load_config("resnet50")
    params = jax.eval_shape(lambda: make_state(config, make_optimizer(config, lambda step: 0.1))).params
    assert plain_tensors(params) == {"dense/bias": 1, "norm/bias": 53, "norm/scale": 53}


def test_decay_in_the_loss_is_decay_in_the_gradient(config: TrainConfig) -> None:
    here = dataclasses.replace(config, weight_decay=0.01, nesterov=False)
    there = dataclasses.replace(here, weight_decay_in="loss")
    params = {"stem": {"kernel": jnp.array([1.0, -2.0])}, "norm": {"scale": jnp.array([3.0])}}
    zero = jax.tree.map(jnp.zeros_like, params)
    from_loss = jax.grad(lambda params: decay_loss(there, params))(params)
    assert decay_loss(there, params) == pytest.approx(0.005 * 5)
    assert decay_loss(here, params) == 0
    for settings, gradient in ((here, zero), (there, from_loss)):
        optimizer = make_optimizer(settings, lambda step: 0.5)
        updates, _ = optimizer.update(gradient, optimizer.init(params), params)
        np.testing.assert_allclose(updates["stem"]["kernel"], [-0.005, 0.01], rtol=1e-6)
        assert updates["norm"]["scale"] == 0
