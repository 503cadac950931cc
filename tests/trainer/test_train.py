"""The trainer as a client of a real worker process."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from feeder.cli import main
from feeder.errors import ConfigError, PositionMismatch
from feeder.trainer.checkpoint import Checkpoints
from feeder.trainer.config import TrainConfig
from feeder.trainer.loop import TrainResult, train
from feeder.trainer.optimizer import make_optimizer, make_schedule
from feeder.trainer.record import METRICS
from feeder.trainer.step import State, make_state
from feeder.trainer.watch import Finished, NonFiniteLoss

ROOT = Path(__file__).resolve().parent.parent.parent

StartWorker = Callable[..., str]
PackColours = Callable[..., Path]


class Killed(Exception):
    """Ends a run from within, as a failure would."""


def _losses(
    config: TrainConfig, address: str, kill_after: int | None = None, **options: object
) -> tuple[dict[int, float], TrainResult | None]:
    """The loss of each step, and what the run came to unless it was killed."""
    losses: dict[int, float] = {}

    def listen(finished: Finished, steps: int, waited_s: float) -> None:
        losses[finished.step] = finished.loss
        if finished.step == kill_after:
            raise Killed

    try:
        return losses, train(config, address, "train", listener=listen, **options)
    except Killed:
        return losses, None


def test_a_run_that_resumes_is_the_run_that_was_not_killed(
    config: TrainConfig, colours: str, tmp_path: Path
) -> None:
    # 180 images: epochs of 9 steps, so the run is killed in its second one, 2 steps after a checkpoint.
    config = dataclasses.replace(config, steps=20, checkpoint_every=5)
    whole, result = _losses(config, colours)
    assert list(whole) == list(range(1, 21))
    assert result is not None
    assert result.resumed_from is None
    killed, _ = _losses(config, colours, kill_after=12, checkpoint_dir=tmp_path)
    resumed, result = _losses(config, colours, checkpoint_dir=tmp_path, resume=True)
    assert killed == {step: whole[step] for step in range(1, 13)}
    assert resumed == {step: whole[step] for step in range(11, 21)}
    assert result is not None
    assert (result.resumed_from, result.steps, result.images) == (10, 20, 10 * 20)

    with pytest.raises(ConfigError, match="the run is complete, step 20 of 20"):
        _losses(config, colours, checkpoint_dir=tmp_path, resume=True)
    with pytest.raises(ConfigError, match="holds a run that came to step 20"):
        _losses(config, colours, checkpoint_dir=tmp_path)


def test_a_run_learns_from_half_the_bytes(config: TrainConfig, colours: str) -> None:
    half = dataclasses.replace(config, pixels="yuv420")
    losses, result = _losses(half, colours, eval_dataset="validation")
    assert result is not None
    assert result.eval is not None
    assert losses[40] < losses[1] / 2
    assert result.eval.images == 23


_KILLED_RUN = """
import json, os, signal, sys
from pathlib import Path
from feeder.trainer.config import TrainConfig
from feeder.trainer.loop import train

def listen(finished, steps, waited_s):
    if finished.step == 12:
        os.kill(os.getpid(), signal.SIGKILL)

