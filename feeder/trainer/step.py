"""The train and eval steps of a replica: pure functions of a state and a batch as it came from the worker.

Images go to the device as uint8; they are made RGB there if they are not, and normalised, inside the compiled
step.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import optax

from feeder.client.jax import normalize, yuv420_to_rgb
from feeder.trainer.alexnet import AlexNetBN
from feeder.trainer.config import TrainConfig
from feeder.trainer.model import Norm, NormMaker, ResNet
from feeder.trainer.optimizer import decay_loss

__all__ = [
    "EvalStep",
    "EvalSums",
    "Replica",
    "State",
    "StepResult",
    "TrainStep",
    "make_eval_step",
    "make_model",
    "make_state",
    "make_train_step",
]


class State(NamedTuple):
    """Everything that training changes, and a checkpoint holds.

    Attributes:
        step: int32 [], steps done.
        params: float32 parameters of the model.
        batch_stats: float32 running averages of batch normalisation.
        opt_state: of the optimiser, float32 but for its counters.
    """

    step: jax.Array
    params: Any
    batch_stats: Any
    opt_state: optax.OptState


class StepResult(NamedTuple):
    """Of one train step; stays on the device until it is read.

    Attributes:
        loss: float32 [], mean over the batch, label smoothing included, weight decay left out.
        accuracy: float32 [], share of the batch whose largest logit is the label's.
        grad_norm: float32 [], of all gradients together.
        weight_norm: float32 [], of all parameters together, after the step.
        stray: int32 [], first slot whose label is outside [0, classes); -1: none.
    """

    loss: jax.Array
    accuracy: jax.Array
    grad_norm: jax.Array
    weight_norm: jax.Array
    stray: jax.Array


class EvalSums(NamedTuple):
    """Of one evaluation batch; only slots with mask True count.

    Attributes:
        loss: float32 [], sum of losses, without label smoothing.
        correct: int32 [].
        images: int32 [], slots that count.
        stray: as in StepResult.
    """

    loss: jax.Array
    correct: jax.Array
    images: jax.Array
    stray: jax.Array


TrainStep: TypeAlias = Callable[[State, jax.Array, jax.Array], tuple[State, StepResult]]
EvalStep: TypeAlias = Callable[[State, jax.Array, jax.Array, jax.Array], EvalSums]


class Replica:
    """What a step does with the other replicas: nothing, there are none. feeder.trainer.parallel has the one
    of many.

    Attributes:
        norm_axes: mesh axes that batch-norm statistics are shared along; None: they are the replica's own.
    """

    norm_axes: tuple[str, ...] | None = None

    def own(self, params: Any) -> Any:
        """The parameters as ones that each replica has gradients of its own for."""
        return params

    def key(self, key: jax.Array) -> jax.Array:
        """A random key of its own for each replica."""
        return key

    def update(
        self, optimizer: optax.GradientTransformation, grads: Any, opt_state: optax.OptState, params: Any
    ) -> tuple[Any, optax.OptState, jax.Array]:
        """Parameters and optimiser state after a step along the mean of all replicas' gradients, and the norm
        of that, float32 []."""
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, _norm(grads)

    def total(self, value: jax.Array) -> jax.Array:
        """The sum over all replicas."""
        return value

    def mean(self, value: jax.Array) -> jax.Array:
        """The mean over all replicas."""
        return value

    def first(self, slot: jax.Array, slots: int) -> jax.Array:
        """The first slot of the whole batch that is not -1, of one slot for each replica; or -1.

        Args:
            slot: int32 [], in [-1, slots).
            slots: of each replica.
        """
        return slot


ALONE = Replica()


def make_model(config: TrainConfig, norm: NormMaker = Norm) -> ResNet | AlexNetBN:
    """The model of a configuration.

    Args:
        config: arch and the rest.
        norm: makes each batch normalisation, see feeder.trainer.model.
    """
    if config.arch == "alexnet_bn":
        return AlexNetBN(config.classes, config.width, config.compute_dtype, norm)
    return ResNet(
        depth=config.depth,
        classes=config.classes,
        width=config.width,
        small_stem=config.small_stem,
        space_to_depth=config.space_to_depth,
        compute_dtype=config.compute_dtype,
        norm=norm,
    )


def make_state(
    config: TrainConfig,
    optimizer: optax.GradientTransformation,
    sharding: jax.sharding.Sharding | None = None,
) -> State:
    """A fresh state, on JAX's default device or as `sharding` says; the same seed gives the same weights."""
    model = make_model(config)

    def init() -> State:
        image = jnp.zeros((1, config.image_size, config.image_size, 3))
        variables = model.init(_key(config), image, train=False)
        params = variables["params"]
        return State(jnp.int32(0), params, variables["batch_stats"], optimizer.init(params))

    state: State = jax.jit(init, out_shardings=sharding)()
    return state


