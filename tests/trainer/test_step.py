from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from feeder.client.jax import normalize
from feeder.client.pixels import yuv420_to_rgb
from feeder.errors import ConfigError
from feeder.order import Position
from feeder.spec import StreamSpec
from feeder.trainer.config import TrainConfig
from feeder.trainer.optimizer import make_optimizer
from feeder.trainer.step import State, StepResult, make_eval_step, make_model, make_state, make_train_step
from feeder.trainer.watch import NonFiniteLoss, Watch

RATE = 0.1
POSITION = Position(2, 12, StreamSpec("train", 20, 20), 180, "f1")


def _optimizer(config: TrainConfig) -> optax.GradientTransformation:
    return make_optimizer(config, lambda step: RATE)


def _batch(config: TrainConfig, count: int | None = None) -> tuple[jax.Array, jax.Array]:
    rng = np.random.default_rng(0)
    count = count or config.batch_size
    images = rng.integers(0, 256, (count, config.image_size, config.image_size, 3), np.uint8)
    return jnp.asarray(images), jnp.asarray(rng.integers(0, config.classes, count), jnp.int32)


def test_an_untrained_net_guesses_and_a_trained_one_has_learnt(config: TrainConfig) -> None:
    optimizer = _optimizer(config)
    state = make_state(config, optimizer)
    step = jax.jit(make_train_step(config, optimizer))
    images, labels = _batch(config)
    losses = []
    for _ in range(30):
        state, result = step(state, images, labels)
        losses.append(float(result.loss))
    assert losses[0] == pytest.approx(math.log(config.classes), abs=0.05)
    assert losses[-1] < 0.1
    assert result.accuracy == 1.0
    assert state.step == 30
    assert result.stray == -1


def test_yuv420_is_made_rgb_inside_the_step(config: TrainConfig) -> None:
    half = dataclasses.replace(config, pixels="yuv420")
    state = make_state(config, _optimizer(config))
    images, labels = _batch(config)
    planes = np.random.default_rng(1).integers(0, 256, (len(labels), *half.input_shape), np.uint8)
    assert 2 * planes.nbytes == images.nbytes
    # The one difference is that RGB was rounded on its way.
    sums = [
        jax.jit(make_eval_step(one))(state, inputs, labels, jnp.ones(len(labels), bool))
        for one, inputs in ((config, yuv420_to_rgb(planes)), (half, planes))
    ]
    assert float(sums[1].loss) == pytest.approx(float(sums[0].loss), rel=1e-3)
    with pytest.raises(ConfigError, match="even image size, got 33"):
        dataclasses.replace(half, image_size=33)


def test_same_seed_same_weights(config: TrainConfig) -> None:
    optimizer = _optimizer(config)
    first, second = make_state(config, optimizer), make_state(config, optimizer)
    other = make_state(dataclasses.replace(config, seed=1), optimizer)
    kernel = first.params["stem"]["conv"]["kernel"]
    assert (kernel == second.params["stem"]["conv"]["kernel"]).all()
    assert not (kernel == other.params["stem"]["conv"]["kernel"]).any()


def _logits(config: TrainConfig, state: State, images: jax.Array, train: bool) -> np.ndarray:
    def forward() -> jax.Array:
        variables = {"params": state.params, "batch_stats": state.batch_stats}
        inputs = normalize(images, jnp.float32)
        return make_model(config).apply(variables, inputs, train=train, mutable=["batch_stats"])[0]

    return np.asarray(jax.jit(forward)(), np.float64)


