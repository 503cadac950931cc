from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from feeder.errors import ConfigError
from feeder.trainer.config import TrainConfig, config_names, load_config
from feeder.trainer.optimizer import decayed, make_optimizer, make_schedule
from feeder.trainer.step import make_state

STEPS = (0, 1, 4, 5, 6, 19)


# W = 5, T = 20, peak 1: the table of the module's documentation.
@pytest.mark.parametrize(
    ("decay", "rates"),
    [
        ("cosine", (0, 0.2, 0.8, 1, (1 + math.cos(math.pi / 15)) / 2, (1 + math.cos(math.pi * 14 / 15)) / 2)),
        ("poly", (0, 0.2, 0.8, 1, (15 / 16) ** 2, (2 / 16) ** 2)),
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
        ({"base_rate": -0.1}, "base_rate must be 0 or more, got -0.1"),
        ({"momentum": 1.0}, r"momentum must be in \[0, 1\), got 1.0"),
        ({"depth": 19}, "depth must be one of 8, 14, .*, got 19"),
        ({"compute_dtype": "float16"}, "compute_dtype must be one of bfloat16, float32, got 'float16'"),
        ({"decay": "step"}, "boundaries belong to decay 'step'"),
        ({"decay": "step", "boundaries": (0.5, 0.25)}, "ascending shares"),
    ],
)
def test_bad_settings(config: TrainConfig, changes: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(config, **changes)


def test_ready_configurations() -> None:
    assert config_names() == ["resnet50", "tiny"]
    steps, warmup = load_config("resnet50").lengths(1_281_167 // 256)
    assert (steps, warmup) == (450_360, 25_020)
    assert load_config("tiny").compute_dtype == "float32"
    with pytest.raises(ConfigError, match="no configuration 'huge'; there are resnet50, tiny"):
        load_config("huge")
