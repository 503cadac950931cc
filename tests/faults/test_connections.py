"""One worker's answers over several connections: each comes once, whichever of them breaks or is refused."""

from __future__ import annotations

import contextlib
import itertools
import queue
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from fault_proxy import Proxy

import feeder
from feeder.cli.status import describe
from feeder.errors import ConfigError
from feeder.spec import StreamSpec
from feeder.wire import FEED
from feeder.wire.address import parse_address
from feeder.wire.call import Call
from feeder.wire.channel import open_channel
from feeder.wire.codec import encode_request, parse_reply
from feeder.wire.headers import CallFailed
from feeder.wire.messages import ChunkRequest, Draining, Join, Open, Opened
from feeder.wire.opening import ONE_CALL

ARGUMENTS: dict[str, Any] = {"batch_size": 12, "image_size": 64, "seed": 9, "epochs": 6, "transport": "grpc"}
RECORDS = 120
ONE_CHUNK = 12 * 64 * 64 * 3
DEADLINE_S = 60.0

Digest = Callable[[Any], list[str]]


@pytest.fixture
def undisturbed(pair: Any, digest_batches: Digest) -> list[str]:
    with feeder.connect(pair[0].address).stream("data", **ARGUMENTS, connections=1) as stream:
        return digest_batches(stream)


@pytest.fixture
def proxy(pair: Any) -> Iterator[Proxy]:
    made = Proxy(pair[0].address)
    yield made
    made.close()


@pytest.fixture
def opened(pair: Any) -> Iterator[tuple[Any, Call, Opened]]:
    """A stream that is open by hand: the worker's address, its first call, and what the worker said."""
    address = parse_address(pair[0].address)
    with Call(address, FEED, user_agent="test") as call:
        call.send(opening_of(address, SMALL))
        said = parse_reply(call.read(call.receive() or 0))
        assert isinstance(said, Opened)
        yield address, call, said


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def only(stream: feeder.Stream) -> Any:
    (worker,) = stream.stats().workers.values()
    return worker


@pytest.mark.parametrize("connections", [1, 2, 4])
def test_the_batches_are_the_same_and_come_over_all_of_them(
    connections: int, proxy: Proxy, undisturbed: list[str], digest_batches: Digest
) -> None:
    with feeder.connect(proxy.address) as client:
        before = len(proxy.passed)
        with client.stream("data", **ARGUMENTS, connections=connections) as stream:
            batches = [next(stream)]
            until(lambda: only(stream).connections == connections)
            batches += list(stream)
            assert digest_batches(batches) == undisturbed
            assert only(stream).connections == connections
            totals = stream.ledger().totals
            assert (totals.delivered, totals.lost, totals.repeated) == (6 * RECORDS, 0, 0)
        feeds = [count for count in proxy.passed[before:] if count > ONE_CHUNK]
        assert 1 <= len(feeds) <= connections
        assert sum(feeds) >= 60 * ONE_CHUNK


def test_if_any_breaks_what_was_on_its_way_comes_again(
    pair: Any, undisturbed: list[str], digest_batches: Digest
) -> None:
    # Each is cut in its seventh chunk, at another moment than the others.
    proxy = Proxy(pair[0].address, cut_after_bytes=7 * ONE_CHUNK)
    try:
        with feeder.connect(proxy.address).stream("data", **ARGUMENTS, connections=3) as stream:
            assert digest_batches(stream) == undisturbed
            assert proxy.cuts > 2
            assert only(stream).reconnects > 2
            totals = stream.ledger().totals
            assert (totals.delivered, totals.lost, totals.repeated) == (6 * RECORDS, 0, 0)
    finally:
        proxy.close()


def test_where_the_worker_takes_no_more_it_is_enough(
    shards: Path, start_worker: Any, undisturbed: list[str], digest_batches: Digest
) -> None:
    """As many as there may be streams; these leave room for each other."""
    worker = start_worker(shards, "--max-streams", "1")
    with feeder.connect(worker.address).stream("data", **ARGUMENTS, connections=4) as stream:
        batches = [next(stream)]
        until(lambda: only(stream).connections == 2)
        assert digest_batches([*batches, *stream]) == undisturbed
        assert only(stream).reconnects == 0


@pytest.mark.parametrize("key", [b"", b"0123456789abcdef"])
def test_a_key_of_no_stream_joins_none(key: bytes, opened: tuple[Any, Call, Opened]) -> None:
    address, _, said = opened
    assert len(said.join) == 16
    with Call(address, FEED, user_agent="test") as call:
        call.send(encode_request(Join(key)))
        with pytest.raises(CallFailed, match="no live stream") as failure:
            call.receive()
    assert failure.value.code() is grpc.StatusCode.NOT_FOUND


def test_a_call_that_joined_takes_no_requests_and_ends_the_stream_with_it(
    opened: tuple[Any, Call, Opened],
) -> None:
    address, first, said = opened
    with Call(address, FEED, user_agent="test") as call:
        call.send(encode_request(Join(said.join)))
        assert parse_reply(call.read(call.receive() or 0)) == Opened(
            said.worker_id, said.max_outstanding, False, said.compressions, True
        )
        call.send(encode_request(ChunkRequest(1, 0, 0, (0,))))
        with pytest.raises(CallFailed, match="nothing but Join"):
            call.receive()
    with pytest.raises(CallFailed, match="nothing but Join"):
        first.receive()


