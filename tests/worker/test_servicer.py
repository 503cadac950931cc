"""What one worker answers, and what it survives."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

import feeder
import feeder.client.report as report_module
from feeder.batch import ChunkMaker
from feeder.decode import open_decoder
from feeder.order import Order, SlotStatus
from feeder.records import Dataset
from feeder.wire import FEED, PROTOCOL, SERVICE
from feeder.wire.codec import report_to_proto
from feeder.wire.messages import Chunk, ChunkRequest, ClientReport, Failed, FailureKind, Open, Opened
from feeder.worker.daemon import REFLECTION_STREAMS

Make = Callable[..., Any]

BATCH = range(8)
IMAGE_BYTES = 32 * 32 * 3


def opened(feed: Any) -> Any:
    reply = feed.reply()
    assert isinstance(reply, Opened)
    return feed


def chunk(feed: Any) -> Chunk:
    reply = feed.reply()
    assert isinstance(reply, Chunk), reply
    return reply


def status_of(feed: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        feed.replies()
    error: Any = caught.value
    return error.code(), error.details()


@pytest.fixture(autouse=True)
def _worker_is_as_before(worker: Any) -> Any:
    """After each test no stream is left, and the worker has no more threads than its pools."""
    yield
    deadline_s = time.monotonic() + 20
    while worker.describe().live_streams:
        assert time.monotonic() < deadline_s, worker.log
        time.sleep(0.02)
    assert worker.process.poll() is None


def test_describe(worker: Any) -> None:
    reply = worker.describe()
    assert reply.version == feeder.__version__
    assert reply.threads == 2
    assert reply.max_streams == 4
    assert not reply.draining
    assert [(info.name, info.records, info.shards) for info in reply.datasets] == [
        ("train", 24, 1),
        ("bad", 24, 1),
    ]
    assert len({info.fingerprint for info in reply.datasets}) == 2
    assert reply.worker_id.split(":")[1] == str(worker.process.pid)


def test_health_and_reflection(channel: grpc.Channel) -> None:
    health = health_pb2_grpc.HealthStub(channel)
    for name in ("", SERVICE):
        reply = health.Check(health_pb2.HealthCheckRequest(service=name), timeout=10)
        assert reply.status == health_pb2.HealthCheckResponse.SERVING
    reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
    requests = [reflection_pb2.ServerReflectionRequest(list_services="")]
    (reply,) = reflection.ServerReflectionInfo(iter(requests), timeout=10)
    assert SERVICE in {service.name for service in reply.list_services_response.service}
    requests = [reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICE)]
    (reply,) = reflection.ServerReflectionInfo(iter(requests), timeout=10)
    assert reply.file_descriptor_response.file_descriptor_proto


def test_idle_reflection_leaves_threads_to_others(worker: Any, channel: grpc.Channel) -> None:
    silence: queue.SimpleQueue[None] = queue.SimpleQueue()
    reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
    idle = [reflection.ServerReflectionInfo(iter(silence.get, None)) for _ in range(30)]
    ended: queue.SimpleQueue[grpc.StatusCode] = queue.SimpleQueue()
    for call in idle:  # which of them come first is the network's choice
        call.add_done_callback(lambda ended_call: ended.put(ended_call.code()))
    assert worker.describe().threads == 2
    try:
        for _ in range(len(idle) - REFLECTION_STREAMS):
            assert ended.get(timeout=60) is grpc.StatusCode.RESOURCE_EXHAUSTED
    finally:
        for call in idle:
            call.cancel()
            silence.put(None)


def test_a_request_for_each_answer_at_the_limit(channel: grpc.Channel, open_feed: Make) -> None:
    """Whoever has an answer may ask anew at once, however many others are unanswered."""
    feed = open_feed(channel)
    reply = feed.reply()
    assert isinstance(reply, Opened)
    for number in range(reply.max_outstanding):
        feed.ask(number, [0])
    for number in range(reply.max_outstanding):
        chunk(feed)
        feed.ask(reply.max_outstanding + number, [0])
    for _ in range(reply.max_outstanding):
        chunk(feed)


def test_chunks_are_those_of_a_chunk_maker_here(
    shards: Any, channel: grpc.Channel, open_feed: Make, opening: Callable[..., Open]
) -> None:
    feed = opened(open_feed(channel))
    for number, taken in enumerate((0, 2, 4)):
        feed.ask(number, BATCH, epoch=3, taken=taken)
    feed.half_close()
    chunks = sorted(feed.replies(), key=lambda reply: reply.id)
    assert [reply.id for reply in chunks] == [0, 1, 2]
    decoder = open_decoder(1)
    with Dataset.open("train", [str(shards / "train")]) as dataset, contextlib.closing(decoder):
        maker = ChunkMaker(dataset, decoder, opening(channel).spec)
        for reply, taken in zip(chunks, (0, 2, 4), strict=True):
            out = np.empty((8, 32, 32, 3), np.uint8)
            made = maker.make(maker.fetch(3, taken, BATCH), out)
            assert reply.pixels == out.tobytes()
            assert reply.records.tolist() == made.records.tolist()
            assert reply.labels.tolist() == made.labels.tolist() == made.records.tolist()
            assert reply.status.tolist() == [SlotStatus.OWN] * 8
            assert reply.bad == ()


def test_asking_twice_gives_the_same_bytes(channel: grpc.Channel, open_feed: Make) -> None:
    feed = opened(open_feed(channel))
    feed.ask(1, [2, 3])
    feed.ask(1, [2, 3])
    first, second = chunk(feed), chunk(feed)
    assert first.pixels == second.pixels


def test_bad_records_are_named_and_replaced(worker: Any, channel: grpc.Channel, open_feed: Make) -> None:
    before = worker.describe().counters.bad_records
    feed = opened(open_feed(channel, dataset="bad", shuffle=False))
    feed.ask(1, [0, 1], taken=4)
    reply = chunk(feed)
    assert reply.records.tolist() == reply.labels.tolist() == [4, 0]
    assert reply.status.tolist() == [SlotStatus.OWN, SlotStatus.SUBSTITUTE]
    (bad,) = reply.bad
    assert (bad.dataset, bad.record, bad.shard, bad.index) == ("bad", 5, "part-00000-of-00001", 5)
    described = worker.describe()
    assert described.counters.bad_records == before + 1
    assert [info.record for info in described.quarantine] == [5]


def test_a_lane_without_a_good_record_says_so(worker: Any, channel: grpc.Channel, open_feed: Make) -> None:
    feed = opened(open_feed(channel, dataset="bad", shuffle=False, global_batch=24, lanes=24))
    feed.ask(1, [5])
    reply = feed.reply()
    assert isinstance(reply, Failed)
    assert reply.kind is FailureKind.BAD_RECORD
    assert reply.bad is not None
    assert "; and no other record of its lane is good: use a smaller batch" in reply.bad.reason
    assert "lane" not in worker.describe().quarantine[0].reason


def test_fail_and_mask(channel: grpc.Channel, open_feed: Make) -> None:
    feed = opened(open_feed(channel, dataset="bad", shuffle=False, on_bad="fail"))
    feed.ask(1, [0, 1], taken=4)
    reply = feed.reply()
    assert isinstance(reply, Failed)
    assert reply.kind is FailureKind.BAD_RECORD
    assert reply.bad is not None
    assert reply.bad.record == 5
    assert "part-00000-of-00001: record 5" in reply.message
    feed.ask(2, [0, 1], taken=2)
    assert chunk(feed).records.tolist() == [2, 3]  # the stream goes on
    masked = opened(open_feed(channel, dataset="bad", shuffle=False, remainder="pad", augment="eval"))
    masked.ask(1, [0, 1], taken=4)
    evaluated = chunk(masked)
    assert evaluated.status.tolist() == [SlotStatus.OWN, SlotStatus.BAD]
    assert evaluated.labels.tolist() == [4, -1]
    assert evaluated.pixels[IMAGE_BYTES:] == bytes(IMAGE_BYTES)


@pytest.mark.parametrize(
    ("slots", "epoch", "taken", "message"),
    [
        ([], 0, 0, "between 1 and 64 slots"),
        ([3, 2], 0, 0, "must ascend"),
        ([2, 2], 0, 0, "must ascend"),
        ([8], 0, 0, "slots"),
        ([0], 0, 1, "taken"),
        ([0], 0, 2**64 - 2, "taken"),
        ([0], 2**64 - 1, 0, "epoch"),
        ([2**32 - 1], 0, 0, "slots"),
    ],
)
def test_wrong_requests_are_answered_and_the_stream_goes_on(
    channel: grpc.Channel,
    open_feed: Make,
    slots: list[int],
    epoch: int,
    taken: int,
    message: str,
) -> None:
    feed = opened(open_feed(channel))
    feed.ask(1, slots, epoch, taken)
    reply = feed.reply()
    assert isinstance(reply, Failed)
    assert (reply.id, reply.kind) == (1, FailureKind.INVALID)
    assert message in reply.message
    feed.ask(2, [0])
    assert chunk(feed).id == 2


@pytest.mark.parametrize(
    ("message", "spec", "code", "details"),
    [
        (
            {},
            {"dataset": "nothing"},
            "NOT_FOUND",
            "'nothing' here; this worker serves 'train', 'bad'",
        ),
        ({"fingerprint": "0" * 64}, {}, "FAILED_PRECONDITION", "the client expects the data 000000000000"),
        ({"pixel_fingerprint": "other"}, {}, "FAILED_PRECONDITION", "the client expects the pixels other"),
        ({"protocol": PROTOCOL + 1}, {}, "UNIMPLEMENTED", "speaks protocol 2"),
        ({"consumer_count": 3}, {}, "INVALID_ARGUMENT", "divide"),
        ({"consumer_count": 2, "consumer_index": 2}, {}, "INVALID_ARGUMENT", "consumer_index"),
        ({"job": "j" * 300}, {}, "UNIMPLEMENTED", "job of an Open is longer than 256 characters"),
        ({}, {"dataset": "d" * 300}, "UNIMPLEMENTED", "dataset of an Open is longer than 256 characters"),
    ],
)
def test_refused_openings(
    channel: grpc.Channel,
    open_feed: Make,
    message: dict[str, Any],
    spec: dict[str, Any],
    code: str,
    details: str,
) -> None:
    got, text = status_of(open_feed(channel, message, **spec))
    assert got.name == code
    assert details in text


@pytest.mark.parametrize(
    "garbage",
    [b"", b"\xff" * 100, os.urandom(1000), b"\x0a\x02\x08", b"\x12\xff\xff\xff\xff\x0f", b"\x0a\x00"],
    ids=["empty", "ff", "random", "cut", "huge length", "empty open"],
)
@pytest.mark.parametrize("first", [True, False])
def test_garbage_ends_only_its_stream(
    channel: grpc.Channel, open_feed: Make, garbage: bytes, first: bool
) -> None:
    other = opened(open_feed(channel))
    if first:
        call = channel.stream_stream(FEED)(iter([garbage]), timeout=30)
        with pytest.raises(grpc.RpcError) as caught:
            list(call)
        code = caught.value.code()  # type: ignore[attr-defined]
    else:
        feed = opened(open_feed(channel))
        feed.send_bytes(garbage)
        code, _ = status_of(feed)
    assert code in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.INVALID_ARGUMENT)
    other.ask(1, [0])
    assert chunk(other).id == 1


def test_conversations_out_of_turn_end(channel: grpc.Channel, open_feed: Make, opening: Any) -> None:
    twice = opened(open_feed(channel))
    twice.send(opening(channel))
    code, text = status_of(twice)
    assert code is grpc.StatusCode.UNIMPLEMENTED
    assert "come once" in text
    early = open_feed(channel, None)
    call = channel.stream_stream(FEED)(iter([b"\x12\x02\x08\x01"]), timeout=30)
    with pytest.raises(grpc.RpcError, match="first message"):
        list(call)
    opened(early)


def test_a_request_with_far_too_many_slots_ends_the_stream(channel: grpc.Channel, open_feed: Make) -> None:
    feed = opened(open_feed(channel))
    feed.send(ChunkRequest(1, 0, 0, tuple(range(65))))
    code, text = status_of(feed)
    assert code is grpc.StatusCode.UNIMPLEMENTED
    assert "65 slots" in text


def test_a_message_beyond_the_limit_ends_the_stream(channel: grpc.Channel, open_feed: Make) -> None:
    feed = opened(open_feed(channel))
    feed.send_bytes(bytes(2 << 20))
    code, _ = status_of(feed)
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_too_many_outstanding_requests_end_the_stream(channel: grpc.Channel, open_feed: Make) -> None:
    """Answers of 1 GB that nobody fetches, so that none is sent."""
    feed = open_feed(channel, image_size=1024)
    reply = feed.reply()
    assert isinstance(reply, Opened)
    for number in range(reply.max_outstanding + 200):
        feed.ask(number, BATCH)
    time.sleep(0.1)
    code, text = status_of(feed)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert f"allowed {reply.max_outstanding}" in text


def test_max_streams(channel: grpc.Channel, open_feed: Make) -> None:
    feeds = [opened(open_feed(channel)) for _ in range(4)]
    code, text = status_of(open_feed(channel))
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert text == "stream 5 refused: --max-streams is 4"
    for feed in feeds:
        feed.ask(1, [0])
        assert chunk(feed).id == 1


def test_jobs(channel: grpc.Channel, open_feed: Make) -> None:
    job = {"job": "j", "consumer_count": 2}
    first = opened(open_feed(channel, job | {"session": "a"}))
    opened(open_feed(channel, job | {"session": "b", "consumer_index": 1}))
    code, text = status_of(open_feed(channel, job | {"session": "c"}))
    assert code is grpc.StatusCode.ALREADY_EXISTS
    assert "live session of consumer 0" in text
    code, text = status_of(open_feed(channel, job | {"session": "c"}, seed=8))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "seed: 7, 8" in text
    first.half_close()
    assert first.replies() == []
    opened(open_feed(channel, job | {"session": "c"}))


_KILLED_CLIENT = """
import queue, sys
from feeder.wire import FEED
from feeder.wire.address import parse_address
from feeder.wire.channel import open_channel
requests = queue.SimpleQueue()
call = open_channel(parse_address(sys.argv[1])).stream_stream(FEED)(iter(requests.get, None))
for line in sys.argv[2:]:
    requests.put(bytes.fromhex(line))
