"""What a run would be, worked out without data, workers or an accelerator."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from feeder.errors import ConfigError
from feeder.figures import size
from feeder.trainer.config import TrainConfig
from feeder.trainer.optimizer import make_optimizer, make_schedule, plain_tensors
from feeder.trainer.step import make_model, make_state

__all__ = ["Memory", "Plan", "chart", "make_plan"]

CHART_COLUMNS, CHART_ROWS = 64, 10
CHANNELS = 3


@dataclass(frozen=True)
class Memory:
    """Bytes on one device.

    Attributes:
        weights: parameters and running averages.
        gradients: of all parameters.
        optimizer: its state.
        inputs: three batches of uint8 images: one in use, two on their way.
        activations: what the backward pass needs of the forward pass, as JAX's trace has it, unfused: XLA
            fuses and computes some of it anew, so this is an upper bound of the largest part.
    """

    weights: int
    gradients: int
    optimizer: int
    inputs: int
    activations: int

    @property
    def total(self) -> int:
        """All of it."""
        return sum(dataclasses.astuple(self))


@dataclass(frozen=True)
class Plan:
    """A run in numbers.

    Attributes:
        records: of the training set.
        steps_per_epoch, steps, warmup: in steps.
        parameters: of the model.
        plain: tensors without weight decay and trust ratio, see feeder.trainer.optimizer.plain_tensors.
        rates: (step, learning rate) at the first two steps, around the end of the warm-up, and at the end.
        chart: the rate over the run, as lines of text.
        devices: that share the batch.
        memory: of each of them.
        input_bytes: of one batch as it is sent, uint8.
        step_s, images_per_s, input_bytes_per_s, run_s: for the step time that was asked for: what the workers
            must deliver, and how long the steps take in all. None where none was given.
    """

    records: int
    steps_per_epoch: int
    steps: int
    warmup: int
    parameters: int
    plain: dict[str, int]
    rates: list[tuple[int, float]]
    chart: list[str]
    devices: int
    memory: Memory
    input_bytes: int
    step_s: float | None
    images_per_s: float | None
    input_bytes_per_s: float | None
    run_s: float | None

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON-safe values."""
        return {**dataclasses.asdict(self), "memory_total": self.memory.total}

    def lines(self, config: TrainConfig) -> list[str]:
        """For a person to read."""
        form = f", {config.lars_form} form, eta {config.trust:g}, epsilon {config.trust_epsilon:g}"
        rule = "LARS" + form if config.optimizer == "lars" else "SGD"
        if config.nesterov:
            rule += " with Nesterov"
        plain = ", ".join(f"{count} {name}" for name, count in self.plain.items())
        memory = self.memory
        rows = [
            ("model", f"{_model(config)}, {self.parameters:,} parameters, {config.compute_dtype}"),
            ("batch", f"{config.batch_size:,} images of {config.image_size} pixels"),
            (
                "length",
                f"{self.steps:,} steps, {self.steps / self.steps_per_epoch:.1f} epochs of "
                f"{self.steps_per_epoch:,} steps ({self.records:,} images); {self.warmup:,} steps warm up",
            ),
            ("optimiser", f"{rule}, momentum {config.momentum:g}"),
            ("weight decay", f"{config.weight_decay:g}, in the {config.weight_decay_in}"),
            ("without decay", f"and at the plain rate: {plain}" if plain else "none"),
            ("label smoothing", f"{config.label_smoothing:g}"),
            ("rate", "  ".join(f"step {step:,}: {rate:.6g}" for step, rate in self.rates)),
            (
                "memory",
                f"{size(memory.total)} on each of {self.devices:,} devices, at most: weights "
                f"{size(memory.weights)}, gradients {size(memory.gradients)}, optimiser "
                f"{size(memory.optimizer)}, input {size(memory.inputs)}, activations "
                f"{size(memory.activations)}",
            ),
        ]
        if self.step_s is None:
            rows.append(("input", f"{size(self.input_bytes)} a step; --step-time S says how fast"))
        else:
            rows.append(
                (
                    "input",
                    f"{self.images_per_s:,.0f} images/s, {size(self.input_bytes_per_s or 0)}/s "
                    f"for steps of {self.step_s:g} s; {_duration(self.run_s or 0)} of steps in all",
                )
            )
        width = max(len(name) for name, _ in rows)
        return [f"{name:<{width}}  {value}" for name, value in rows] + ["", *self.chart]


