"""Real worker processes over a small data set, and a client made of bare gRPC calls."""

from __future__ import annotations

import contextlib
import io
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from PIL import Image

from feeder.records import Dataset
from feeder.records.tfrecord import frame
from feeder.spec import StreamSpec
from feeder.wire import DESCRIBE, FEED
from feeder.wire.address import parse_address
from feeder.wire.channel import open_channel
from feeder.wire.codec import encode_request, parse_reply
from feeder.wire.messages import ChunkRequest, Open, Reply
from feeder.wire.v1 import feeder_pb2 as pb

ROOT = Path(__file__).resolve().parents[2]
START_S = 60.0
DEADLINE_S = 30.0

RECORDS = 24
BAD_RECORD = 5
"""Of the data set "bad", whose other records are those of "train"."""


def _varint(value: int) -> bytes:
    return bytes([value]) if value < 0x80 else bytes([value & 0x7F | 0x80]) + _varint(value >> 7)


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _example(image: bytes, label: int) -> bytes:
    features = {
        "image/encoded": _field(1, _field(1, image)),
        "image/class/label": _field(3, _field(1, _varint(label))),
    }
    entries = (_field(1, _field(1, key.encode()) + _field(2, value)) for key, value in features.items())
    return _field(1, b"".join(entries))


def _jpeg(number: int) -> bytes:
    pixels = np.random.default_rng(number).integers(0, 256, (12, 15, 3), np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).resize((60, 48)).save(out, "JPEG", quality=90)
    return out.getvalue()


@pytest.fixture(scope="session")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the data sets "train" and "bad", indexed."""
    root = tmp_path_factory.mktemp("shards")
    for name in ("train", "bad"):
        (root / name).mkdir()
        with open(root / name / "part-00000-of-00001", "wb") as file:
            for number in range(RECORDS):
                image = b"no image" if (name, number) == ("bad", BAD_RECORD) else _jpeg(number)
                payload = _example(image, number + 1)
                before, after, _ = frame(payload)
                file.write(before + payload + after)
        Dataset.open(name, [str(root / name)]).close()
    return root


class WorkerProcess:
    """A `feeder worker`, its first line read."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "feeder", "worker", *arguments],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.log: list[str] = []
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()
        timer = threading.Timer(START_S, self.process.kill)
        timer.start()
        try:
            self.ready_line = self.process.stdout.readline()
        finally:
            timer.cancel()
            timer.join()

    @property
    def address(self) -> str:
        match = re.fullmatch(r"feeder worker listening on (\S+)\n", self.ready_line)
        assert match, (self.ready_line, self.log)
        return match.group(1)

    def channel(self) -> grpc.Channel:
        return open_channel(parse_address(self.address))

    def describe(self) -> pb.DescribeReply:
        with self.channel() as channel:
            return describe(channel)

    def threads(self) -> int:
        """Its threads without gRPC's, which have names of their own: of those some begin when the machine is
        busy, and end half a minute later."""
        tasks = Path(f"/proc/{self.process.pid}/task")
        name = (tasks / str(self.process.pid) / "comm").read_text()
        found = 0
        for task in tasks.iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended by now
                found += (task / "comm").read_text() in (name, "feeder-decode\n")
        return found

    def wait(self) -> tuple[int, str]:
        """Exit code, and what came on stdout after the first line."""
        assert self.process.stdout is not None
        code = self.process.wait(DEADLINE_S)
        self._reader.join(DEADLINE_S)
        rest = self.process.stdout.read()
        self.process.stdout.close()
        return code, rest

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        code, rest = self.wait()
        assert rest == ""
        return code

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join(DEADLINE_S)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as stderr:
            self.log.extend(line.rstrip("\n") for line in stderr)


StartWorker = Callable[..., WorkerProcess]


