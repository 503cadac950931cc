"""Accuracy on a whole data set, each record counted exactly once."""

from __future__ import annotations

from dataclasses import dataclass

import jax

from feeder import Client
from feeder.client.jax import prefetch_to_device
from feeder.errors import ServiceError
from feeder.trainer.config import TrainConfig
from feeder.trainer.hosts import total
from feeder.trainer.step import EvalStep, State
from feeder.trainer.watch import check_labels

__all__ = ["EvalResult", "evaluate"]


@dataclass(frozen=True)
class EvalResult:
    """One pass over a data set.

    Attributes:
        images: that were counted, each once.
        bad: that could not be decoded, and don't count.
        accuracy: share of `images` whose largest logit is the label's.
        loss: mean over `images`, without label smoothing.
    """

    images: int
    bad: int
    accuracy: float
    loss: float

    def __str__(self) -> str:
        bad = f", {self.bad:,} bad ones left out" if self.bad else ""
        return f"{self.accuracy:.1%} of {self.images:,} images right, loss {self.loss:.3f}{bad}"


def evaluate(
    client: Client,
    dataset: str,
    config: TrainConfig,
    eval_step: EvalStep,
    state: State,
    sharding: jax.sharding.Sharding,
) -> EvalResult:
    """Runs over a data set once: centre crops, the last batch filled up with masked slots. Each process takes
    its part of the records; all get the same result.

    Args:
        client: of the workers.
        dataset: as they name it.
        config: of the run; batch_size is that of all processes together.
        eval_step: sums over all devices.
        state: to evaluate.
        sharding: of a batch.

    Raises:
        ConfigError: a label is outside [0, classes).
        ServiceError: the number of images is not that of the data set's good records.
        FeederError: whatever else the client raises.
    """
    loss, correct, count = 0.0, 0, 0
    with client.stream(
        dataset,
        batch_size=config.batch_size // jax.process_count(),
        consumer_index=jax.process_index(),
        consumer_count=jax.process_count(),
        image_size=config.image_size,
        output=config.pixels,
        augment="eval",
        sampler=config.sampler,
        epochs=1,
    ) as stream:
        position = stream.position
        for batch in prefetch_to_device(stream, sharding):
            sums = jax.device_get(eval_step(state, batch.images, batch.labels, batch.mask))
            check_labels(int(sums.stray), batch.labels, config.classes, position)
            loss += float(sums.loss)
            correct += int(sums.correct)
            count += int(sums.images)
            position = batch.position
        booked = stream.ledger().totals
    expected, masked = total(booked.expected, booked.masked)
    if count != expected - masked or not count:
        raise ServiceError(
            f"evaluation on {dataset!r} counted {count} images, the accounts say {expected} less {masked} "
            f"that are masked; of this process: {booked}"
        )
    return EvalResult(images=count, bad=masked, accuracy=correct / count, loss=loss / count)
