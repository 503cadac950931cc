"""Many clients on one worker: each gets its part, whoever asks for more or never listens."""

from __future__ import annotations

import contextlib
import io
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
import pytest
from PIL import Image

import feeder
from feeder.cli.status import describe
from feeder.client import trouble
from feeder.errors import Refused
from feeder.wire import FEED
from feeder.wire.address import parse_address
from feeder.wire.channel import open_channel
from feeder.wire.codec import encode_request, parse_reply
from feeder.wire.messages import Open, Opened

CLIENTS = 50
IMAGES_EACH = 60
DEADLINE_S = 120.0
IMAGE_BYTES = 32 * 32 * 3


@pytest.fixture(scope="module")
def heavy(tmp_path_factory: pytest.TempPathFactory, make_shards: Callable[..., Path]) -> Path:
    """Shards of pictures that cost a worker more than a client's part of the work does."""

    def jpeg(number: int) -> bytes:
        pixels = np.random.default_rng(number).integers(0, 256, (320, 320, 3), np.uint8)
        out = io.BytesIO()
        Image.fromarray(pixels).save(out, "JPEG", quality=75)
        return out.getvalue()

    return make_shards(tmp_path_factory.mktemp("heavy") / "shards", [jpeg(number) for number in range(96)])


def served(streams: Sequence[feeder.Stream], images: int) -> list[int]:
    """Images that each stream gets while all of them together get so many, from when each has its first."""
    counts = [0] * len(streams)
    begun, enough = threading.Barrier(len(streams) + 1), threading.Event()

    def read(number: int) -> None:
        next(streams[number])
        begun.wait(DEADLINE_S)
        for batch in streams[number]:
            counts[number] += len(batch.labels)
            if enough.is_set():
                return
            if sum(counts) >= images:
                enough.set()

    threads = [threading.Thread(target=read, args=(number,)) for number in range(len(streams))]
    for thread in threads:
        thread.start()
    begun.wait(DEADLINE_S)
    assert enough.wait(DEADLINE_S)
    found = list(counts)
    for thread in threads:
        thread.join(DEADLINE_S)
    return found


def jain(counts: Sequence[int]) -> float:
    """Jain's index of fairness (Jain, Chiu and Hawe 1984): 1 where all have the same, 1/n for one of n."""
    return float(sum(counts) ** 2 / (len(counts) * sum(count**2 for count in counts)))


@contextlib.contextmanager
def streams_of(address: str, settings: Sequence[dict[str, Any]]) -> Iterator[list[feeder.Stream]]:
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(feeder.connect(address).stream("data", image_size=32, **one))
            for one in settings
        ]


def test_fifty_clients_get_the_same_whatever_they_ask_for_at_a_time(
    heavy: Path, start_worker: Callable[..., Any]
) -> None:
    worker = start_worker(heavy, "--seek", "off")
    settings = [
        {"batch_size": (3, 12)[number % 2], "seed": number, "prefetch_bytes": 24 * IMAGE_BYTES}
        for number in range(CLIENTS)
    ]
    with streams_of(worker.address, settings) as streams:
        counts = served(streams, CLIENTS * IMAGES_EACH)
    assert jain(counts) >= 0.95, counts


def test_a_job_of_eight_streams_gets_no_more_than_a_job_of_one(
    heavy: Path, start_worker: Callable[..., Any]
) -> None:
    worker = start_worker(heavy, "--seek", "off")
    eight: list[dict[str, Any]] = [
        {"job": "eight", "consumer_count": 8, "consumer_index": number, "batch_size": 4}
        for number in range(8)
    ]
    one: dict[str, Any] = {"job": "one", "batch_size": 4, "seed": 1}
    settings = [stream | {"prefetch_bytes": 64 * IMAGE_BYTES} for stream in [*eight, one]]
    with streams_of(worker.address, settings) as streams:
        counts = served(streams, 1600)
    assert 0.4 <= counts[-1] / sum(counts) <= 0.6, counts


IDLE = 256
IDLE_BYTES = 256 << 10
"""Of memory, for a stream that asks for nothing: two threads, and what gRPC has of it. 86 kB were seen."""


def test_idle_streams_cost_little_and_one_too_many_is_refused(
    shards: Path, start_worker: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trouble, "REFUSAL_GRACE_S", 0.3)
    worker = start_worker(shards, "--max-streams", str(IDLE))
    process = psutil.Process(worker.process.pid)
    described = describe(parse_address(worker.address))
    opening = Open(
        "idle",
        feeder.StreamSpec("data", global_batch=8, lanes=4),
        described.datasets[0].fingerprint,
        described.pixel_fingerprint,
    )
    ended = threading.Event()

    def requests() -> Iterator[bytes]:
        yield encode_request(opening)
        ended.wait(DEADLINE_S)

    with open_channel(parse_address(worker.address)) as channel:
        before = process.memory_info().rss
        calls = [channel.stream_stream(FEED)(requests(), timeout=DEADLINE_S) for _ in range(IDLE)]
        try:
            for call in calls:
                assert isinstance(parse_reply(next(call)), Opened)
            assert process.memory_info().rss - before <= IDLE * IDLE_BYTES
            with pytest.raises(grpc.RpcError, match="stream 257 refused: --max-streams is 256"):
                next(channel.stream_stream(FEED)(requests(), timeout=DEADLINE_S))
            with (
                feeder.connect(worker.address).stream("data", batch_size=12, image_size=32) as stream,
                pytest.raises(Refused, match="stream 257 refused: --max-streams is 256"),
            ):
                next(stream)
        finally:
            ended.set()
            for call in calls:
                call.cancel()
