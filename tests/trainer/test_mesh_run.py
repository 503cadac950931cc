"""Whole runs on eight devices: one that is killed and resumed, and the same in two processes."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

import feeder
from feeder.errors import ConfigError
from feeder.trainer.checkpoint import Checkpoints
from feeder.trainer.config import TrainConfig, load_config
from feeder.trainer.grid import Grid
from feeder.trainer.loop import TrainResult, train
from feeder.trainer.optimizer import make_optimizer
from feeder.trainer.record import METRICS
from feeder.trainer.step import State, make_state
from feeder.trainer.watch import Finished

STEPS = 8
OPTIONS = [
    "--batch-size=16",
    "--image-size=32",
    f"--steps={STEPS}",
    "--warmup-steps=2",
    "--checkpoint-every=3",
]
MESH = ["--mesh=4x2", "--norm-group=2", "--shard-update"]
PROCESS_TIMEOUT_S = 280


class Killed(Exception):
    """Ends a run from within, as a failure would."""


class Run(NamedTuple):
    """A run: loss of each step, and what it came to."""

    losses: dict[int, float]
    result: TrainResult | None


def _config() -> TrainConfig:
    """As OPTIONS and MESH say."""
    return dataclasses.replace(
        load_config("tiny"),
        batch_size=16,
        image_size=32,
        steps=STEPS,
        warmup_steps=2,
        checkpoint_every=3,
        norm_span=4,
    )


def _run(address: str, folder: Path, kill_after: int | None = None, **options: Any) -> Run:
    losses: dict[int, float] = {}

    def listen(finished: Finished, steps: int, waited_s: float) -> None:
        losses[finished.step] = finished.loss
        if finished.step == kill_after:
            raise Killed

    arguments = {"mesh": Grid(4, 2), "shard_update": True, "checkpoint_dir": folder, **options}
    try:
        return Run(losses, train(_config(), address, "train", "validation", listener=listen, **arguments))
    except Killed:
        return Run(losses, None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints of the run that was not killed."""
    return tmp_path_factory.mktemp("whole")


@pytest.fixture(scope="module")
def whole(colours: str, folder: Path) -> Run:
    """A run in one process that was not killed."""
    return _run(colours, folder)


@pytest.mark.timeout(400)
def test_a_run_on_a_mesh_resumes_exactly(whole: Run, colours: str, tmp_path: Path) -> None:
    assert sorted(whole.losses) == list(range(1, STEPS + 1))
    assert whole.result is not None
    assert whole.result.eval is not None
    assert whole.result.eval.images == 23
    killed = _run(colours, tmp_path, kill_after=5)
    assert killed.losses == {step: whole.losses[step] for step in range(1, 6)}
    resumed = _run(colours, tmp_path, resume=True)
    assert resumed.losses == {step: whole.losses[step] for step in range(4, STEPS + 1)}
    assert resumed.result is not None
    assert resumed.result.eval == whole.result.eval
    with pytest.raises(ConfigError, match="norm_span: 4, 16"):  # other statistics: another run
        _run_on_one_device(colours, tmp_path)


def _run_on_one_device(address: str, folder: Path) -> None:
    config = dataclasses.replace(_config(), norm_span=None)
    train(config, address, "train", checkpoint_dir=folder, resume=True)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _last_state(folder: Path) -> State:
    config = _config()
    with Checkpoints(folder, config) as checkpoints:
        assert checkpoints.latest == STEPS
        checkpoints.position()
        return checkpoints.state(make_state(config, make_optimizer(config, lambda step: 0.1)))


@pytest.mark.timeout(400)
def test_two_processes_train_as_one(whole: Run, folder: Path, colours: str, tmp_path: Path) -> None:
    command = [
        *(sys.executable, "-m", "feeder", "train", "--connect", colours, "--dataset", "train"),
        *("--eval-dataset", "validation", "--config", "tiny", *OPTIONS, *MESH, "--json"),
        *(f"--checkpoint-dir={tmp_path / 'checkpoints'}", f"--log-dir={tmp_path / 'log'}"),
        *(f"--coordinator=127.0.0.1:{_free_port()}", "--processes=2"),
    ]
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(feeder.__file__).resolve().parent.parent),
        "XLA_FLAGS": os.environ["XLA_FLAGS"].replace("device_count=8", "device_count=4"),
    }
    processes = [
        subprocess.Popen(
            [*command, f"--process-index={index}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            text=True,
        )
        for index in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=PROCESS_TIMEOUT_S) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait(20)
    for process, (_, errors) in zip(processes, outputs, strict=True):
        assert process.returncode == 0, errors
        assert "4x2 replicas in 2 processes, gradients by 2d, batch-norm statistics of 4 samples" in errors
    assert whole.result is not None
    # The library that connects CPU processes writes on stdout, too.
    reports = [json.loads(out.splitlines()[-1]) for out, _ in outputs]
    assert reports[0]["eval"] == reports[1]["eval"]
    assert reports[0]["eval"]["images"] == whole.result.eval.images == 23
    assert reports[0]["eval"]["accuracy"] == whole.result.eval.accuracy
    assert reports[0]["eval"]["loss"] == pytest.approx(whole.result.eval.loss, rel=1e-5)
    lines = map(json.loads, (tmp_path / "log" / METRICS).read_text().splitlines())
    losses = {line["step"]: line["loss"] for line in lines if line["kind"] == "step"}
    assert losses == pytest.approx(whole.losses, rel=1e-6)
    for report in reports:  # each took its half of the batches, and of the 23 images padded to 32
        assert sum(report["workers"].values()) >= STEPS * 8
    jax.tree.map(
        lambda ours, theirs: np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5),
        _last_state(tmp_path / "checkpoints"),
        _last_state(folder),
    )


def test_command_errors(colours: str, capsys: pytest.CaptureFixture[str]) -> None:
    from feeder.cli import main

    command = ["train", f"--connect={colours}", "--dataset=train", "--config=tiny", *OPTIONS]
    for options, message in (
        (["--mesh=4x4"], "a mesh of 4x4 needs 16 devices, there are 8"),
        (["--mesh=3"], "a batch of 16 cannot be divided equally among 3 replicas"),
        (["--norm-group=2"], "--norm-group needs --mesh"),
        (["--mesh=4x2", "--norm-group=3"], "possible are 2, 4, 8, 16"),
        (["--mesh=4x2", "--shard-update", "--gradient-sum=psum"], "summed in 1d or 2d"),
    ):
        assert main([*command, *options]) == 2
        assert message in capsys.readouterr().err