next(call)
print("opened", flush=True)
requests.get()
"""


def test_a_killed_client_leaves_nothing(worker: Any, channel: grpc.Channel, opening: Any) -> None:
    """SIGKILL in the middle of a stream whose answers nobody fetches: its place is free again soon."""
    from feeder.wire.codec import encode_request

    threads = worker.threads()
    messages = [opening(channel, image_size=512)] + [ChunkRequest(n, 0, 0, tuple(BATCH)) for n in range(50)]
    for _ in range(3):
        client = subprocess.Popen(
            [sys.executable, "-c", _KILLED_CLIENT, worker.address]
            + [encode_request(message).hex() for message in messages],
            stdout=subprocess.PIPE,
            cwd=os.getcwd(),
            env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        assert client.stdout is not None
        with client.stdout:
            assert client.stdout.readline() == b"opened\n"
            client.send_signal(signal.SIGKILL)
            client.wait()
        deadline_s = time.monotonic() + 20
        while worker.describe().live_streams:
            assert time.monotonic() < deadline_s, worker.log
            time.sleep(0.02)
    # The pool of calls may grow by a few; a leak would be one or two a call.
    assert worker.threads() <= threads + 5


def test_what_is_no_grpc_does_no_harm(worker: Any) -> None:
    host, _, port = worker.address.rpartition(":")
    for data in (b"GET / HTTP/1.1\r\n\r\n", os.urandom(5000), b""):
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(data)
    assert worker.describe().max_streams == 4


def test_fairness_and_order_are_not_one_streams_business(channel: grpc.Channel, open_feed: Make) -> None:
    """A stream that asks for much and fetches nothing does not keep another from its chunks."""
    greedy = opened(open_feed(channel, image_size=512))
    for number in range(200):
        greedy.ask(number, BATCH)
    modest = opened(open_feed(channel))
    order = Order(modest_spec(), 24)
    for number in range(10):
        modest.ask(number, BATCH)
        assert chunk(modest).records.tolist() == order.records(0, 0, np.arange(8)).tolist()
    greedy.close()


def modest_spec() -> Any:
    from feeder.spec import StreamSpec

    return StreamSpec(dataset="train", global_batch=8, lanes=4, image_size=32, seed=7)


def test_counters(worker: Any, channel: grpc.Channel, open_feed: Make) -> None:
    before = worker.describe().counters
    feed = opened(open_feed(channel))
    for number in range(3):
        feed.ask(number, BATCH)
    feed.half_close()
    assert len(feed.replies()) == 3
    after = worker.describe().counters
    assert after.images - before.images == 24
    assert after.chunks - before.chunks == 3
    assert after.bytes_sent - before.bytes_sent >= 24 * IMAGE_BYTES
    assert after.bytes_read > before.bytes_read
    assert after.read_s > before.read_s
    assert after.decode_s > before.decode_s
    assert after.idle_s > before.idle_s


def test_streams_stages_and_reports(worker: Any, channel: grpc.Channel, open_feed: Make) -> None:
    """Describe says who is served, what it was given and says of itself, and where its chunks' time went."""
    before = {stage.name: stage for stage in worker.describe().stages}
    assert list(before) == ["queue", "read", "ready", "make", "send"]
    feed = opened(
        open_feed(channel, {"session": "abc", "job": "j", "consumer_index": 1, "consumer_count": 2})
    )
    for number in (1, 2, 3):
        feed.ask(number, range(4, 8), taken=2 * number - 2)
        chunk(feed)
    report = ClientReport(steps=3, wait_s=0.5, ready=2, prefetch=4, images=24, workers=1)
    feed.send(ClientReport(), report)  # the newest counts
    described = until(
        worker, lambda reply: reply.streams[0].report.steps == 3 and reply.streams[0].chunks == 3
    )
    (stream,) = described.streams
    assert (stream.job, stream.session, stream.consumer_index, stream.consumer_count) == ("j", "abc", 1, 2)
    assert (stream.chunks, stream.images, stream.owed) == (3, 12, 0)
    assert (stream.epoch, stream.taken, stream.arena) == (0, 4, False)
    assert stream.spec.dataset == "train"
    assert stream.report == report_to_proto(report)
    assert 0 <= stream.report_age_s <= stream.age_s
    assert stream.peer
    for stage in described.stages:
        assert stage.chunks - before[stage.name].chunks == 3, stage.name
        assert sum(stage.buckets) == stage.chunks
        assert len(stage.buckets) == len(stage.bounds_s) + 1
        assert list(stage.bounds_s) == sorted(stage.bounds_s)
        assert stage.total_s >= before[stage.name].total_s
    feed.close()
    until(worker, lambda reply: not reply.streams)


