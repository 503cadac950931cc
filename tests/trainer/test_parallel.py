"""Training on meshes of eight devices against the same training on one."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from feeder.errors import ConfigError
from feeder.trainer.config import ComputeType, TrainConfig
from feeder.trainer.gradients import Scheme
from feeder.trainer.grid import Grid
from feeder.trainer.optimizer import make_optimizer, make_schedule
from feeder.trainer.parallel import Parallel
from feeder.trainer.replicas import Replicas
from feeder.trainer.step import EvalSums, State, make_eval_step, make_state, make_train_step

STEPS, BATCH, SIZE, CLASSES = 20, 16, 16, 4

CONFIG = TrainConfig(
    classes=CLASSES,
    steps=STEPS,
    batch_size=BATCH,
    image_size=SIZE,
    depth=8,
    width=4,
    small_stem=True,
    compute_dtype="float32",
    base_rate=0.2,
    warmup_steps=3,
)
SCHEDULE = make_schedule(CONFIG, STEPS, 3)


def _batches() -> list[tuple[np.ndarray, np.ndarray]]:
    """Noise whose brightness tells the class."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, CLASSES, (STEPS, BATCH)).astype(np.int32)
    noise = rng.integers(0, 128, (STEPS, BATCH, SIZE, SIZE, 3), np.uint8)
    return list(zip(noise + (40 * labels[..., None, None, None]).astype(np.uint8), labels, strict=True))


MOMENTUM: dict[str, Any] = {}
LARS: dict[str, Any] = {
    "optimizer": "lars",
    "lars_form": "unscaled",
    "trust": 2.5,
    "weight_decay": 1e-3,
    "weight_decay_in": "loss",
}


@cache
def _on_one_device(config: TrainConfig) -> tuple[list[float], list[float], State]:
    """Losses and gradient norms of each step, and the last state."""
    optimizer = make_optimizer(config, SCHEDULE)
    step = jax.jit(make_train_step(config, optimizer))
    state, losses, norms = make_state(config, optimizer), [], []
    for images, labels in _batches():
        state, result = step(state, images, labels)
        losses.append(float(result.loss))
        norms.append(float(result.grad_norm))
    return losses, norms, state


def _parallel(
    grid: Grid, group: int, scheme: Scheme, shard_update: bool, config: TrainConfig = CONFIG
) -> Parallel:
    return Parallel(config, SCHEDULE, Replicas(grid, group), scheme, shard_update)


# float32: sums are in another order. bfloat16: the gradients of each replica's own samples are rounded to 8
# bits before they are added up.
@pytest.mark.parametrize(
    ("grid", "scheme", "shard_update", "rule", "dtype", "tolerance"),
    [
        (Grid(8, 1), "psum", False, MOMENTUM, "float32", 1e-5),
        (Grid(4, 2), "2d", False, MOMENTUM, "float32", 1e-5),
        (Grid(2, 4), "2d", True, LARS, "float32", 1e-5),
        (Grid(8, 1), "1d", True, MOMENTUM, "bfloat16", 1e-3),
        (Grid(4, 2), "2d", True, MOMENTUM, "bfloat16", 1e-3),
        (Grid(2, 4), "2d", False, MOMENTUM, "bfloat16", 1e-3),
    ],
    ids=lambda value: value.get("optimizer", "momentum") if isinstance(value, dict) else str(value),
)
@pytest.mark.timeout(400)
def test_eight_devices_train_as_one(
    grid: Grid,
    scheme: Scheme,
    shard_update: bool,
    rule: dict[str, Any],
    dtype: ComputeType,
    tolerance: float,
) -> None:
    config = dataclasses.replace(CONFIG, compute_dtype=dtype, **rule)
    expected, expected_norms, alone = _on_one_device(config)
    parallel = _parallel(grid, 8, scheme, shard_update, config)
    state = parallel.spread(parallel.start())
    step = parallel.compile_train_step(state)
    losses, norms = [], []
    for images, labels in _batches():
        batch = jax.device_put((images, labels), parallel.replicas.batch)
        state, result = step(state, *batch)
        losses.append(float(result.loss))
        norms.append(float(result.grad_norm))
    assert result.stray == -1
    np.testing.assert_allclose(losses, expected, rtol=tolerance)
    np.testing.assert_allclose(norms, expected_norms, rtol=100 * tolerance)
    assert losses[-1] < losses[0] - 0.05  # it has moved far enough for a difference to show

    saved = parallel.settle(state)
    assert jax.tree.structure(saved) == jax.tree.structure(alone)
    if dtype == "float32":
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-4), saved, alone)
    again = parallel.spread(saved)
    jax.tree.map(np.testing.assert_array_equal, again, state)


