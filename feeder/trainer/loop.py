"""The training loop, as a client of data workers."""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import jax
import numpy as np

import feeder
from feeder.client.jax import prefetch_to_device
from feeder.errors import ConfigError
from feeder.trainer.checkpoint import Checkpoints
from feeder.trainer.chrono import Chrono, Phase
from feeder.trainer.config import TrainConfig
from feeder.trainer.evaluate import EvalResult, evaluate
from feeder.trainer.gradients import Scheme
from feeder.trainer.grid import Grid
from feeder.trainer.optimizer import make_schedule, plain_tensors
from feeder.trainer.parallel import Parallel
from feeder.trainer.profiler import Profiler
from feeder.trainer.record import Record
from feeder.trainer.replicas import Replicas
from feeder.trainer.watch import Finished, NonFiniteLoss, Watch

__all__ = ["Listener", "TrainResult", "train"]

LAST_STEPS = 20
"""Steps that the final training loss and accuracy are means over."""

Listener: TypeAlias = Callable[[Finished, int, float], None]
"""Called after each step with it, the number of the last step of the run, and the seconds that the run has
waited for input so far."""


@dataclass(frozen=True)
class TrainResult:
    """What a run came to.

    Attributes:
        steps: done in all, those before a resume included.
        planned_steps: of the whole run; more than `steps` where the time was up before.
        resumed_from: the step that this run went on from; None: from the beginning.
        images: that this run trained on.
        epochs: passes over the training set in all.
        records: size of the training set.
        first_loss: of this run's first step.
        loss, accuracy: on training batches, mean over the last 20 steps of this run.
        eval: on the evaluation set after the last step; None where there is no such set.
        images_per_s: of training, over the time that it ran or waited for input.
        input_wait: share of that time in which the device waited for input, in [0, 1].
        transfer_overlap: share of steps whose images were on the device by the time it was done with the step
            before, in [0, 1]: their transfer cost nothing. It is for accelerators: on a CPU copies and steps
            take turns on the same threads. None where no step followed another.
        spent_s: seconds by phase, see feeder.trainer.chrono.
        workers: images that came from each worker, by address.
    """

    steps: int
    planned_steps: int
    resumed_from: int | None
    images: int
    epochs: float
    records: int
    first_loss: float
    loss: float
    accuracy: float
    eval: EvalResult | None
    images_per_s: float
    input_wait: float
    transfer_overlap: float | None
    spent_s: dict[Phase, float]
    workers: dict[str, int]

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON-safe values."""
        return dataclasses.asdict(self)


def train(
    config: TrainConfig,
    target: str,
    dataset: str,
    eval_dataset: str | None = None,
    *,
    credentials: feeder.Credentials | None = None,
    mesh: Grid | None = None,
    gradient_sum: Scheme | None = None,
    shard_update: bool = False,
    checkpoint_dir: Path | None = None,
    resume: bool = False,
    max_seconds: float | None = None,
    log_dir: Path | None = None,
    profile_dir: Path | None = None,
    listener: Listener = lambda finished, steps, waited_s: None,
    note: Callable[[str], None] = lambda text: None,
) -> TrainResult:
    """Trains on data that workers serve, on one device or on a mesh of them.

    Where JAX runs in several processes (`jax.distributed`), all call this with the same arguments. Each takes
    its part of every batch from the workers, as consumer number jax.process_index().

    Args:
        config: the run.
        target: of the workers, see feeder.connect.
        credentials: what they are shown, see feeder.connect.
        dataset, eval_dataset: names that the workers serve; None: no evaluation.
        mesh: the devices; None: one, or with several processes all in a line.
        gradient_sum: how gradients are summed over them; None: "2d" on a mesh of two dimensions, on a line
            "psum", or "1d" for a sharded update.
        shard_update: see feeder.trainer.sharded.
        checkpoint_dir: folder for checkpoints, the same one for all processes; None: none are made.
        resume: go on from the newest checkpoint in it.
        max_seconds: stop early once this run has trained for so long.
        log_dir: folder for what feeder.trainer.record writes down, in process 0; None: nothing.
        profile_dir: folder for a trace of some steps, see feeder.trainer.profiler; None: none.
        listener: hears of each step.
        note: takes lines for a person to read.

    Raises:
        ConfigError: wrong settings, labels outside [0, classes), or a run that is complete already.
        NonFiniteLoss: names the step, and the last checkpoint; no checkpoint has weights that are not finite.
        FeederError: whatever else the client raises.
    """
    chrono = Chrono()
    processes = jax.process_count()
    if max_seconds is not None and processes > 1:
        raise ConfigError("several processes cannot stop by the clock: give a number of steps")
    grid = mesh or Grid(jax.device_count() if processes > 1 else 1)
    group = grid.group(config.batch_size, config.norm_span)
    # A run that resumes on another mesh has the same statistics, or is refused.
    config = dataclasses.replace(config, norm_span=group * config.batch_size // grid.replicas)
    replicas = Replicas(grid, group)
    with ExitStack() as stack:
        # Set up: workers, where in the data to begin, and from the size of the data the schedule.
        checkpoints, start = _open_checkpoints(stack, checkpoint_dir, config, resume)
        client = stack.enter_context(feeder.connect(target, credentials=credentials))
        stream = stack.enter_context(
            client.stream(
                dataset,
                batch_size=config.batch_size // processes,
                consumer_index=jax.process_index(),
                consumer_count=processes,
                seed=config.seed,
                image_size=config.image_size,
                output=config.pixels,
                augment=config.augment,
                sampler=config.sampler,
                shuffle=True,
                remainder="drop",
                start=start,
            )
        )
        position = stream.position
        steps, warmup = config.lengths(position.records // config.batch_size)
        schedule = make_schedule(config, steps, warmup)
        scheme = gradient_sum or _default_sum(grid, shard_update)
        parallel = Parallel(config, schedule, replicas, scheme, shard_update)
        saved = parallel.start()
        if checkpoints is not None and start is not None:
            saved = checkpoints.state(saved)
        first_step = step = int(saved.step)
        if step >= steps:
            raise ConfigError(f"{checkpoint_dir}: the run is complete, step {step} of {steps} is saved there")

        # The stream connects with the first batch, and fills its queue while the step is compiled.
        batches = prefetch_to_device(stream, replicas.batch)
        batches = itertools.chain([next(batches)], batches)
        chrono.enter("compile")
        state = parallel.spread(saved)
        train_step = parallel.compile_train_step(state)
        eval_step = None if eval_dataset is None else parallel.compile_eval_step(parallel.for_eval(state))
        began = chrono.enter("step")
        note(
            f"steps {step + 1:,} to {steps:,} on {position.records:,} images of {dataset!r}; learning rate "
            f"{config.peak_rate:g} after {warmup:,} steps, weight decay {config.weight_decay:g} on kernels"
        )
        note(_optimizer_note(config, state.params))
        if grid.replicas > 1:
            note(
                f"{grid} replicas in {processes} process{'es' * (processes != 1)}, gradients by {scheme}, "
                f"batch-norm statistics of {config.norm_span:,} samples"
            )
        record = None
        if log_dir is not None and jax.process_index() == 0:
            record = stack.enter_context(Record(log_dir, config, schedule, step, steps))
            note(
                f"metrics in {log_dir}"
                + ("" if record.tensorboard else "; TensorBoard: install tensorboardX")
            )
        profiler = stack.enter_context(Profiler(profile_dir))

        # Train. While the device runs a step, the loop fetches the batch of the next one.
        watch = stack.enter_context(Watch(config.classes))
        recent: deque[Finished] = deque(maxlen=LAST_STEPS)
        first_loss = math.nan
        followed = there = 0
        tested: EvalResult | None = None

        def settle(asked: float, arrived: float) -> bool:
            """Waits for the step before; whether there was one."""
            nonlocal first_loss
            try:
                finished = watch.settle()
            except NonFiniteLoss as error:
                saved = None if checkpoints is None else checkpoints.latest
                kept = "none was kept" if saved is None else f"step {saved} is in {checkpoint_dir}"
                raise NonFiniteLoss(f"{error} ({kept})") from None
            if finished is None:
                return False
            # Waiting for input while the device was busy cost nothing: it is step time.
            chrono.move("input", "step", min(max(finished.at - asked, 0.0), arrived - asked))
            if not recent:
                first_loss = finished.loss
            recent.append(finished)
            spent_s = chrono.spent_s()
            listener(finished, steps, spent_s["input"])
            if record is not None:
                record.step(finished, spent_s)
            return True

        last = False
        while not last:
            asked = chrono.enter("input")
            batch = next(batches)
            arrived = chrono.enter("step")
            with profiler.step(step + 1):
                state, result = train_step(state, batch.images, batch.labels)
            if settle(asked, arrived):
                followed += 1
                there += batch.images.is_ready()  # type: ignore[attr-defined]
            step += 1
            watch.follow(step, result, batch.labels, position)
            position = batch.position

            last = step == steps or (max_seconds is not None and time.monotonic() - began >= max_seconds)
            save = last or step % config.checkpoint_every == 0
            test = last or (config.eval_every is not None and step % config.eval_every == 0)
            if save or test:
                settle(arrived, arrived)
            if save and checkpoints is not None:
                chrono.enter("checkpoint")
                saved = parallel.settle(state)
                checkpoints.save(saved, position)
                state = parallel.spread(saved)  # as a run that resumes from it
            if test and eval_dataset is not None and eval_step is not None:
                chrono.enter("eval")
                tested = evaluate(
                    client, eval_dataset, config, eval_step, parallel.for_eval(state), replicas.batch
                )
                note(f"step {step:,}, {eval_dataset!r}: {tested}")
                if record is not None:
                    record.evaluated(step, tested)

        spent_s = chrono.spent_s()
        trained_s = spent_s["input"] + spent_s["step"]
        trained = (step - first_step) * config.batch_size
        done = TrainResult(
            steps=step,
            planned_steps=steps,
            resumed_from=None if start is None else first_step,
            images=trained,
            epochs=step * config.batch_size / position.records,
            records=position.records,
            first_loss=first_loss,
            loss=float(np.mean([finished.loss for finished in recent])),
            accuracy=float(np.mean([finished.accuracy for finished in recent])),
            eval=tested,
            images_per_s=trained / trained_s,
            input_wait=spent_s["input"] / trained_s,
            transfer_overlap=there / followed if followed else None,
            spent_s=spent_s,
            workers={name: worker.images for name, worker in stream.stats().workers.items()},
        )
        if record is not None:
            record.end(step, done.to_dict())
    return done


def _default_sum(grid: Grid, shard_update: bool) -> Scheme:
    if grid.x > 1 and grid.y > 1:
        return "2d"
    return "1d" if shard_update else "psum"


def _optimizer_note(config: TrainConfig, params: Any) -> str:
    rule, what = "momentum SGD", "decay"
    if config.optimizer == "lars":
        rule, what = f"LARS, {config.lars_form} form", "trust ratio and decay"
    left_out = ", ".join(f"{count} {name}" for name, count in plain_tensors(params).items()) or "nothing"
    return f"{rule}; weight decay in the {config.weight_decay_in}; without {what}: {left_out}"


def _open_checkpoints(
    stack: ExitStack, folder: Path | None, config: TrainConfig, resume: bool
) -> tuple[Checkpoints | None, dict[str, Any] | None]:
    """The checkpoints, if any are to be made, and the position to go on from."""
    if folder is None:
        if resume:
            raise ConfigError("to resume, say which folder holds the checkpoints")
        return None, None
    checkpoints = stack.enter_context(Checkpoints(folder, config))
    if resume:
        return checkpoints, checkpoints.position()
    if checkpoints.latest is not None:
        raise ConfigError(
            f"{folder}: holds a run that came to step {checkpoints.latest}: resume it, or name another folder"
        )
    return checkpoints, None
