"""Reads the results of steps while the next one is on its way, and stops a run that has gone wrong."""

from __future__ import annotations

import math
import time
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import NamedTuple

import jax
import numpy as np

from feeder import FeederError, Position
from feeder.errors import ConfigError
from feeder.trainer.step import StepResult

__all__ = ["Finished", "NonFiniteLoss", "Watch", "check_labels"]


class NonFiniteLoss(FeederError):
    """The loss, the gradient or the weights became infinite or NaN: training cannot go on."""


class Finished(NamedTuple):
    """A step that the device is done with.

    Attributes:
        step: steps done with it, from 1.
        loss, accuracy: of its batch.
        grad_norm, weight_norm: as in feeder.trainer.step.StepResult.
        at: when the device was done, in seconds of time.monotonic().
    """

    step: int
    loss: float
    accuracy: float
    grad_norm: float
    weight_norm: float
    at: float


class Watch:
    """Follows one step at a time on a thread of its own, which also sees when the device was done with it;
    the loop itself would see that only when it comes round. A context manager."""

    def __init__(self, classes: int) -> None:
        self._classes = classes
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="feeder-train")
        self._running: Future[Finished] | None = None

    def follow(self, step: int, result: StepResult, labels: jax.Array, position: Position) -> None:
        """Begins to follow a step; the one before must have been settled.

        Args:
            step: its number, from 1.
            result: as the train step gave it.
            labels: of its batch.
            position: of its batch in the data.
        """
        self._running = self._thread.submit(self._read, step, result, labels, position)

    def settle(self) -> Finished | None:
        """Waits until the followed step is done; None where none is followed.

        Raises:
            NonFiniteLoss: its loss, or a norm, is infinite or NaN.
            ConfigError: a label of its batch is outside [0, classes).
        """
        running, self._running = self._running, None
        return None if running is None else running.result()

    def _read(self, step: int, result: StepResult, labels: jax.Array, position: Position) -> Finished:
        loss, accuracy, grad_norm, weight_norm, stray = jax.device_get(result)
        at = time.monotonic()
        check_labels(int(stray), labels, self._classes, position)
        # A step can leave weights behind that are not finite while its own loss, taken before, still is: what
        # passes here is fit to be saved.
        for what, value in (("loss", loss), ("gradient", grad_norm), ("weights", weight_norm)):
            if not math.isfinite(value):
                raise NonFiniteLoss(
                    f"step {step}: the {what} became {value} (batch at {_place(position)}): lower the "
                    f"learning rate or warm up longer, and go on from the last checkpoint"
                )
        return Finished(step, float(loss), float(accuracy), float(grad_norm), float(weight_norm), at)

    def __enter__(self) -> Watch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)


def check_labels(stray: int, labels: jax.Array, classes: int, position: Position) -> None:
    """Raises where a step found a stray label.

    Args:
        stray: slot, as in StepResult; -1: none.
        labels: of the batch.
        classes: labels must be in [0, classes).
        position: of the batch in the data.

    Raises:
        ConfigError: names data set, place, slot and label.
    """
    if stray >= 0:
        raise ConfigError(
            f"data set {position.spec.dataset!r}, {_place(position)}, slot {stray}: label "
            f"{_label(labels, stray)} is outside [0, {classes}): set the number of classes (--classes), "
            f"or start the workers with the label base of the data (--label-base)"
        )


def _label(labels: jax.Array, slot: int) -> str:
    """The label in a slot, where this process has it."""
    for shard in labels.addressable_shards:
        (slots,) = shard.index
        begin, end, _ = slots.indices(labels.shape[0])
        if begin <= slot < end:
            return str(np.asarray(shard.data)[slot - begin])
    return "(of another host)"


def _place(position: Position) -> str:
    return f"epoch {position.epoch}, {position.taken} samples into each lane"