settings = json.loads(sys.argv[1])
config = TrainConfig(**{**settings, "boundaries": tuple(settings["boundaries"])})
folder = Path(sys.argv[3])
train(config, sys.argv[2], "train", checkpoint_dir=folder, log_dir=folder / "log", listener=listen)
"""


def _saved(folder: Path, config: TrainConfig) -> State:
    optimizer = make_optimizer(config, make_schedule(config, *config.lengths(1)))
    with Checkpoints(folder, config) as checkpoints:
        return checkpoints.state(make_state(config, optimizer))


def _steps(folder: Path) -> list[dict[str, Any]]:
    rows = map(json.loads, (folder / "log" / METRICS).read_text().splitlines())
    return [
        {name: value for name, value in row.items() if name != "spent_s"}
        for row in rows
        if row["kind"] == "step"
    ]


@pytest.mark.timeout(360)  # three runs, one of them a process of its own
def test_a_run_that_is_killed_and_resumed_is_bit_for_bit_the_one_that_was_not(
    config: TrainConfig, colours: str, tmp_path: Path
) -> None:
    config = dataclasses.replace(
        config,
        steps=20,
        checkpoint_every=5,
        optimizer="lars",
        lars_form="unscaled",
        nesterov=False,
        base_rate=None,
        rate=5.0,
        decay="poly",
        weight_decay_in="loss",
    )
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    profile = tmp_path / "profile"
    notes: list[str] = []
    logged = {"checkpoint_dir": whole, "log_dir": whole / "log", "profile_dir": profile}
    train(config, colours, "train", note=notes.append, **logged)
    left_out = "1 dense/bias, 9 norm/bias, 9 norm/scale"
    assert notes[1] == (
        f"LARS, unscaled form; weight decay in the loss; without trust ratio and decay: {left_out}"
    )
    assert list(profile.rglob("*.xplane.pb"))
    settings = json.dumps(dataclasses.asdict(config))
    command = [sys.executable, "-c", _KILLED_RUN, settings, colours, os.fspath(parts)]
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "JAX_COMPILATION_CACHE_DIR": str(jax.config.jax_compilation_cache_dir),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    killed = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    result = train(config, colours, "train", checkpoint_dir=parts, log_dir=parts / "log", resume=True)
    assert result.resumed_from == 10
    assert len(_steps(whole)) == 20
    assert _steps(parts) == _steps(whole)
    jax.tree.map(np.testing.assert_array_equal, _saved(parts, config), _saved(whole, config))


def test_a_run_that_diverges_keeps_the_last_good_checkpoint(
    config: TrainConfig, colours: str, tmp_path: Path
) -> None:
    # The first step has rate 0, the second throws the weights beyond float32.
    config = dataclasses.replace(config, base_rate=1e38, checkpoint_every=1)
    with pytest.raises(NonFiniteLoss, match=r"step 2: the weights became inf .*\(step 1 is in"):
        train(config, colours, "train", checkpoint_dir=tmp_path)
    state = _saved(tmp_path, config)
    assert state.step == 1
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state))


def test_resuming_on_other_data_is_refused(
    config: TrainConfig, colours: str, pack_colours: PackColours, start_worker: StartWorker, tmp_path: Path
) -> None:
    config = dataclasses.replace(config, checkpoint_every=4)
    _losses(config, colours, kill_after=6, checkpoint_dir=tmp_path)
    other = start_worker(train=str(pack_colours(190)))
    with pytest.raises(PositionMismatch, match=r"records: 180, 190 now; fingerprint"):
        _losses(config, other, checkpoint_dir=tmp_path, resume=True)


def test_evaluation_counts_each_image_once(config: TrainConfig, colours: str) -> None:
    config = dataclasses.replace(config, eval_every=20)
    notes: list[str] = []
    result = train(config, colours, "train", "validation", note=notes.append)
    assert result.eval is not None
    assert (result.eval.images, result.eval.bad) == (23, 0)  # two batches of 20, 17 slots of them masked
    assert result.eval.accuracy * 23 == pytest.approx(round(result.eval.accuracy * 23))
    assert notes[1].startswith("momentum SGD; weight decay in the optimizer; without decay: 1 dense/bias, ")
    assert [note.split(",")[0] for note in notes[2:]] == ["step 20", "step 40"]
    assert sum(result.workers.values()) >= 40 * 20
    assert 0 <= result.input_wait <= 1
    assert result.transfer_overlap is not None
    assert 0 <= result.transfer_overlap <= 1
    assert result.spent_s["eval"] > 0


def test_time_is_up(config: TrainConfig, colours: str, tmp_path: Path) -> None:
    result = train(config, colours, "train", checkpoint_dir=tmp_path, max_seconds=0.0)
    assert (result.steps, result.planned_steps) == (1, 40)
    assert result.transfer_overlap is None
    assert (tmp_path / "1").is_dir()


def test_labels_beyond_the_classes_are_an_error_not_a_loss_of_0(
    config: TrainConfig, pack_colours: PackColours, start_worker: StartWorker
) -> None:
    # Labels are 1 to 10 in the records: a worker that is told that they count from 0 sends 10, too.
    address = start_worker("--label-base=0", train=str(pack_colours(60)))
    with pytest.raises(ConfigError, match=r"'train', epoch 0, \d+ samples .* label 10 is outside \[0, 10\)"):
        train(config, address, "train")


def test_labels_are_right(config: TrainConfig, pack_colours: PackColours, start_worker: StartWorker) -> None:
    """Held-out images are told apart after training on their own labels, and not after training on labels
    dealt out at random: what comes with an image is its label."""
    accuracy = {}
    for shuffled in (False, True):
        shards = pack_colours(400, holdout=0.25, shuffled=shuffled)
        address = start_worker(train=f"{shards}/train-*", validation=f"{shards}/validation-*")
        result = train(config, address, "train", "validation")
        assert result.eval is not None
        assert result.eval.images == 100
        accuracy[shuffled] = result.eval.accuracy
    assert accuracy[False] > 0.8
    assert accuracy[True] < 0.25  # chance is 0.1 with a standard deviation of 0.03


def _command(address: str, *options: str) -> list[str]:
    return [
        *("train", "--connect", address, "--dataset", "train", "--eval-dataset", "validation"),
        *("--config", "tiny", "--batch-size", "20", "--image-size", "32", "--warmup-steps", "2", *options),
    ]


def test_command(colours: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(_command(colours, "--steps", "6", "--require", "loss=2x", "--require", "accuracy=0.001x")) == 0
    )
    captured = capsys.readouterr()
    assert "| accuracy on 23 images of 'validation'" in captured.out
    assert "| seconds evaluation " in captured.out
    assert "| steps whose images were on the device in time " in captured.out
    assert "| seconds checkpoints " not in captured.out  # there is no folder for them
    assert "stopped after" not in captured.out
    assert "step 6/6" in captured.err


def test_command_that_runs_out_of_time(colours: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(_command(colours, "--steps", "6", "--seconds", "1e-9")) == 0
    assert re.search(r"\| steps +\| +1 of 6 \(stopped after \S+ s\) \|", capsys.readouterr().out)


def test_command_in_json_with_a_requirement_that_is_missed(
    colours: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(_command(colours, "--steps", "6", "--json", "--require", "loss=0.000001x")) == 1
    captured = capsys.readouterr()
    report = json.loads(captured.out)
    assert report["eval"]["images"] == 23
    assert report["steps"] == 6
    assert report["failed"] == [captured.err.splitlines()[-1].removeprefix("feeder: ")]
    assert "training loss is" in report["failed"][0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--config", "huge"], "no configuration 'huge'"),
        (["--resume"], "which folder holds the checkpoints"),
        (["--batch-size", "500"], "500"),
        (["--steps", "2"], "a warm-up of 2 steps does not fit a run of 2"),
    ],
)
def test_command_errors(
    colours: str, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(_command(colours, *options)) == 2
    assert message in capsys.readouterr().err
