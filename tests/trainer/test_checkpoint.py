from __future__ import annotations

import dataclasses
from pathlib import Path

import jax
import numpy as np
import pytest

from feeder.errors import ConfigError
from feeder.order import Position
from feeder.spec import StreamSpec
from feeder.trainer.checkpoint import KEEP, Checkpoints
from feeder.trainer.config import TrainConfig
from feeder.trainer.optimizer import make_optimizer
from feeder.trainer.step import State, make_state

POSITION = Position(2, 12, StreamSpec("train", 20, 20, reduce=None), 180, "f1")


def _state(config: TrainConfig, step: int) -> State:
    state = make_state(config, make_optimizer(config, lambda step: 0.1))
    return jax.tree.map(lambda leaf: leaf + step, state)


def test_comes_back_as_it_was(config: TrainConfig, tmp_path: Path) -> None:
    saved = _state(config, 7)
    with Checkpoints(tmp_path / "run", config) as checkpoints:
        assert checkpoints.latest is None
        checkpoints.save(saved, POSITION)
    with Checkpoints(tmp_path / "run", config) as checkpoints:
        assert checkpoints.latest == 7
        assert Position.from_dict(checkpoints.position()) == POSITION
        restored = checkpoints.state(_state(config, 0))
    assert jax.tree.structure(restored) == jax.tree.structure(saved)
    jax.tree.map(np.testing.assert_array_equal, restored, saved)


def test_keeps_the_newest(config: TrainConfig, tmp_path: Path) -> None:
    with Checkpoints(tmp_path, config) as checkpoints:
        state = _state(config, 0)
        for step in range(1, KEEP + 3):
            checkpoints.save(state._replace(step=state.step + step), POSITION)
    kept = sorted(int(path.name) for path in tmp_path.iterdir())
    assert kept == [3, 4]


def test_what_was_half_written_does_not_count(config: TrainConfig, tmp_path: Path) -> None:
    with Checkpoints(tmp_path, config) as checkpoints:
        checkpoints.save(_state(config, 5), POSITION)
    (tmp_path / "9.orbax-checkpoint-tmp" / "state").mkdir(parents=True)
    with Checkpoints(tmp_path, config) as checkpoints:
        assert checkpoints.latest == 5


def test_another_run_is_refused_with_the_difference(config: TrainConfig, tmp_path: Path) -> None:
    with Checkpoints(tmp_path, config) as checkpoints:
        checkpoints.save(_state(config, 5), POSITION)
    with (
        Checkpoints(tmp_path, dataclasses.replace(config, width=16, base_rate=0.5)) as checkpoints,
        pytest.raises(ConfigError, match=r"step 5 is of another run .*base_rate: 1.0, 0.5; width: 8, 16;"),
    ):
        checkpoints.position()
    with Checkpoints(tmp_path, dataclasses.replace(config, checkpoint_every=3)) as checkpoints:
        checkpoints.position()  # changes no step


def test_nothing_to_resume_from(config: TrainConfig, tmp_path: Path) -> None:
    with (
        Checkpoints(tmp_path, config) as checkpoints,
        pytest.raises(ConfigError, match="holds no checkpoint to resume from"),
    ):
        checkpoints.position()