@pytest.mark.parametrize("transport", ["shm", "grpc"])
def test_clients_report(worker: Any, monkeypatch: pytest.MonkeyPatch, transport: Any) -> None:
    monkeypatch.setattr(report_module, "REPORT_S", 0.05)
    with feeder.connect(worker.address).stream(
        "train", batch_size=8, image_size=32, epochs=2, job="reports", transport=transport
    ) as stream:
        for _ in range(4):
            next(stream)
        described = until(worker, lambda reply: reply.streams[0].report.steps == 4)
        (info,) = described.streams
        assert (info.job, info.arena) == ("reports", transport == "shm")
        assert info.report.images == 32
        assert info.report.workers == 1
        assert info.report.wait_s >= stream.stats().wait_s > 0
        assert info.report.prefetch >= info.report.ready
        assert (info.report.land_s > 0, info.report.bytes_copied > 0) == (True, transport == "grpc")
        assert info.images >= 32


def test_a_report_that_is_none_ends_the_stream(channel: grpc.Channel, open_feed: Make) -> None:
    feed = opened(open_feed(channel))
    feed.send(ClientReport(wait_s=-1.0))
    code, details = status_of(feed)
    assert code is grpc.StatusCode.UNIMPLEMENTED
    assert "a report came whose wait_s is -1.0" in details


def until(worker: Any, condition: Callable[[Any], bool]) -> Any:
    """What the worker says of itself once something is true of it."""
    deadline_s = time.monotonic() + 20
    while not condition(reply := worker.describe()):
        assert time.monotonic() < deadline_s, reply
        time.sleep(0.02)
    return reply
