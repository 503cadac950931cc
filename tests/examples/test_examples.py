"""Each example as a user starts it, briefly."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
TIMEOUT_S = 110
# A few steps only: what takes time is to compile them.
QUICK_JAX = {
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false",
}


def _run(worker: str, *command: str) -> str:
    options = ["--connect", worker, "--dataset", "train", "--classes", "10"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **QUICK_JAX}
    done = subprocess.run(
        [sys.executable, *command, *options],
        capture_output=True,
        text=True,
        env=environment,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _example(name: str) -> str:
    return str(ROOT / "examples" / name)


def test_numpy_learns_and_goes_on_where_it_was(worker: str, tmp_path: Path) -> None:
    def epochs(count: int, save: Path) -> list[tuple[int, float]]:
        printed = _run(worker, _example("numpy_softmax.py"), "--epochs", str(count), "--save", str(save))
        return [(int(epoch), float(share)) for epoch, share in re.findall(r"epoch (\d+): ([\d.]+)%", printed)]

    whole = epochs(6, tmp_path / "whole.npz")
    assert [epoch for epoch, _ in whole] == list(range(6))
    assert whole[-1][1] > 60  # chance is 10
    assert epochs(3, tmp_path / "parts.npz") + epochs(6, tmp_path / "parts.npz") == whole


def test_flax_nnx(worker: str) -> None:
    for module in ("flax", "optax"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    printed = _run(
        worker, _example("flax_nnx.py"), "--epochs", "4", "--image-size", "32", "--batch-size", "40"
    )
    found = re.match(r"20 steps, loss ([\d.]+) to ([\d.]+)\n", printed)
    assert found is not None, printed
    assert float(found[2]) < float(found[1]) - 0.1


def test_pytorch_ddp_on_two_processes(worker: str) -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("PyTorch is not installed")
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    short = ["--epochs", "2", "--image-size", "32", "--batch-size", "20"]
    printed = _run(worker, *launcher, _example("pytorch_ddp.py"), *short)
    # Two processes write: lines may run into each other.
    assert len(re.findall(r"epoch \d: loss [\d.]+", printed)) == 2
    assert set(re.findall(r"process (\d) of 2: 200 images", printed)) == {"0", "1"}
