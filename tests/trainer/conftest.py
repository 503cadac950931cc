"""Small pictures that ten colours tell apart, real workers that serve them, and settings of JAX for tests."""

from __future__ import annotations

import colorsys
import math
import os
import random
import re
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import feeder

# Before JAX is imported: it reads them once.
os.environ["JAX_PLATFORMS"] = "cpu"
# Level 0 without the newer emitters compiles in a third of the time; the few small steps that tests run take
# longer, but less than was saved. Eight devices stand for the replicas of a pod.
os.environ["XLA_FLAGS"] = (
    "--xla_cpu_multi_thread_eigen=false --xla_backend_optimization_level=0 "
    "--xla_llvm_disable_expensive_passes=true --xla_cpu_use_fusion_emitters=false "
    "--xla_cpu_parallel_codegen_split_count=1 --xla_force_host_platform_device_count=8"
)

from feeder.trainer.config import TrainConfig

READY = "feeder worker listening on "
READY_TIMEOUT_S = 60.0
CLASSES = 10
SIDE = 48


@pytest.fixture(scope="session", autouse=True)
def _compile_once(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Tests that need the same compiled step share it."""
    import jax

    jax.config.update("jax_compilation_cache_dir", str(tmp_path_factory.mktemp("compiled")))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


@pytest.fixture(scope="session")
def config() -> TrainConfig:
    """A net that compiles in seconds and learns the colours in some twenty steps."""
    return TrainConfig(
        classes=CLASSES,
        steps=40,
        batch_size=20,
        image_size=32,
        depth=8,
        width=8,
        small_stem=True,
        compute_dtype="float32",
        sampler="torchvision",
        base_rate=1.0,
        warmup_steps=5,
        nesterov=True,
    )


def _picture(rng: np.random.Generator, label: int) -> bytes:
    import simplejpeg

    hue = np.array(colorsys.hsv_to_rgb(label / CLASSES, 0.8, 0.8)) * 255
    coarse = hue + rng.normal(0, 30, (SIDE // 8, SIDE // 8, 3))
    pixels = coarse.clip(0, 255).astype(np.uint8).repeat(8, 0).repeat(8, 1)
    return bytes(simplejpeg.encode_jpeg(np.ascontiguousarray(pixels), quality=90))


PackColours = Callable[..., Path]


@pytest.fixture(scope="session")
def pack_colours(tmp_path_factory: pytest.TempPathFactory) -> PackColours:
    """Packs pictures of ten colours into shards; `shuffled` gives each the label of another one."""
    from feeder.records.pack import pack

    def make(images: int, *, holdout: float = 0.0, shuffled: bool = False, shards: int = 3) -> Path:
        folder = tmp_path_factory.mktemp("colours")
        labels = [number % CLASSES for number in range(images)]
        names = labels.copy()
        if shuffled:
            random.Random(0).shuffle(names)
        rng = np.random.default_rng(0)
        for number, (label, name) in enumerate(zip(labels, names, strict=True)):
            path = folder / "photos" / f"class{name}" / f"{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(_picture(rng, label))
        pack(folder / "photos", folder / "shards", shards=shards, holdout=holdout)
        return folder / "shards"

    return make


StartWorker = Callable[..., str]


def _starter(folder: Path) -> Iterator[StartWorker]:
    running: list[subprocess.Popen[str]] = []
    root = Path(feeder.__file__).resolve().parent.parent

    def start(*flags: str, **datasets: str) -> str:
        sets = [f"--dataset={name}={pattern}" for name, pattern in datasets.items()]
        log = folder / f"worker-{len(running)}.log"
        with open(log, "w") as stderr:
            command = [sys.executable, "-m", "feeder", "worker", *sets, *flags]
            process = subprocess.Popen(
                [*command, "--listen", "127.0.0.1:0", "--threads", "1"],
                stdout=subprocess.PIPE,
                stderr=stderr,
                env={**os.environ, "PYTHONPATH": str(root)},
                text=True,
            )
        running.append(process)
        assert process.stdout is not None
        select.select([process.stdout], [], [], READY_TIMEOUT_S)
        line = process.stdout.readline()
        assert line.startswith(READY), log.read_text()
        return line.removeprefix(READY).strip()

    yield start
    for process in running:
        process.terminate()
    for process in running:
        process.wait(20)
        assert process.stdout is not None
        process.stdout.close()


@pytest.fixture
def start_worker(tmp_path: Path) -> Iterator[StartWorker]:
    """Starts workers that are gone after the test; gives their address."""
    yield from _starter(tmp_path)


@pytest.fixture(scope="module")
def module_worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartWorker]:
    """The same, for all tests of a module."""
    yield from _starter(tmp_path_factory.mktemp("workers"))


@pytest.fixture(scope="session")
def colours(pack_colours: PackColours, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a worker with "train", 180 pictures, and "validation", 23."""
    shards = pack_colours(203, holdout=0.12)  # of each class 3 of 21, or 2 of 20
    starter = _starter(tmp_path_factory.mktemp("worker"))
    yield next(starter)(train=f"{shards}/train-*", validation=f"{shards}/validation-*")
    next(starter, None)


Collective = tuple[str, frozenset[frozenset[int]], int]


def _collectives(text: str) -> list[Collective]:
    seen = []
    for line in text.splitlines():
        match = re.search(r" = (\S.*?) (reduce-scatter|all-reduce|all-gather)(?:-start)?\(", line)
        if match is None:
            continue
        elements = sum(
            math.prod(int(size) for size in shape.split(",") if size)
            for shape in re.findall(r"f32\[([\d,]*)\]", match[1])
        )
        groups = _groups(line)
        if match[2] == "reduce-scatter":  # its result is the smaller side
            elements *= len(next(iter(groups)))
        seen.append((match[2], groups, elements * 4))
    return seen


def _groups(line: str) -> frozenset[frozenset[int]]:
    """Written out, or as the reshaped and transposed list of all devices."""
    if listed := re.search(r"replica_groups=\{(\{[\d,{}]+\})\}", line):
        return frozenset(
            frozenset(map(int, group.split(","))) for group in re.findall(r"\{([\d,]+)\}", listed[1])
        )
    iota = re.search(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", line)
    assert iota is not None, line
    shape, dims, order = ([int(n) for n in part.split(",")] if part else None for part in iota.groups())
    assert shape is not None
    assert dims is not None
    devices = np.arange(math.prod(dims)).reshape(dims)
    return frozenset(frozenset(row.tolist()) for row in devices.transpose(order).reshape(shape))


@pytest.fixture(scope="session")
def collectives_of() -> Callable[[str], list[Collective]]:
    """Collectives in the text of compiled code: operation, groups of devices, float32 bytes of the larger
    side."""
    return _collectives