def make_train_step(
    config: TrainConfig, optimizer: optax.GradientTransformation, replica: Replica = ALONE
) -> TrainStep:
    """The function (state, images uint8 [B, *config.input_shape], labels int32 [B]) to (state, StepResult) of
    a replica, with its part of the batch; the result is that of all replicas together."""
    model = make_model(config, partial(Norm, axes=replica.norm_axes))

    def train_step(state: State, images: jax.Array, labels: jax.Array) -> tuple[State, StepResult]:
        inputs = _inputs(config, images)
        targets = optax.smooth_labels(jax.nn.one_hot(labels, config.classes), config.label_smoothing)

        def loss_of(params: Any) -> tuple[jax.Array, tuple[jax.Array, jax.Array, Any]]:
            logits, updated = model.apply(
                {"params": params, "batch_stats": state.batch_stats},
                inputs,
                train=True,
                mutable=["batch_stats"],
                rngs={"dropout": replica.key(jax.random.fold_in(_key(config), state.step))},
            )
            loss = jnp.mean(optax.softmax_cross_entropy(logits, targets))
            return loss + decay_loss(config, params), (loss, logits, updated["batch_stats"])

        (_, (loss, logits, batch_stats)), grads = jax.value_and_grad(loss_of, has_aux=True)(
            replica.own(state.params)
        )
        params, opt_state, grad_norm = replica.update(optimizer, grads, state.opt_state, state.params)
        accuracy = jnp.mean(jnp.argmax(logits, axis=-1) == labels, dtype=jnp.float32)
        stray = _stray(labels, jnp.ones_like(labels, bool), config.classes)
        result = StepResult(
            loss=replica.mean(loss),
            accuracy=replica.mean(accuracy),
            grad_norm=grad_norm,
            weight_norm=_norm(params),
            stray=replica.first(stray, labels.shape[0]),
        )
        return State(state.step + 1, params, batch_stats, opt_state), result

    return train_step


def make_eval_step(config: TrainConfig, replica: Replica = ALONE) -> EvalStep:
    """The function (state, images uint8 [B, *config.input_shape], labels int32 [B], mask bool [B]) to
    EvalSums of a replica, with its part of the batch; the sums are over all replicas."""
    model = make_model(config)

    def eval_step(state: State, images: jax.Array, labels: jax.Array, mask: jax.Array) -> EvalSums:
        inputs = _inputs(config, images)
        variables = {"params": state.params, "batch_stats": state.batch_stats}
        logits: Any = model.apply(variables, inputs, train=False)
        losses = optax.softmax_cross_entropy(logits, jax.nn.one_hot(labels, config.classes))
        correct = (jnp.argmax(logits, axis=-1) == labels) & mask
        return EvalSums(
            loss=replica.total(jnp.sum(jnp.where(mask, losses, 0.0))),
            correct=replica.total(jnp.sum(correct, dtype=jnp.int32)),
            images=replica.total(jnp.sum(mask, dtype=jnp.int32)),
            stray=replica.first(_stray(labels, mask, config.classes), labels.shape[0]),
        )

    return eval_step


def _inputs(config: TrainConfig, images: jax.Array) -> jax.Array:
    """What the model takes, [B, S, S, 3] in its compute type, of images as they come."""
    if config.pixels == "yuv420":
        images = yuv420_to_rgb(images)
    return normalize(images, jnp.dtype(config.compute_dtype))


def _key(config: TrainConfig) -> jax.Array:
    # "rbg" keys compile several times faster than JAX's default, and weights and dropout need no more.
    return jax.random.key(config.seed, impl="rbg")


def _norm(tree: Any) -> jax.Array:
    """float32 [], Euclidean, over all leaves together."""
    return jnp.sqrt(jnp.sum(jnp.stack([jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(tree)])))


def _stray(labels: jax.Array, mask: jax.Array, classes: int) -> jax.Array:
    """First slot with mask and a label outside [0, classes), or -1: its one-hot row would be all zeros, and
    its loss 0."""
    outside = mask & ((labels < 0) | (labels >= classes))
    return jnp.where(outside.any(), jnp.argmax(outside), -1).astype(jnp.int32)
