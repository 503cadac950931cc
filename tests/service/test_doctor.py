"""`feeder doctor` over real workers and trainers, with each stage the limit in turn.

Every situation is extreme, so that a busy machine changes figures and no verdict.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg

import feeder
from feeder.cli import main
from feeder.cli.status import describe
from feeder.wire.address import parse_address

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "faults"))

from fault_proxy import Proxy

SECONDS = 2
PATIENCE_S = 60.0


class Trainer:
    """Takes batches in a thread of its own, `step_s` apart."""

    def __init__(self, address: str, job: str, *, step_s: float = 0.0, **arguments: Any) -> None:
        self._step_s = step_s
        self._ended = threading.Event()
        self._client = feeder.connect(address)
        self._stream = self._client.stream("data", remainder="wrap", job=job, **arguments)
        self._thread = threading.Thread(target=self._train, name="trainer")
        self._thread.start()

    def _train(self) -> None:
        with contextlib.suppress(feeder.FeederError):  # it is closed
            for _ in self._stream:
                if self._ended.wait(self._step_s):
                    break

    def close(self) -> None:
        self._ended.set()
        self._client.close()
        self._thread.join()


@contextlib.contextmanager
def training(address: str, job: str, **arguments: Any) -> Iterator[None]:
    """A trainer of that job."""
    trainer = Trainer(address, job, **arguments)
    try:
        yield
    finally:
        trainer.close()


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.1)


def hears(worker: str) -> bool:
    """Whether a worker delivered chunks to a client that told it how it fares."""
    streams = describe(parse_address(worker)).streams
    return any(stream.HasField("report") and stream.chunks for stream in streams)


def finds(capsys: pytest.CaptureFixture[str], *workers: str, **limits: str) -> dict[str, Any]:
    """Its findings by job, which name these limits."""
    for worker in workers:
        wait_for(lambda worker=worker: hears(worker), f"no client reports to {worker}")  # type: ignore[misc]
    assert main(["doctor", ",".join(workers), "--seconds", str(SECONDS), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    findings = {finding["job"]: finding for finding in said["findings"]}
    assert {job: finding["limit"] for job, finding in findings.items()} == limits, json.dumps(said, indent=1)
    return findings


def large_jpeg(number: int) -> bytes:
    """A noisy picture of 2 megapixels, which takes some 40 ms to decode."""
    random = np.random.default_rng(number)
    pixels = random.integers(0, 256, (1024, 2048, 3), np.uint8)
    return bytes(simplejpeg.encode_jpeg(pixels, quality=80))


@pytest.fixture(scope="module")
def large_shards(tmp_path_factory: pytest.TempPathFactory, make_shards: Callable[..., Path]) -> Path:
    images = [large_jpeg(number) for number in range(4)]
    return make_shards(tmp_path_factory.mktemp("large") / "shards", images * 8, shards=2)


def test_storage_decode_and_cache(
    capsys: pytest.CaptureFixture[str],
    s3: Any,
    shards: Path,
    large_shards: Path,
    start_worker: Any,
    tmp_path: Path,
) -> None:
    # A fifth of the images fit into the cache.
    flags = ["--cache-bytes", "30MB", "--cache-dir", str(tmp_path / "cache"), "--warm", "--seek", "off"]
    cached = start_worker(large_shards, *flags).address
    decoded = start_worker(large_shards, "--seek", "off").address
    for path in shards.glob("train-*-of-?????"):
        s3.put(f"slow/{path.name}", path.read_bytes())
    stored = start_worker(s3.url("slow/train-*"), "--index-dir", str(tmp_path / "indexes")).address
    s3.faults(rate=1.0, kinds=["slow"], slow_s=0.5, only="GET")
    wait_for(lambda: describe(parse_address(cached)).cache.full, "the cache does not fill")

    with (
        training(cached, "caches", batch_size=4),
        training(decoded, "decodes", batch_size=4),
        training(stored, "reads", batch_size=8, image_size=32),
    ):
        limits = {"caches": "cache", "decodes": "decode", "reads": "storage"}
        found = finds(capsys, cached, decoded, stored, **limits)
    assert [found[job]["worker"] for job in limits] == [cached, decoded, stored]
    assert "more --cache-bytes" in found["caches"]["lift"][0]
    assert [words for words in found["decodes"]["lift"] if "--cache-bytes" in words]
    assert [words for words in found["decodes"]["lift"] if "seek points" in words]
    assert "--encoded-cache-bytes" in found["reads"]["lift"][0]


def test_wire_client_and_trainer(capsys: pytest.CaptureFixture[str], shards: Path, start_worker: Any) -> None:
    worker = start_worker(shards, "--threads", "4").address

    # Nobody trains.
    assert main(["doctor", worker, "--seconds", "1"]) == 0
    assert f"nothing is running: no stream on {worker}" in capsys.readouterr().out

    # 100 kB/s.
    with contextlib.closing(Proxy(worker)) as proxy:
        proxy.slow(0.04)
        with training(proxy.address, "sends", batch_size=8, image_size=64, transport="grpc"):
            found = finds(capsys, worker, sends="wire")
    assert "yuv420" in found["sends"]["lift"][0]

    # Room for one batch of one image, which is asked for when the one before was taken.
    with training(worker, "asks", batch_size=1, prefetch_bytes=1, image_size=16):
        found = finds(capsys, worker, asks="client")
    assert "prefetch" in found["asks"]["lift"][0]

    # Half a second to train on eight small images; and one of two workers does not answer.
    with training(worker, "trains", batch_size=8, image_size=32, step_s=0.5):
        finds(capsys, worker, trains="trainer")
        assert main(["doctor", f"{worker},127.0.0.1:1", "--seconds", "2"]) == 1
    said = capsys.readouterr()
    assert said.out.startswith("trains: the limit is TRAINER\n  consumer 0 waited for input ")
    assert "worker 127.0.0.1:1 does not answer" in said.err
