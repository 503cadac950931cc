from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from feeder.trainer.config import TrainConfig
from feeder.trainer.lars import lars, trust_ratio
from feeder.trainer.optimizer import decayed, make_optimizer, make_schedule

MOMENTUM, DECAY, TRUST, EPSILON = 0.9, 0.01, 0.02, 1e-5
STEPS = 6


@pytest.fixture
def settings(config: TrainConfig) -> TrainConfig:
    return dataclasses.replace(
        config,
        optimizer="lars",
        lars_form="scaled",
        momentum=MOMENTUM,
        nesterov=False,
        weight_decay=DECAY,
        trust=TRUST,
        trust_epsilon=EPSILON,
        base_rate=None,
        rate=3.0,
        end_rate=1e-4,
        decay="poly",
    )


def _tensors(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """A kernel, one that is all zeros, a bias and a batch-norm scale."""
    return {
        "conv/kernel": rng.normal(size=(3, 3, 2, 4)),
        "zero/kernel": np.zeros((4, 2)),
        "dense/bias": rng.normal(size=5),
        "norm/scale": rng.normal(size=4) + 1,
    }


def _tree(tensors: dict[str, np.ndarray]) -> dict[str, dict[str, jax.Array]]:
    return {
        name.split("/")[0]: {name.split("/")[1]: jnp.asarray(value, jnp.float32)}
        for name, value in tensors.items()
    }


def _rate(step: int, steps: int = 20, warmup: int = 3) -> float:
    """3 after 3 steps, then (20 - 3 + 1 steps) to 1e-4 in a parabola."""
    if step < warmup:
        return 3.0 * step / warmup
    return 1e-4 + (3.0 - 1e-4) * (1 - (step - warmup) / (steps - warmup + 1)) ** 2


def _oracle(
    weights: dict[str, np.ndarray], gradients: list[dict[str, np.ndarray]], form: str, place: str
) -> dict[str, np.ndarray]:
    """LARS in float64, tensor by tensor, as the two papers' codes write it down."""
    after = {}
    for name, start in weights.items():
        w, v = start.copy(), np.zeros_like(start)
        for step, all_gradients in enumerate(gradients):
            g, rate = all_gradients[name], _rate(step)
            trust = 1.0
            if name.endswith("kernel"):
                if place == "loss":
                    g = g + DECAY * w  # what comes out of the loss
                w_norm, g_norm = np.sqrt((w**2).sum()), np.sqrt((g**2).sum())
                if w_norm > 0 and g_norm > 0:
                    trust = TRUST * w_norm / (g_norm + DECAY * w_norm + EPSILON)
                if place == "optimizer":
                    g = g + DECAY * w
            if form == "scaled":
                v = MOMENTUM * v + rate * trust * g
                w = w - v
            else:
                v = MOMENTUM * v + g
                w = w - rate * trust * v
        after[name] = w
    return after


@pytest.mark.parametrize("place", ["optimizer", "loss"])
@pytest.mark.parametrize("form", ["scaled", "unscaled"])
def test_agrees_with_numpy_also_after_a_resume(settings: TrainConfig, form: str, place: str) -> None:
    rng = np.random.default_rng(0)
    weights = _tensors(rng)
    gradients = [_tensors(rng) for _ in range(STEPS)]
    gradients[2]["conv/kernel"] = np.zeros((3, 3, 2, 4))  # no gradient: plain rate
    gradients[4]["zero/kernel"] = np.ones((4, 2))  # no weights at first: plain rate, and then LARS
    expected = _oracle(weights, gradients, form, place)

    settings = dataclasses.replace(settings, lars_form=form, weight_decay_in=place)
    params: Any = _tree(weights)
    state = make_optimizer(settings, make_schedule(settings, 20, 3)).init(params)
    for step, one in enumerate(gradients):
        if step in (1, 3):  # as a checkpoint brings it back, in another process
            params, state = jax.tree.map(np.asarray, (params, state))
        optimizer = make_optimizer(settings, make_schedule(settings, 20, 3))
        gradient = _tree(one)
        if place == "loss":
            gradient = jax.tree.map(
                lambda kernel, g, w: g + DECAY * w if kernel else g, decayed(params), gradient, params
            )
        updates, state = optimizer.update(gradient, state, params)
        params = optax.apply_updates(params, updates)
    for name, value in expected.items():
        module, leaf = name.split("/")
        np.testing.assert_allclose(params[module][leaf], value, rtol=2e-5, atol=1e-6, err_msg=name)


def test_the_two_forms_part_when_the_rate_changes() -> None:
    rng = np.random.default_rng(0)
    weights = _tensors(rng)
    gradients = [_tensors(rng) for _ in range(STEPS)]
    scaled, unscaled = (_oracle(weights, gradients, form, "optimizer") for form in ("scaled", "unscaled"))
    assert abs(scaled["conv/kernel"] - unscaled["conv/kernel"]).max() > 1e-2


def test_trust_ratio() -> None:
    ratio = trust_ratio(
        jnp.array([3.0, 4.0]), jnp.array([[0.6], [0.8]]), trust=0.001, weight_decay=0.1, epsilon=0.5
    )
    assert float(ratio) == pytest.approx(0.001 * 5 / (1 + 0.1 * 5 + 0.5))
    zero, some = jnp.zeros(2), jnp.ones(2)
    for weights, gradient in ((zero, some), (some, zero), (zero, zero)):
        ratio = trust_ratio(weights, gradient, trust=0.001, weight_decay=0.0, epsilon=0.0)
        assert float(ratio) == 1.0


def test_a_ratio_for_each_tensor(settings: TrainConfig) -> None:
    params = {"a": {"kernel": jnp.ones(4)}, "b": {"kernel": 100 * jnp.ones(4)}}
    gradient = jax.tree.map(jnp.ones_like, params)
    settings = dataclasses.replace(settings, weight_decay=0.0, trust_epsilon=0.0)
    optimizer = make_optimizer(settings, lambda step: 1.0)
    updates, _ = optimizer.update(gradient, optimizer.init(params), params)
    np.testing.assert_allclose(updates["a"]["kernel"], -TRUST * np.ones(4), rtol=1e-6)
    np.testing.assert_allclose(updates["b"]["kernel"], -100 * TRUST * np.ones(4), rtol=1e-6)


def _first_update(optimizer: optax.GradientTransformation, params: Any, gradient: Any) -> np.ndarray:
    updates, _ = optimizer.update(gradient, optimizer.init(params), params)
    return np.asarray(updates["conv"]["kernel"])


@pytest.mark.parametrize(("gradient_scale", "agree"), [(1e4, True), (1e-2, False)])
def test_optax_lars_agrees_where_gradients_are_large(gradient_scale: float, agree: bool) -> None:
    """Its denominator is |g + wd w|, ours |g| + wd |w|: the same where |g| is much larger than wd |w|."""
    rng = np.random.default_rng(0)
    params = _tree({"conv/kernel": rng.normal(size=(3, 3, 2, 4))})
    gradient = _tree({"conv/kernel": gradient_scale * rng.normal(size=(3, 3, 2, 4))})
    ours = lars(
        lambda step: 0.5,
        form="scaled",
        momentum=MOMENTUM,
        weight_decay=DECAY,
        add_decay=True,
        adapted=decayed,
        trust=TRUST,
    )
    theirs = optax.lars(0.5, weight_decay=DECAY, trust_coefficient=TRUST, momentum=MOMENTUM)
    first, second = (_first_update(rule, params, gradient) for rule in (ours, theirs))
    difference = np.linalg.norm(first - second) / np.linalg.norm(second)
    assert difference < 1e-5 if agree else difference > 0.1


def test_velocity_is_float32_and_starts_at_zero(settings: TrainConfig) -> None:
    state = make_optimizer(settings, lambda step: 1.0).init(_tree(_tensors(np.random.default_rng(0))))
    assert {leaf.dtype for leaf in jax.tree.leaves(state.velocity)} == {jnp.dtype("float32")}
    assert not any(leaf.any() for leaf in jax.tree.leaves(state.velocity))