def make_plan(config: TrainConfig, records: int, *, devices: int = 1, step_s: float | None = None) -> Plan:
    """Works a run out by shapes alone: nothing is compiled or allocated.

    Args:
        config: the run.
        records: of the training set, at least one batch.
        devices: that share each batch equally.
        step_s: time of a step, seconds.

    Raises:
        ConfigError: fewer records than a batch, a batch that the devices cannot share, or a step time that
            is not above 0.
    """
    if records < config.batch_size:
        raise ConfigError(f"{records:,} records do not fill one batch of {config.batch_size:,}")
    if devices < 1 or config.batch_size % devices:
        raise ConfigError(f"a batch of {config.batch_size:,} cannot be shared by {devices} devices equally")
    if step_s is not None and not 0 < step_s < math.inf:
        raise ConfigError(f"the time of a step must be more than 0 s, got {step_s}")
    steps_per_epoch = records // config.batch_size
    steps, warmup = config.lengths(steps_per_epoch)
    schedule = make_schedule(config, steps, warmup)
    state = jax.eval_shape(partial(make_state, config, make_optimizer(config, schedule)))
    around = {0, 1, warmup - 1, warmup, warmup + 1, steps - 1}
    shown = np.array(sorted(step for step in around if 0 <= step < steps))
    input_bytes = config.batch_size * math.prod(config.input_shape)
    images_per_s = None if step_s is None else config.batch_size / step_s
    return Plan(
        records=records,
        steps_per_epoch=steps_per_epoch,
        steps=steps,
        warmup=warmup,
        parameters=sum(leaf.size for leaf in jax.tree.leaves(state.params)),
        plain=plain_tensors(state.params),
        rates=[(int(step), float(rate)) for step, rate in zip(shown, schedule(shown), strict=True)],
        chart=chart(np.asarray(schedule(np.linspace(0, steps - 1, 4 * CHART_COLUMNS).round()))),
        devices=devices,
        memory=Memory(
            weights=_nbytes((state.params, state.batch_stats)),
            gradients=_nbytes(state.params),
            optimizer=_nbytes(state.opt_state),
            inputs=3 * input_bytes // devices,
            activations=_activations(config, state.params, state.batch_stats)
            * (config.batch_size // devices),
        ),
        input_bytes=input_bytes,
        step_s=step_s,
        images_per_s=images_per_s,
        input_bytes_per_s=None if step_s is None else input_bytes / step_s,
        run_s=None if step_s is None else steps * step_s,
    )


def chart(rates: np.ndarray[Any, Any]) -> list[str]:
    """Rates, evenly spread over a run, as lines of text with the largest at the top; at least 64 of them."""
    highest = float(rates.max()) or 1.0
    columns = [float(part.mean()) for part in np.array_split(rates, CHART_COLUMNS)]
    heights = [round(value / highest * (CHART_ROWS - 1)) for value in columns]
    label = f"{highest:.3g}"
    lines = []
    for row in range(CHART_ROWS - 1, -1, -1):
        name = label if row == CHART_ROWS - 1 else "0" if row == 0 else ""
        marks = "".join("*" if height == row else "." if height > row else " " for height in heights)
        lines.append(f"{name:>{len(label)}} |{marks}".rstrip())
    return lines


def _activations(config: TrainConfig, params: Any, batch_stats: Any) -> int:
    """Bytes an image of what the forward pass leaves for the backward pass: what grows from one image to two,
    which leaves out copies of the weights."""
    model = make_model(config)

    def left(images: int) -> int:
        def forward(params: Any, batch_stats: Any, inputs: jax.Array) -> Any:
            def apply(params: Any) -> Any:
                return model.apply(
                    {"params": params, "batch_stats": batch_stats},
                    inputs,
                    train=True,
                    mutable=["batch_stats"],
                    rngs={"dropout": jax.random.key(0)},
                )

            return jax.vjp(apply, params)[1]

        shape = (images, config.image_size, config.image_size, CHANNELS)
        inputs = jax.eval_shape(partial(jnp.zeros, shape, jnp.dtype(config.compute_dtype)))
        return _nbytes(jax.eval_shape(forward, params, batch_stats, inputs))

    return left(2) - left(1)


def _nbytes(tree: Any) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _model(config: TrainConfig) -> str:
    if config.arch == "alexnet_bn":
        return "AlexNet-BN"
    return f"ResNet-{config.depth}" + (", first layer on 2x2 blocks" if config.space_to_depth else "")


def _duration(seconds: float) -> str:
    hours, rest = divmod(round(seconds), 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if seconds >= 60 else f"{seconds:.1f} s"