@pytest.mark.parametrize("place", ["optimizer", "loss"])
def test_the_loss_is_smoothed_cross_entropy_and_weights_decay_once(config: TrainConfig, place: str) -> None:
    config = dataclasses.replace(config, weight_decay_in=place, nesterov=False)
    config = dataclasses.replace(config, label_smoothing=0.1, weight_decay=0.5)
    optimizer = _optimizer(config)
    state = make_state(config, optimizer)
    # Weights far from their start, so that logits differ and weights are large.
    state = state._replace(params=jax.tree.map(lambda leaf: leaf + 0.1, state.params))
    images, labels = _batch(config)
    logits = _logits(config, state, images, train=True)
    log_shares = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    targets = np.eye(config.classes)[labels] * 0.9 + 0.1 / config.classes
    after, result = jax.jit(make_train_step(config, optimizer))(state, images, labels)
    assert float(result.loss) == pytest.approx(-(targets * log_shares).sum(axis=1).mean(), rel=1e-4)
    assert float(result.accuracy) == pytest.approx((logits.argmax(axis=1) == labels).mean())
    weights = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(after.params)])
    assert float(result.weight_norm) == pytest.approx(np.linalg.norm(weights), rel=1e-5)
    # The stem's output is normalised, so its gradient is at right angles to it: what is left along it is
    # decay.
    before, now = (np.asarray(s.params["stem"]["conv"]["kernel"], np.float64) for s in (state, after))
    shrunk = 1 - (now * before).sum() / (before**2).sum()
    assert shrunk == pytest.approx(RATE * config.weight_decay, rel=1e-2)


def _eval(
    config: TrainConfig, state: State, labels: list[int], mask: list[bool]
) -> tuple[float, int, int, int]:
    images, _ = _batch(config, len(labels))
    sums = jax.jit(make_eval_step(config))(state, images, jnp.asarray(labels, jnp.int32), jnp.asarray(mask))
    return float(sums.loss), int(sums.correct), int(sums.images), int(sums.stray)


def test_evaluation_counts_what_the_mask_shows(config: TrainConfig) -> None:
    state = make_state(config, _optimizer(config))
    images, _ = _batch(config, 4)
    logits = _logits(config, state, images, train=False)
    labels = logits.argmax(axis=1)
    labels[3] = (labels[3] + 1) % config.classes
    loss, correct, count, stray = _eval(config, state, labels.tolist(), [True, True, False, True])
    assert (correct, count, stray) == (2, 3, -1)
    losses = np.log(np.exp(logits).sum(axis=1)) - logits[range(4), labels]  # not smoothed
    assert loss == pytest.approx(losses[[0, 1, 3]].sum(), rel=1e-4)


def test_stray_labels_are_found(config: TrainConfig) -> None:
    state = make_state(config, _optimizer(config))
    assert _eval(config, state, [0, 9, 10, 10], [True] * 4)[3] == 2
    assert _eval(config, state, [0, 9, 1, -1], [True] * 4)[3] == 3
    assert _eval(config, state, [0, 9, 1, -1], [True, True, True, False])[3] == -1  # masked: no label


def _result(
    loss: float = 1.0, grad_norm: float = 2.0, weight_norm: float = 3.0, stray: int = -1
) -> StepResult:
    return StepResult(*map(jnp.float32, (loss, 0.5, grad_norm, weight_norm)), jnp.int32(stray))


def test_watch_gives_results_in_turn() -> None:
    with Watch(classes=10) as watch:
        assert watch.settle() is None
        watch.follow(7, _result(1.5), jnp.zeros(20, jnp.int32), POSITION)
        finished = watch.settle()
        assert finished is not None
        assert finished[:-1] == (7, 1.5, 0.5, 2.0, 3.0)
        assert watch.settle() is None


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ({"loss": math.nan}, "step 8: the loss became nan .*epoch 2, 12 samples"),
        ({"loss": math.inf}, "step 8: the loss became inf"),
        ({"grad_norm": math.nan}, "step 8: the gradient became nan"),
        ({"weight_norm": math.inf}, "step 8: the weights became inf"),
    ],
)
def test_what_is_not_finite_names_the_step(result: dict[str, float], message: str) -> None:
    with Watch(classes=10) as watch:
        watch.follow(8, _result(**result), jnp.zeros(20, jnp.int32), POSITION)
        with pytest.raises(NonFiniteLoss, match=message):
            watch.settle()


def test_a_stray_label_names_its_place() -> None:
    with Watch(classes=10) as watch:
        labels = jnp.arange(20, dtype=jnp.int32)
        watch.follow(8, _result(math.nan, stray=12), labels, POSITION)
        with pytest.raises(
            ConfigError,
            match=r"'train', epoch 2, 12 samples .*slot 12: label 12 is outside \[0, 10\).*--classes",
        ):
            watch.settle()
