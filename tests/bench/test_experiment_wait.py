import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from bench.experiments import pictures

ROOT = Path(__file__).resolve().parent.parent.parent

wait = pytest.importorskip("bench.experiments.wait", reason="JAX is not installed")

# The experiment as it is, with a net and pictures that are smaller still.
SMALLER = """
import dataclasses, sys
from bench.experiments import wait
wait.CONFIG = dataclasses.replace(wait.CONFIG, batch_size=16, image_size=32, width=4, warmup_steps=5)
wait.PICTURES = dataclasses.replace(wait.PICTURES, side=64)
sys.exit(wait.main())
"""


def test_page():
    machine = {
        "kind": "environment",
        "cpu": "a CPU",
        "date": "2026-11-29T12:00",
        "commit": "c0ffee",
        "dirty": False,
        "cores_used": [0, 1],
    }
    worker = {"kind": "worker", "images_per_s": 5000.0}
    run = {
        "kind": "run",
        "steps": 700,
        "input_wait": 0.001,
        "input_ms_per_step": 0.0625,
        "step_ms": 62.5,
        "images_per_s": 1024.0,
        "load_average": 2.0,
    }
    page = wait.markdown([machine, worker, run, {**run, "input_wait": 0.003}, run])
    assert "The worker alone gives 5,000 images/s from its cache, the trainer takes 1,024 (median)" in page
    assert "median 0.10%, at most 0.30%" in page
    assert "| 2   |    2 |     62.5 |              0.062 |             0.30% |" in page


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="worker and trainer need a core each")
@pytest.mark.timeout(400)
def test_measures(tmp_path):
    path = tmp_path / "rows.jsonl"
    command = [sys.executable, "-c", SMALLER, "--tiny"]
    flags = "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
    quick = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    done = subprocess.run(
        [*command, "--folder", str(tmp_path / "data"), "--rows", str(path)],
        cwd=ROOT,
        env=os.environ | quick,
        capture_output=True,
        text=True,
        timeout=360,
    )
    assert done.returncode == 0, done.stderr
    machine, worker, run = map(json.loads, path.read_text().splitlines())
    assert machine["cores_used"] == sorted(os.sched_getaffinity(0))[-2:]
    assert worker["images_per_s"] > 0
    assert run["steps"] == 6
    assert 0 <= run["input_wait"] <= 1
    assert (tmp_path / "README.md").read_text() in done.stdout


def test_pictures_are_shrunk_in_place(tmp_path):
    path = tmp_path / "class" / "1.JPEG"
    path.parent.mkdir()
    Image.new("RGB", (400, 200), (200, 30, 30)).save(path)
    small = tmp_path / "class" / "2.JPEG"
    Image.new("L", (20, 30)).save(small)
    assert pictures.main([str(tmp_path), "72"]) == 0
    with Image.open(path) as picture:
        assert (picture.size, picture.mode) == ((72, 36), "RGB")
        assert picture.getpixel((10, 10))[0] == pytest.approx(200, abs=3)
    with Image.open(io.BytesIO(small.read_bytes())) as picture:
        assert picture.size == (20, 30)