@pytest.mark.parametrize("connections", [0, 9, True, 1.5])
def test_numbers_that_cannot_be(connections: Any, pair: Any) -> None:
    with feeder.connect(pair[0].address) as client, pytest.raises(ConfigError, match="connections must be"):
        client.stream("data", **ARGUMENTS, connections=connections)


# By hand, for what feeder's own client doesn't do.

SMALL = StreamSpec("data", global_batch=8, lanes=4, image_size=32)
LARGE = StreamSpec("data", global_batch=32, lanes=4, image_size=224)
LARGE_CHUNK = 32 * 224 * 224 * 3  # more than buffers between two processes of one host hold


def opening_of(address: Any, spec: StreamSpec) -> bytes:
    reply = describe(address)
    (fingerprint,) = {info.fingerprint for info in reply.datasets if info.name == "data"}
    return encode_request(Open("by hand", spec, fingerprint, pixel_fingerprint=reply.pixel_fingerprint))


def read(call: Call) -> Any:
    return parse_reply(call.read(call.receive() or 0))


def joined(address: Any, said: Opened) -> Call:
    call = Call(address, FEED, user_agent="test")
    try:
        call.send(encode_request(Join(said.join)))
        assert isinstance(read(call), Opened)
    except BaseException:
        call.close()
        raise
    return call


def test_a_stream_whose_other_connection_broke_does_not_end_well(opened: tuple[Any, Call, Opened]) -> None:
    """It has lost answers, perhaps: its client is told at once, and not after a time of silence."""
    address, first, said = opened
    joined(address, said).close()
    with pytest.raises(CallFailed, match="another connection, which carried answers") as failure:
        first.receive()
    assert failure.value.code() is grpc.StatusCode.CANCELLED


def test_a_worker_that_drains_waits_for_what_other_connections_send(shards: Path, start_worker: Any) -> None:
    worker = start_worker(shards)
    address = parse_address(worker.address)
    slots = tuple(range(32))
    with Call(address, FEED, user_agent="test") as first:
        first.send(opening_of(address, LARGE))
        said = read(first)
        with joined(address, said) as other:
            first.send(*(encode_request(ChunkRequest(number, 0, 0, slots)) for number in range(4)))
            assert select.select([other._socket], [], [], DEADLINE_S)[
                0
            ]  # it has one, which is too large to be sent unread
            got = [read(first) for _ in range(3)]
            worker.signal(signal.SIGTERM)
            assert isinstance(read(first), Draining)
            with pytest.raises(subprocess.TimeoutExpired):
                worker.wait(3)
            got.append(read(other))
            assert sorted(chunk.id for chunk in got) == [0, 1, 2, 3]
            assert {len(chunk.pixels) for chunk in got} == {LARGE_CHUNK}
            assert other.receive() is None
            assert first.receive() is None
    assert worker.wait() == 0


def test_connections_that_are_not_read_end_with_their_stream(shards: Path, start_worker: Any) -> None:
    """Who sends on them would keep a chunk each, and the place of a connection, for as long as the client
    likes: gRPC's answers pings by itself."""
    worker = start_worker(shards, "--max-streams", "2")
    address = parse_address(worker.address)
    slots = tuple(range(32))
    with contextlib.ExitStack() as stack:
        with Call(address, FEED, user_agent="test") as first:
            first.send(opening_of(address, LARGE))
            said = read(first)
            calls = []
            for _ in range(2):
                channel = stack.enter_context(open_channel(address))
                call = channel.stream_stream(FEED)(
                    iter([encode_request(Join(said.join))]), metadata=[ONE_CALL]
                )
                assert isinstance(parse_reply(next(call)), Opened)
                calls.append(call)
            first.send(*(encode_request(ChunkRequest(number, 0, 0, slots)) for number in range(3)))
            until(lambda: describe(address).stages[-1].here == 3)
        with Call(address, FEED, user_agent="test") as first:
            first.send(opening_of(address, LARGE))
            said = read(first)
            until(lambda: takes_another(address, said))


def takes_another(address: Any, said: Opened) -> bool:
    try:
        joined(address, said).close()
    except CallFailed as failure:
        if failure.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
            raise
        return False
    return True


def test_connections_by_grpc_leave_threads_to_others(shards: Path, start_worker: Any) -> None:
    worker = start_worker(shards, "--max-streams", "12")
    address = parse_address(worker.address)
    opening = opening_of(address, SMALL)
    silence: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    with open_channel(address) as channel:
        feed = channel.stream_stream(FEED)

        def call(request: bytes) -> tuple[Any, Opened]:
            requests = itertools.chain([request], iter(silence.get, b""))
            made = feed(requests, timeout=DEADLINE_S)
            said = parse_reply(next(made))
            assert isinstance(said, Opened)
            return made, said

        calls = [call(opening) for _ in range(11)]
        calls += [call(encode_request(Join(calls[0][1].join))) for _ in range(12)]
        assert describe(address).live_streams == 11
        for _ in calls:
            silence.put(b"")
        for made, _ in calls:
            assert list(made) == []
