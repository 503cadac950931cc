from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from feeder.cli import main
from feeder.errors import ConfigError
from feeder.trainer.config import TrainConfig
from feeder.trainer.plan import CHART_COLUMNS, chart, make_plan


def test_numbers_of_a_small_run(config: TrainConfig) -> None:
    config = dataclasses.replace(config, steps=None, epochs=4, rate=2.0, base_rate=None, decay="poly")
    plan = make_plan(config, 203, devices=4, step_s=0.5)
    assert (plan.steps_per_epoch, plan.steps, plan.warmup) == (10, 40, 5)
    assert [step for step, _ in plan.rates] == [0, 1, 4, 5, 6, 39]
    assert plan.rates[3][1] == 2.0
    assert plan.images_per_s == 40
    assert plan.input_bytes == 20 * 32 * 32 * 3
    assert plan.input_bytes_per_s == 2 * plan.input_bytes
    assert plan.run_s == 20
    memory = plan.memory
    assert memory.gradients == 4 * plan.parameters
    assert memory.gradients < memory.weights  # which has the running averages, too
    assert memory.gradients <= memory.optimizer < 1.01 * memory.gradients  # its velocity, and a counter
    assert memory.inputs == 3 * plan.input_bytes // 4
    # At least the inputs of all convolutions, float32: 32 * 32 * 3, 8 * 8 * 8 four times, and so on.
    assert memory.activations > 5 * 4 * (32 * 32 * 3 + 4 * 8 * 8 * 8)
    assert make_plan(config, 203).memory.activations == 4 * memory.activations


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"records": 19}, "19 records do not fill one batch of 20"),
        ({"records": 200, "devices": 3}, "a batch of 20 cannot be shared by 3 devices equally"),
        ({"records": 200, "step_s": 0.0}, "more than 0 s, got 0.0"),
    ],
)
def test_what_cannot_be(config: TrainConfig, settings: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_plan(config, **settings)


def test_chart() -> None:
    lines = chart(np.linspace(0, 5, 640))
    assert lines[0].startswith("5 |")
    assert lines[-1].startswith("0 |*")
    assert lines[0].endswith("*")
    assert len(lines[0]) == len("5 |") + CHART_COLUMNS
    assert chart(np.zeros(64))[-1] == "0 |" + "*" * CHART_COLUMNS


def test_command_needs_no_worker(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["train", "--config", "tiny", "--dry-run", "--records", "1800"]
    assert main([*command, "--step-time", "0.064"]) == 0
    printed = capsys.readouterr().out
    assert "ResNet-8, " in printed
    assert "700 steps, 25.0 epochs of 28 steps (1,800 images); 50 steps warm up" in printed
    assert "1,000 images/s, 12.3 MB/s for steps of 0.064 s" in printed
    changes = ["--rate", "3", "--image-size", "32", "--json"]
    assert main([*command, *changes]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["rate"], report["base_rate"]) == (3.0, None)
    assert dict(report["plan"]["rates"])[50] == 3.0
    assert report["plan"]["images_per_s"] is None


def test_command_plans_a_pod(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["train", "--config", "resnet50-lars-32k", "--dry-run", "--mesh", "32x32"]
    assert main([*command, "--step-time", "0.0312"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    for line in (
        "ResNet-50, 25,557,032 parameters, bfloat16",
        "3,510 steps, 90.0 epochs of 39 steps (1,281,167 images); 468 steps warm up",
        "LARS, unscaled form, eta 0.001, epsilon 0, momentum 0.9",
        "weight decay 0.0001, in the loss",
        "1 dense/bias, 53 norm/bias, 53 norm/scale",
        "step 0: 0 step 1: 0.0726496 step 467: 33.9274 step 468: 34 ",
        "step 469: 33.9777 step 3,509: 0.000114687",
        "on each of 1,024 devices, at most: weights 102 MB, gradients 102 MB, optimiser 102 MB,",
        "1,050,256 images/s, 158 GB/s for steps of 0.0312 s; 0:01:50 of steps in all",
        "34 | **",  # the plot
    ):
        assert line in printed


def test_training_itself_needs_workers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--config", "tiny"]) == 2
    assert "--connect is missing: training needs workers" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--dry-run", "--mesh", "4x2", "--devices", "16"], "--mesh 4x2 has 8 devices, --devices says 16"),
        (["--connect", "a:1", "--dataset", "d", "--devices", "2"], "--devices goes with --dry-run only"),
        (["--dry-run", "--seed", str(2**63)], f"seed must be in [0, 2**63), got {2**63}"),
        (["--dry-run", "--seed", "-1"], "seed must be in [0, 2**63), got -1"),
    ],
)
def test_options_that_cannot_be_are_named(
    capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert main(["train", "--config", "tiny", *options]) == 2
    assert message in capsys.readouterr().err


def test_a_mesh_says_how_many_devices_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["train", "--config", "tiny", "--dry-run", "--records", "1800", "--json"]
    assert main([*command, "--mesh", "4x2", "--devices", "8"]) == 0
    both = capsys.readouterr().out
    assert main([*command, "--mesh", "4x2"]) == 0
    assert capsys.readouterr().out == both
    assert main([*command, "--devices", "8"]) == 0
    assert capsys.readouterr().out == both
