"""A worker with pictures that ten colours tell apart."""

from __future__ import annotations

import colorsys
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
READY = "feeder worker listening on "
READY_TIMEOUT_S = 60.0
CLASSES, IMAGES, SIDE = 10, 200, 40


@pytest.fixture(scope="session")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its address; it serves 200 pictures as "train"."""
    import simplejpeg

    from feeder.records.pack import pack

    folder = tmp_path_factory.mktemp("examples")
    rng = np.random.default_rng(0)
    for number in range(IMAGES):
        label = number % CLASSES
        colour = np.array(colorsys.hsv_to_rgb(label / CLASSES, 0.8, 0.8)) * 255
        pixels = (colour + rng.normal(0, 20, (SIDE, SIDE, 3))).clip(0, 255).astype(np.uint8)
        path = folder / "photos" / f"class{label}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(simplejpeg.encode_jpeg(pixels, quality=90))
    pack(folder / "photos", folder / "shards", shards=2)
    command = [sys.executable, "-m", "feeder", "worker", f"--dataset=train={folder}/shards/train-*"]
    with open(folder / "worker.log", "w") as log:
        process = subprocess.Popen(
            [*command, "--listen", "127.0.0.1:0", "--threads", "1"],
            stdout=subprocess.PIPE,
            stderr=log,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            text=True,
        )
    assert process.stdout is not None
    select.select([process.stdout], [], [], READY_TIMEOUT_S)
    line = process.stdout.readline()
    assert line.startswith(READY), (folder / "worker.log").read_text()
    yield line.removeprefix(READY).strip()
    process.terminate()
    process.wait(20)
    process.stdout.close()
