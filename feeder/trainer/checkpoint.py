"""Checkpoints: weights, optimiser and the position in the data together, so that a resumed run goes on with
exactly the steps that would have come."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import jax
import orbax.checkpoint as ocp

from feeder import Position
from feeder.errors import ConfigError, StorageError
from feeder.trainer.config import TrainConfig
from feeder.trainer.step import State

__all__ = ["Checkpoints"]

KEEP = 2
"""The newest checkpoints that stay: one to go on from, and one more should the newest be damaged."""

_FREE = ("checkpoint_every", "eval_every")
"""Fields of the configuration that may differ when a run resumes: they change no step."""


class Checkpoints:
    """The checkpoints of one run in a folder, one subfolder a step. A context manager.

    A checkpoint is written beside and renamed, so that a run that dies while saving leaves the one before.
    """

    def __init__(self, folder: Path, config: TrainConfig) -> None:
        """
        Args:
            folder: made if it is missing.
            config: kept in each checkpoint.

        Raises:
            StorageError: the folder cannot be made.
        """
        self._folder = folder
        self._config = config
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"{folder}: cannot keep checkpoints there: {error.strerror}") from error
        self._manager = ocp.CheckpointManager(
            folder.resolve(),
            options=ocp.CheckpointManagerOptions(max_to_keep=KEEP, enable_async_checkpointing=False),
            item_names=("state", "run"),
        )

    @property
    def latest(self) -> int | None:
        """Step of the newest checkpoint."""
        step: int | None = self._manager.latest_step()
        return step

    def save(self, state: State, position: Position) -> None:
        """Saves the state after a step and the position after that step's batch; waits for the device."""
        run = {"config": _plain(self._config), "position": position.to_dict()}
        args = ocp.args.Composite(state=ocp.args.StandardSave(state), run=ocp.args.JsonSave(run))
        try:
            self._manager.save(int(state.step), args=args)
        except OSError as error:
            raise StorageError(f"{self._folder}: cannot save step {int(state.step)}: {error}") from error

    def position(self) -> dict[str, Any]:
        """The position in the newest checkpoint, as Position.to_dict gave it.

        Raises:
            ConfigError: there is no checkpoint, or it is of a run with another configuration.
        """
        step = self.latest
        if step is None:
            raise ConfigError(f"{self._folder}: holds no checkpoint to resume from")
        run = self._manager.restore(step, args=ocp.args.Composite(run=ocp.args.JsonRestore())).run
        differences = _differences(run["config"], _plain(self._config))
        if differences:
            raise ConfigError(
                f"{self._folder}: step {step} is of another run (saved, now): {'; '.join(differences)}; "
                f"resume with the saved values, or start in another folder"
            )
        position: dict[str, Any] = run["position"]
        return position

    def state(self, like: State) -> State:
        """The state in the newest checkpoint.

        Args:
            like: a state of the same run, whose values are not used.
        """
        target = jax.tree.map(_abstract, like)
        args = ocp.args.Composite(state=ocp.args.StandardRestore(target))
        state: State = self._manager.restore(self.latest, args=args).state
        return state

    def close(self) -> None:
        """Gives back the threads of the checkpoint library."""
        self._manager.close()

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _abstract(array: jax.Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(  # type: ignore[no-untyped-call]
        array.shape, array.dtype, sharding=array.sharding
    )


def _plain(config: TrainConfig) -> dict[str, Any]:
    """The configuration as JSON gives it back."""
    fields = dataclasses.asdict(config)
    return {name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()}


def _differences(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    names = sorted((saved.keys() | now.keys()) - set(_FREE))
    return [
        f"{name}: {saved.get(name)!r}, {now.get(name)!r}"
        for name in names
        if saved.get(name) != now.get(name)
    ]
