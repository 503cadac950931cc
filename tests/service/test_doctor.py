"""`feeder doctor` over real workers and trainers, with each stage the limit in turn; `feeder top` and the
status page say the same.

Every situation is extreme, so that a busy machine changes figures and no verdict.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
import threading
import time
import urllib.request
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
from feeder.worker.access import new_token

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


def stands_still(worker: str, job: str) -> bool:
    """Whether a job is given nothing for two seconds."""
    before = chunks_of(worker, job)
    time.sleep(2)
    return chunks_of(worker, job) == before


def chunks_of(worker: str, job: str) -> int:
    """Chunks that a worker gave to a job whose client told it how it fares."""
    streams = describe(parse_address(worker)).streams
    return sum(stream.chunks for stream in streams if stream.job == job and stream.HasField("report"))


def finds(capsys: pytest.CaptureFixture[str], *workers: str, **limits: str) -> dict[str, Any]:
    """Its findings by job, which name these limits."""
    for job in limits:
        wait_for(lambda job=job: any(chunks_of(worker, job) for worker in workers), f"{job} tells nothing")  # type: ignore[misc]
    assert main(["doctor", ",".join(workers), "--seconds", str(SECONDS), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    findings = {finding["job"]: finding for finding in said["findings"]}
    assert {job: finding["limit"] for job, finding in findings.items()} == limits, json.dumps(said, indent=1)
    words = {finding["sentence"].split(":")[0] for finding in findings.values()}
    wait_for(lambda: all(word in top(capsys, workers) for word in words), f"feeder top does not say {words}")
    return findings


def top(capsys: pytest.CaptureFixture[str], workers: tuple[str, ...]) -> str:
    """What `feeder top` shows, without frames."""
    assert main(["top", ",".join(workers), "--once"]) == 0
    return re.sub(r"[\s│]+", " ", capsys.readouterr().out)


def page_says(worker: Any) -> dict[str, str]:
    """The limit of each job, as the worker's status page has it now."""
    (url,) = re.findall(r"health at (\S+)", worker.log.read_text())
    with urllib.request.urlopen(f"{url}/events", timeout=PATIENCE_S) as events:
        data = (json.loads(line.removeprefix(b"data: ")) for line in events if line.startswith(b"data: {"))
        return {job: verdict["limit"] for verdict in next(data)["verdicts"] for job in verdict["jobs"]}


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
    page = start_worker(large_shards, "--seek", "off", "--http", "127.0.0.1:0")
    decoded = page.address
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
        wait_for(lambda: page_says(page) == {"decodes": "decode"}, "the page does not say so")
    assert [found[job]["worker"] for job in limits] == [cached, decoded, stored]
    assert "more --cache-bytes" in found["caches"]["lift"][0]
    assert [words for words in found["decodes"]["lift"] if "--cache-bytes" in words]
    assert [words for words in found["decodes"]["lift"] if "seek points" in words]
    assert "--encoded-cache-bytes" in found["reads"]["lift"][0]


def test_client_and_trainer(capsys: pytest.CaptureFixture[str], shards: Path, start_worker: Any) -> None:
    worker = start_worker(shards, "--threads", "4").address

    # Nobody trains.
    assert main(["doctor", worker, "--seconds", "1"]) == 0
    assert f"nothing is running: no stream on {worker}" in capsys.readouterr().out
    assert "Nobody is connected" in top(capsys, (worker,))

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


def test_jobs_of_one_worker_behind_different_wires(
    capsys: pytest.CaptureFixture[str], shards: Path, start_worker: Any
) -> None:
    worker = start_worker(shards, "--threads", "2", "--http", "127.0.0.1:0")
    with (
        contextlib.closing(Proxy(worker.address)) as proxy,
        training(worker.address, "trains", batch_size=8, image_size=32, step_s=0.5),
        # Batches of 15 MB, in chunks that are too large to be in buffers of the kernel.
        training(proxy.address, "sends", batch_size=64, image_size=280, transport="grpc"),
    ):
        wait_for(lambda: chunks_of(worker.address, "sends") > 0, "nothing comes")
        # 100 kB/s: no chunk gets through between two looks.
        proxy.slow(0.04)
        wait_for(lambda: stands_still(worker.address, "sends"), "chunks still come through")
        found = finds(capsys, worker.address, sends="wire", trains="trainer")
        wait_for(lambda: page_says(worker) == {"sends": "wire", "trains": "trainer"}, "the page says else")
    assert "yuv420" in found["sends"]["lift"][0]
    assert found["trains"]["worker"] == ""


def test_the_rate_of_a_token(
    capsys: pytest.CaptureFixture[str],
    shards: Path,
    start_worker: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    token, entry = new_token("slow")
    for name, text in (("tokens.toml", f"{entry}images-per-s = 40\n"), ("token", token)):
        (tmp_path / name).touch(0o600)
        (tmp_path / name).write_text(text)
    monkeypatch.setenv("FEEDER_TOKEN_FILE", str(tmp_path / "token"))
    worker = start_worker(shards, "--tokens", str(tmp_path / "tokens.toml")).address
    with training(worker, "paced", batch_size=8, image_size=32):
        found = finds(capsys, worker, paced="token")
    assert "images-per-s" in found["paced"]["lift"][0]