def test_evaluation_adds_up_all_replicas_and_finds_stray_labels() -> None:
    state = _on_one_device(CONFIG)[-1]
    images, labels = _batches()[0]
    mask = np.arange(BATCH) % 5 != 4
    parallel = _parallel(Grid(4, 2), 2, "2d", False)
    spread = parallel.for_eval(parallel.spread(jax.device_put(state, parallel.replicas.replicated)))
    assert spread.opt_state == ()
    step = parallel.compile_eval_step(spread)
    alone = jax.jit(make_eval_step(CONFIG))

    def both(labels: np.ndarray) -> tuple[EvalSums, EvalSums]:
        batch = jax.device_put((images, labels, mask), parallel.replicas.batch)
        return step(spread, *batch), alone(state, images, labels, mask)

    ours, theirs = both(labels)
    assert (ours.correct, ours.images, ours.stray) == (theirs.correct, mask.sum(), -1)
    assert float(ours.loss) == pytest.approx(float(theirs.loss), rel=1e-5)
    wrong = labels.copy()
    wrong[[4, 7, 13]] = CLASSES  # slot 4 is masked
    ours, theirs = both(wrong)
    assert ours.stray == theirs.stray == 7


def test_a_saved_state_has_the_mean_of_the_groups() -> None:
    parallel = _parallel(Grid(4, 2), 2, "2d", True)
    start = parallel.start()
    jax.tree.map(np.testing.assert_array_equal, start, make_state(CONFIG, make_optimizer(CONFIG, SCHEDULE)))
    state = parallel.spread(start)
    rng = np.random.default_rng(0)
    stats = jax.tree.map(
        lambda leaf: jnp.asarray(rng.normal(size=leaf.shape), jnp.float32), state.batch_stats
    )
    assert {leaf.shape[0] for leaf in jax.tree.leaves(stats)} == {4}
    saved = parallel.settle(state._replace(batch_stats=jax.device_put(stats, parallel.replicas.per_group)))
    jax.tree.map(
        lambda mean, each: np.testing.assert_allclose(mean, np.asarray(each).mean(0), rtol=1e-5, atol=1e-6),
        saved.batch_stats,
        stats,
    )
    jax.tree.map(np.testing.assert_array_equal, saved.opt_state, start.opt_state)


def test_evaluation_is_the_same_on_one_device_and_on_two() -> None:
    """T08: the two train on different samples with statistics of their own, so that their averages differ."""
    parallel = _parallel(Grid(2, 1), 1, "psum", False)
    state = parallel.spread(parallel.start())
    step = parallel.compile_train_step(state)
    for images, labels in _batches()[:3]:
        order = np.argsort(labels, kind="stable")  # dark ones go to one device, bright ones to the other
        state, _ = step(state, *jax.device_put((images[order], labels[order]), parallel.replicas.batch))
    means = [np.asarray(leaf) for leaf in jax.tree.leaves(state.batch_stats)]
    assert max(abs(leaf[0] - leaf[1]).max() for leaf in means) > 0.01

    on_two = parallel.for_eval(state)
    evaluate_on_two = parallel.compile_eval_step(on_two)
    on_one = jax.device_get(parallel.settle(state))  # as a checkpoint has it
    evaluate_on_one = jax.jit(make_eval_step(CONFIG))
    images, labels = _batches()[3]
    for slots in (np.arange(BATCH), np.roll(np.arange(BATCH), 5)):  # whichever device sees which
        mask = slots < 11
        batch = images[slots], labels[slots], mask
        two = evaluate_on_two(on_two, *jax.device_put(batch, parallel.replicas.batch))
        one = evaluate_on_one(on_one, *batch)
        assert (two.correct, two.images) == (one.correct, one.images)
        assert two.images == 11
        assert float(two.loss) == pytest.approx(float(one.loss), rel=1e-6)


def test_what_does_not_fit() -> None:
    with pytest.raises(ConfigError, match="a mesh of 4x4 needs 16 devices, there are 8"):
        Replicas(Grid(4, 4))
    with pytest.raises(ConfigError, match="a sharded update needs gradients that are summed in 1d or 2d"):
        _parallel(Grid(4, 2), 8, "psum", True)