def _starter(shards: Path) -> Iterator[StartWorker]:
    started: list[WorkerProcess] = []

    def start(*arguments: str, listen: str = "127.0.0.1:0") -> WorkerProcess:
        datasets = [f"--dataset={name}={shards / name}" for name in ("train", "bad")]
        started.append(WorkerProcess(*datasets, "--listen", listen, "--threads", "2", *arguments))
        return started[-1]

    yield start
    for worker in started:
        worker.kill()


@pytest.fixture
def start_worker(shards: Path) -> Iterator[StartWorker]:
    """Starts workers that are killed after the test."""
    yield from _starter(shards)


@pytest.fixture(scope="module")
def start_shared_worker(shards: Path) -> Iterator[StartWorker]:
    """Starts workers that the tests of a module share, killed after them."""
    yield from _starter(shards)


@pytest.fixture(scope="module")
def worker(shards: Path, request: pytest.FixtureRequest) -> Iterator[WorkerProcess]:
    """A worker that the tests of a module share: what one does to it must not harm the next. It has the
    flags WORKER_FLAGS of the module, if any."""
    flags: Sequence[str] = getattr(request.module, "WORKER_FLAGS", ("--max-streams", "4"))
    for start in _starter(shards):
        worker = start(*flags)
        yield worker
        assert worker.stop() == 0, worker.log


def describe(channel: grpc.Channel) -> pb.DescribeReply:
    method = channel.unary_unary(
        DESCRIBE,
        request_serializer=pb.DescribeRequest.SerializeToString,
        response_deserializer=pb.DescribeReply.FromString,
    )
    reply = method(pb.DescribeRequest(), timeout=DEADLINE_S)
    assert isinstance(reply, pb.DescribeReply)
    return reply


class Feed:
    """One Feed call; iterates replies. Close it, or use it as a context manager."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._call: Any = channel.stream_stream(FEED)(iter(self._requests.get, None), timeout=4 * DEADLINE_S)

    def send_bytes(self, data: bytes) -> None:
        self._requests.put(data)

    def send(self, *messages: Open | ChunkRequest) -> None:
        for message in messages:
            self._requests.put(encode_request(message))

    def ask(self, number: int, slots: Sequence[int], epoch: int = 0, taken: int = 0) -> None:
        self.send(ChunkRequest(number, epoch, taken, tuple(slots)))

    def half_close(self) -> None:
        self._requests.put(None)

    def reply(self) -> Reply:
        return parse_reply(next(self._call))

    def replies(self) -> list[Reply]:
        """All replies until the end of the call."""
        return [parse_reply(data) for data in self._call]

    def close(self) -> None:
        self._requests.put(None)
        self._call.cancel()

    def __enter__(self) -> Feed:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@pytest.fixture
def channel(worker: WorkerProcess) -> Iterator[grpc.Channel]:
    with worker.channel() as channel:
        yield channel


OpenFeed = Callable[..., Feed]


@pytest.fixture
def opening() -> Callable[..., Open]:
    """Builds the Open for a channel: of "train", batch 8, with changes to the spec or to the message."""

    def build(channel: grpc.Channel, message: dict[str, Any] | None = None, **spec: Any) -> Open:
        described = describe(channel)
        values = {"dataset": "train", "global_batch": 8, "lanes": 4, "image_size": 32, "seed": 7} | spec
        fingerprints = {info.name: info.fingerprint for info in described.datasets}
        defaults = {
            "session": "s",
            "fingerprint": fingerprints.get(values["dataset"], ""),
            "pixel_fingerprint": described.pixel_fingerprint,
        }
        return Open(spec=StreamSpec(**values), **(defaults | (message or {})))

    return build


@pytest.fixture
def open_feed(opening: Callable[..., Open]) -> Iterator[OpenFeed]:
    """Opens streams, which are closed after the test."""
    feeds: list[Feed] = []

    def open_(channel: grpc.Channel, message: dict[str, Any] | None = None, **spec: Any) -> Feed:
        feeds.append(Feed(channel))
        feeds[-1].send(opening(channel, message, **spec))
        return feeds[-1]

    yield open_
    for feed in feeds:
        feed.close()
