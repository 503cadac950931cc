"""Real worker processes over small data sets."""

from __future__ import annotations

import hashlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import simplejpeg

import feeder
from feeder.cli.status import describe
from feeder.records.tfrecord import frame
from feeder.wire.address import parse_address

READY = "feeder worker listening on "
START_TIMEOUT_S = 60.0
FILL_TIMEOUT_S = 60.0
RECORDS = 120

ROOT = Path(feeder.__file__).resolve().parent.parent
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def jpeg(number: int) -> bytes:
    """A smooth random picture of some 40 to 90 pixels, another for each number."""
    random = np.random.default_rng(number)
    height, width = (int(side) for side in random.integers(40, 90, 2))
    coarse = random.integers(0, 256, (height // 8 + 1, width // 8 + 1, 3), np.uint8)
    pixels = np.ascontiguousarray(coarse.repeat(8, 0).repeat(8, 1)[:height, :width])
    return bytes(simplejpeg.encode_jpeg(pixels, quality=85))


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def example(image: bytes, label: int) -> bytes:
    """A tf.train.Example; the label counts from 0 here and from 1 in it."""
    features = {
        "image/encoded": _field(1, _field(1, image)),
        "image/class/label": _field(3, _field(1, _varint(label + 1))),
    }
    entries = (_field(1, _field(1, key.encode()) + _field(2, value)) for key, value in features.items())
    return _field(1, b"".join(entries))


def write_shards(folder: Path, images: Sequence[bytes], shards: int = 3) -> Path:
    """Record i holds image i and label i."""
    folder.mkdir()
    for shard in range(shards):
        with open(folder / f"train-{shard:05d}-of-{shards:05d}", "wb") as file:
            for record in range(shard * len(images) // shards, (shard + 1) * len(images) // shards):
                payload = example(images[record], record)
                before, after, _ = frame(payload)
                file.write(before + payload + after)
    return folder


def digests(batches: Iterable[feeder.Batch]) -> list[str]:
    """One hash a batch, over all that a trainer sees."""
    return [
        hashlib.sha256(b"".join((batch.images, batch.labels, batch.mask))).hexdigest() for batch in batches
    ]


class Worker:
    """A `feeder worker` process."""

    def __init__(self, log: Path, arguments: Sequence[str]) -> None:
        command = [sys.executable, "-c", "from feeder.cli import main; raise SystemExit(main())", "worker"]
        self.log = log
        with open(log, "ab") as stderr:
            self.process = subprocess.Popen(
                [*command, *arguments], stdout=subprocess.PIPE, stderr=stderr, env=ENVIRONMENT, text=True
            )
        assert self.process.stdout is not None
        select.select([self.process.stdout], [], [], START_TIMEOUT_S)
        line = self.process.stdout.readline() if self.process.poll() is None else ""
        if not line.startswith(READY):
            self.kill()
            raise AssertionError(f"the worker did not start: {line!r}; {log.read_text()}")
        self.address = line.removeprefix(READY).strip()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self, timeout_s: float = 30.0) -> int:
        """Its exit code."""
        return self.process.wait(timeout_s)

    def kill(self) -> None:
        """SIGKILL, and gone."""
        self.process.kill()
        self.process.wait(10)
        assert self.process.stdout is not None
        self.process.stdout.close()


StartWorker = Callable[..., Worker]


def _starter(folder: Path) -> Iterator[StartWorker]:
    workers: list[Worker] = []

    def start(shards: Path, *flags: str, listen: str = "127.0.0.1:0", name: str = "data") -> Worker:
        arguments = ["--dataset", f"{name}={shards}", "--listen", listen, "--threads", "1", *flags]
        workers.append(Worker(folder / f"worker-{len(workers)}.log", arguments))
        return workers[-1]

    yield start
    for worker in workers:
        worker.kill()


@pytest.fixture
def start_worker(tmp_path: Path) -> Iterator[StartWorker]:
    """Starts workers that are gone after the test."""
    yield from _starter(tmp_path)


@pytest.fixture(scope="session")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of three shards with 120 records; the label of each is its number."""
    return write_shards(tmp_path_factory.mktemp("data") / "shards", [jpeg(n) for n in range(RECORDS)])


@pytest.fixture(scope="session")
def pair(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Worker, Worker]]:
    """Two workers for tests that leave them in peace."""
    starter = _starter(tmp_path_factory.mktemp("pair"))
    start = next(starter)
    yield start(shards), start(shards)
    next(starter, None)


@pytest.fixture
def wait_for_cache() -> Callable[[Worker, int], None]:
    """Waits until a worker has put so many images into its cache, and they are served."""

    def wait(worker: Worker, images: int) -> None:
        deadline_s = time.monotonic() + FILL_TIMEOUT_S
        while (cache := describe(parse_address(worker.address)).cache).filled < images or not cache.bytes:
            assert time.monotonic() < deadline_s, cache
            time.sleep(0.05)

    return wait


@pytest.fixture(scope="session")
def digest_batches() -> Callable[[Iterable[feeder.Batch]], list[str]]:
    return digests


@pytest.fixture(scope="session")
def make_shards() -> Callable[..., Path]:
    return write_shards


@pytest.fixture(scope="session")
def make_jpeg() -> Callable[[int], bytes]:
    return jpeg


@pytest.fixture
def run_client(tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """Starts a client script in a process of its own, with every warning an error and Python in development
    mode."""

    def run(script: str, *arguments: str) -> subprocess.Popen[str]:
        path = tmp_path / "client.py"
        path.write_text(script)
        return subprocess.Popen(
            [sys.executable, "-W", "error", "-X", "dev", str(path), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=ENVIRONMENT,
            text=True,
        )

    return run
