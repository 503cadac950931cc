"""One port for all: who is served by the front, who by gRPC behind it, and what neither minds."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ConnectionTerminated, PingAckReceived
from hyperframe.frame import (
    DataFrame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from feeder.wire import FEED
from feeder.wire.address import Address, parse_address
from feeder.wire.call import Call
from feeder.wire.channel import SERVER_OPTIONS
from feeder.wire.codec import encode_request, parse_reply
from feeder.wire.frames import PREFACE
from feeder.wire.headers import CallFailed
from feeder.wire.messages import Chunk, ChunkRequest, Open, Opened
from feeder.wire.opening import ONE_CALL
from feeder.worker import front as front_module
from feeder.worker import relay
from feeder.worker.front import Front

DEADLINE_S = 30.0
POOLS = 5
"""Threads and descriptors by which pools may grow."""

ANY_PORT = Address("tcp", "127.0.0.1", 0)
Make = Callable[..., Any]


def read(call: Call) -> Any:
    size = call.receive()
    assert size is not None
    return parse_reply(call.read(size))


def served_once(worker: Any, first: Open) -> None:
    """A stream from beginning to end: files and threads that stay are there afterwards."""
    with Call(parse_address(worker.address), FEED, user_agent="test") as call:
        call.send(encode_request(first))
        call.send(encode_request(ChunkRequest(1, 0, 0, tuple(range(8)))))
        call.done_sending()
        assert isinstance(read(call), Opened)
        assert isinstance(read(call), Chunk)
        assert call.receive() is None


def until(condition: Callable[[], Any], seconds: float = DEADLINE_S) -> None:
    deadline_s = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


@pytest.fixture(autouse=True)
def _worker_is_as_before(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "worker" in request.fixturenames:
        worker = request.getfixturevalue("worker")
        until(lambda: worker.describe().live_streams == 0)


# Who serves what.


@pytest.mark.parametrize("mark", [True, False], ids=["one call", "any"])
def test_a_plain_grpc_client_begins_with_feed(
    worker: Any, channel: grpc.Channel, opening: Callable[..., Open], mark: bool
) -> None:
    first = encode_request(opening(channel))
    chunks = []
    for number in range(2):
        requests = iter([first, encode_request(ChunkRequest(7, 0, 0, tuple(range(8))))])
        with grpc.insecure_channel(worker.address, (("grpc.use_local_subchannel_pool", number),)) as fresh:
            metadata = [ONE_CALL] if mark else []
            call = fresh.stream_stream(FEED)(requests, metadata=metadata, timeout=DEADLINE_S)
            opened, chunk = map(parse_reply, call)
            assert call.code() is grpc.StatusCode.OK
        assert isinstance(opened, Opened)
        assert isinstance(chunk, Chunk)
        chunks.append(bytes(chunk.pixels))
    assert chunks[0] == chunks[1]


def test_a_connection_may_do_all_things_at_once(channel: grpc.Channel, open_feed: Make) -> None:
    """The streams of grpcio's channel, all on one connection, after Describe."""
    health = health_pb2_grpc.HealthStub(channel)
    watch = health.Watch(health_pb2.HealthCheckRequest(service=""), timeout=DEADLINE_S)
    assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
    feeds = [open_feed(channel) for _ in range(3)]
    for feed in feeds:
        assert isinstance(feed.reply(), Opened)
    for feed in feeds:
        feed.ask(1, range(8))
        feed.half_close()
    replies = [feed.replies() for feed in feeds]
    assert all(len(chunks) == 1 for chunks in replies)
    assert len({bytes(chunk.pixels) for (chunk,) in replies}) == 1
    watch.cancel()


def test_both_servers_send_the_same(
    worker: Any, channel: grpc.Channel, open_feed: Make, opening: Any
) -> None:
    behind = open_feed(channel)
    assert isinstance(behind.reply(), Opened)
    with Call(parse_address(worker.address), FEED, user_agent="test") as call:
        call.send(encode_request(opening(channel)))
        assert isinstance(read(call), Opened)
        for taken in (0, 2, 4):
            behind.ask(taken, range(8), taken=taken)
            call.send(encode_request(ChunkRequest(taken, 0, taken, tuple(range(8)))))
            ours, theirs = read(call), behind.reply()
            assert bytes(ours.pixels) == bytes(theirs.pixels)
            assert ours.records.tolist() == theirs.records.tolist()
        call.done_sending()
        assert call.receive() is None


def test_refusals_are_those_of_grpc(worker: Any, channel: grpc.Channel, opening: Callable[..., Open]) -> None:
    def refused(requests: list[bytes]) -> tuple[Any, str]:
        with Call(parse_address(worker.address), FEED, user_agent="test") as call:
            for request in requests:
                call.send(request)
            call.done_sending()
            with pytest.raises(CallFailed) as failure:
                list(iter(call.receive, None))
        return failure.value.code(), failure.value.details()

    def refused_behind(requests: list[bytes]) -> tuple[Any, str]:
        with pytest.raises(grpc.RpcError) as failure:
            list(channel.stream_stream(FEED)(iter(requests), timeout=DEADLINE_S))
        error: Any = failure.value
        return error.code(), error.details()

    for requests in (
        [encode_request(opening(channel, dataset="no 100 % ü\nthing"))],
        [encode_request(opening(channel, {"fingerprint": "0" * 64}))],
        [b"\xff" * 100],
        [encode_request(ChunkRequest(1, 0, 0, (0,)))],
        [],
    ):
        assert refused(requests) == refused_behind(requests)
    # grpcio's own limit has words of its own.
    assert refused([bytes(2 << 20)])[0] is refused_behind([bytes(2 << 20)])[0]


def test_one_stream_too_many(worker: Any, channel: grpc.Channel, opening: Callable[..., Open]) -> None:
    first = encode_request(opening(channel))
    calls = [Call(parse_address(worker.address), FEED, user_agent="test") for _ in range(5)]
    try:
        for call in calls[:4]:
            call.send(first)
            assert isinstance(read(call), Opened)
        calls[4].send(first)
        with pytest.raises(CallFailed, match="--max-streams is 4") as failure:
            calls[4].receive()
        assert failure.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    finally:
        for call in calls:
            call.close()


# Who leaves without a word.

_STREAMS = """
import sys
from feeder.wire import FEED
from feeder.wire.address import parse_address
from feeder.wire.call import Call
call = Call(parse_address(sys.argv[1]), FEED, user_agent="test")
for line in sys.argv[2:]:
    call.send(bytes.fromhex(line))
call.receive()
print("opened", flush=True)
input()
"""


def test_a_killed_client_leaves_nothing(worker: Any, channel: grpc.Channel, opening: Any) -> None:
    """In the middle of answers that it does not read, so that the worker waits for its socket."""
    process = psutil.Process(worker.process.pid)
    served_once(worker, opening(channel))
    fds, threads = process.num_fds(), worker.threads()
    requests = [ChunkRequest(n, 0, 0, tuple(range(8))) for n in range(50)]
    messages = [encode_request(message).hex() for message in (opening(channel, image_size=512), *requests)]
    for _ in range(2):
        client = subprocess.Popen(
            [sys.executable, "-c", _STREAMS, worker.address, *messages],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        assert client.stdin is not None
        assert client.stdout is not None
        with client.stdin, client.stdout:
            assert client.stdout.readline() == b"opened\n"
            client.send_signal(signal.SIGKILL)
            client.wait()
        until(lambda: worker.describe().live_streams == 0)
    until(lambda: process.num_fds() <= fds + POOLS)
    until(lambda: worker.threads() <= threads + POOLS)


def _mutated(chance: random.Random, data: bytes) -> bytes:
    out = bytearray(data)
    for _ in range(chance.randint(0, 6)):
        at = chance.randrange(len(out))
        kind = chance.randrange(4)
        if kind == 0:
            out[at] = chance.randrange(256)
        elif kind == 1:
            del out[at : at + chance.randint(1, 20)]
        elif kind == 2:
            out[at:at] = chance.randbytes(chance.randint(1, 20))
        else:
            out[at:at] = out[at : at + 60]
        out = out or bytearray(b"\0")
    return bytes(out)


def _conversation(chance: random.Random, opening: bytes) -> bytes:
    """What might come on a connection: parts of it as they should be, in an order that makes little sense."""
    http = H2Connection(H2Configuration(client_side=True))
    http.initiate_connection()
    headers = {":method": "POST", ":scheme": "http", ":path": FEED, ":authority": "x"}
    headers |= {"te": "trailers", "content-type": "application/grpc"} | dict([ONE_CALL])
    http.send_headers(1, list(headers.items()))
    start = http.data_to_send()
    message = b"\0" + len(opening).to_bytes(4, "big") + opening
    request = encode_request(ChunkRequest(1, 0, 0, tuple(range(8))))
    frames = [
        DataFrame(1, message).serialize(),
        DataFrame(1, b"\0" + len(request).to_bytes(4, "big") + request).serialize(),
        DataFrame(1, b"", flags=["END_STREAM"]).serialize(),
        DataFrame(3, b"x" * 100).serialize(),
        HeadersFrame(3, chance.randbytes(20), flags=["END_HEADERS"]).serialize(),
        HeadersFrame(1, b"\x88", flags=["END_HEADERS", "END_STREAM"]).serialize(),
        HeadersFrame(5, b"", flags=[]).serialize(),
        RstStreamFrame(chance.choice([1, 3]), error_code=8).serialize(),
        SettingsFrame(0, {4: chance.choice([0, 5, 2**31 - 1]), 5: 16384}).serialize(),
        SettingsFrame(0, flags=["ACK"]).serialize(),
        WindowUpdateFrame(chance.choice([0, 1]), window_increment=chance.choice([1, 2**31 - 1])).serialize(),
        PingFrame(0, b"12345678").serialize() * chance.choice([1, 50]),
        PriorityFrame(1, depends_on=chance.choice([0, 1])).serialize(),
        chance.randbytes(30),
    ]
    begin = start if chance.random() < 0.9 else PREFACE
    return begin + b"".join(chance.choice([frames[0], *frames]) for _ in range(chance.randint(1, 12)))


def test_garbage_and_mutations_leave_the_worker_as_it_was(
    worker: Any, channel: grpc.Channel, opening: Callable[..., Open]
) -> None:
    process = psutil.Process(worker.process.pid)
    host, _, port = worker.address.rpartition(":")
    first = encode_request(opening(channel))
    served_once(worker, opening(channel))
    fds, threads = process.num_fds(), worker.threads()
    chance = random.Random(20261130)
    for _ in range(150):
        data = _conversation(chance, first)
        if chance.random() < 0.7:
            data = _mutated(chance, data)
        with socket.create_connection((host, int(port)), timeout=DEADLINE_S) as connection:
            try:
                while data:
                    size = chance.choice([1, 9, 100, 10_000])
                    connection.sendall(data[:size])
                    data = data[size:]
                if chance.random() < 0.3:
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(65536):
                        pass
            except ConnectionError:
                pass  # it may well not listen to the end
    until(lambda: worker.describe().live_streams == 0)
    until(lambda: process.num_fds() <= fds + POOLS)
    until(lambda: worker.threads() <= threads + POOLS)
    ours = ("a connection is given up", "a call failed", "reading requests failed")
    assert not [line for line in worker.log if line.endswith(ours)], worker.log
    served_once(worker, opening(channel))


# Fronts of this process, for what a worker has no settings for.


def _stream(requests: Iterator[bytes], context: Any) -> Any:
    """Ends at once, or waits for the end of the call."""
    yield b"hello"
    over = threading.Event()
    if context.add_callback(over.set):
        threading.Thread(target=_listen, args=(requests, context, over)).start()
        over.wait(2 * DEADLINE_S)


def _listen(requests: Iterator[bytes], context: Any, over: threading.Event) -> None:
    try:
        for _ in requests:
            pass
        over.set()
    except CallFailed:
        pass
    finally:
        context.hear_out()


@pytest.fixture
def front() -> Iterator[Callable[..., Front]]:
    """Makes fronts with a gRPC server behind, which are closed after the test."""
    ends: list[Callable[[], None]] = []

    def make(address: Address = ANY_PORT, most: int = 8, per_host: int | None = None) -> Front:
        pool = futures.ThreadPoolExecutor(2, thread_name_prefix="test-grpc")
        server = grpc.server(pool, options=SERVER_OPTIONS)
        made = Front(address, server, FEED, most, per_host=per_host)
        server.start()
        made.start(_stream)
        ends.extend((pool.shutdown, lambda: made.close(0.1), lambda: server.stop(0).wait()))
        return made

    yield make
    for end in reversed(ends):
        end()


def test_one_connection_too_many_is_told_why(front: Callable[..., Front]) -> None:
    made = front(most=2)
    with (
        Call(made.address, FEED, user_agent="test") as first,
        Call(made.address, FEED, user_agent="x") as other,
    ):
        assert first.receive() == other.receive() == 5
        with (
            Call(made.address, FEED, user_agent="test") as third,
            pytest.raises(CallFailed, match="at most 2 connections at a time") as failure,
        ):
            third.receive()
        assert failure.value.code() is grpc.StatusCode.UNAVAILABLE
        first.done_sending()
        assert first.receive() is None

    def served() -> bool:
        with Call(made.address, FEED, user_agent="test") as fourth:
            try:
                return fourth.receive() == 5
            except CallFailed:
                return False

    until(served)


def test_one_host_does_not_get_all_places(front: Callable[..., Front]) -> None:
    """Of those that ask for nothing; streams are another matter, and other hosts, too."""
    made = front(most=8, per_host=3)
    place = (made.address.host, made.address.port)
    with contextlib.ExitStack() as stack:
        for _ in range(3):
            idle = stack.enter_context(socket.create_connection(place, DEADLINE_S))
            assert idle.recv(9)  # it has its place
        with (
            Call(made.address, FEED, user_agent="test") as call,
            pytest.raises(CallFailed, match="no more connections of one host"),
        ):
            call.receive()
        other = stack.enter_context(
            socket.create_connection(place, DEADLINE_S, source_address=("127.0.0.2", 0))
        )
        assert other.recv(9)[3] == SettingsFrame.type
    until(lambda: _serves(made))


def _serves(front: Front) -> bool:
    with Call(front.address, FEED, user_agent="test") as call:
        try:
            return call.receive() == 5
        except CallFailed:
            return False


def test_no_descriptors_left_is_one_line(
    front: Callable[..., Front], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(relay, "RETRY_S", 0.001)
    tries = []

    def refuse(*_: object) -> None:
        tries.append(1)
        raise OSError(errno.EMFILE, "Too many open files")

    made = front()
    monkeypatch.setattr(socket.socket, "accept", refuse)
    with contextlib.suppress(OSError):
        Call(made.address, FEED, user_agent="test").close()
    until(lambda: len(tries) > 20)
    assert len([line for line in caplog.messages if "Too many open files" in line]) == 1


def test_what_is_no_http2_ends_at_the_deadline(
    front: Callable[..., Front], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front_module, "OPENING_S", 0.2)
    made = front()
    for data in (b"", b"PRI * HT"):
        with socket.create_connection((made.address.host, made.address.port), DEADLINE_S) as connection:
            connection.sendall(data)
            while connection.recv(1000):
                pass


def test_a_client_that_asks_for_nothing_goes_to_grpc(
    front: Callable[..., Front], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may, for as long as it likes, as on any gRPC server: pings are answered."""
    monkeypatch.setattr(front_module, "OPENING_S", 0.2)
    made = front()
    http = H2Connection(H2Configuration(client_side=True))
    http.initiate_connection()
    http.ping(b"12345678")
    with socket.create_connection((made.address.host, made.address.port), DEADLINE_S) as connection:
        answered = False
        while not answered:
            connection.sendall(http.data_to_send())
            data = connection.recv(65536)
            assert data
            answered = any(isinstance(event, PingAckReceived) for event in http.receive_data(data))


def test_close_waits_for_what_ends_soon_and_cuts_the_rest(front: Callable[..., Front]) -> None:
    made = front()
    with (
        Call(made.address, FEED, user_agent="test") as ends,
        Call(made.address, FEED, user_agent="x") as stays,
    ):
        assert ends.receive() == stays.receive() == 5
        closing = threading.Thread(target=made.close, args=(1.0,))
        closing.start()
        ends.done_sending()
        assert ends.receive() is None
        with pytest.raises(CallFailed):
            stays.receive()
        closing.join(DEADLINE_S)
        assert not closing.is_alive()
    with pytest.raises(CallFailed, match="refused"):
        Call(made.address, FEED, user_agent="test")


def test_a_unix_socket(front: Callable[..., Front], tmp_path: Path) -> None:
    address = Address("unix", path=str(tmp_path / "feeder.sock"))
    made = front(address)
    with Call(made.address, FEED, user_agent="test") as call:
        assert call.receive() == 5
    with grpc.insecure_channel(address.grpc_target) as channel:
        grpc.channel_ready_future(channel).result(DEADLINE_S)
    made.close(0.0)
    assert not os.path.exists(address.path)


def test_ipv6_and_names(front: Callable[..., Front]) -> None:
    if not socket.has_ipv6 or not os.path.exists("/proc/net/if_inet6"):
        pytest.skip("no IPv6 here")
    for host in ("::1", "::", "localhost"):
        made = front(Address("tcp", host, 0))
        with Call(
            Address("tcp", "127.0.0.1" if host == "::" else host, made.address.port), FEED, user_agent="t"
        ) as call:
            assert call.receive() == 5


def test_a_name_may_stand_for_more_than_this_host_has(
    front: Callable[..., Front], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As "localhost" does where there is no IPv6."""
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, 0)) for host in ("192.0.2.1", "127.0.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    made = front(Address("tcp", "here", 0))
    monkeypatch.undo()
    with Call(Address("tcp", "127.0.0.1", made.address.port), FEED, user_agent="test") as call:
        assert call.receive() == 5


def test_nothing_of_the_socket_behind_has_a_name(
    front: Callable[..., Front], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    made = front()
    assert list(deep.iterdir()) == []
    with grpc.insecure_channel(str(made.address)) as channel:
        grpc.channel_ready_future(channel).result(DEADLINE_S)


def test_where_no_folder_is_for_temporary_files(
    front: Callable[..., Front], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a service for which the file system is read-only."""
    monkeypatch.setattr("tempfile.tempdir", "/no/such/folder")
    with grpc.insecure_channel(str(front().address)) as channel:
        grpc.channel_ready_future(channel).result(DEADLINE_S)


def test_a_refused_connection_may_ask_in_vain(front: Callable[..., Front]) -> None:
    made = front(most=0)
    http = H2Connection(H2Configuration(client_side=True))
    http.initiate_connection()
    with socket.create_connection((made.address.host, made.address.port), DEADLINE_S) as connection:
        connection.sendall(http.data_to_send())
        events: list[Any] = []
        while data := connection.recv(65536):
            events += http.receive_data(data)
    (goodbye,) = (event for event in events if isinstance(event, ConnectionTerminated))
    assert goodbye.additional_data == b"this worker takes at most 0 connections at a time"


def test_much_goes_through_both_ways(front: Callable[..., Front]) -> None:
    """What gRPC serves behind is not harmed on its way."""
    pool = futures.ThreadPoolExecutor(2, thread_name_prefix="test-grpc")
    server = grpc.server(pool, options=SERVER_OPTIONS)
    handlers = {"Echo": grpc.stream_stream_rpc_method_handler(lambda requests, _: requests)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Echo", handlers),))
    made = Front(ANY_PORT, server, FEED, 8)
    server.start()
    made.start(_stream)
    try:
        messages = [np.random.default_rng(number).bytes(900_000) for number in range(30)]
        with grpc.insecure_channel(str(made.address)) as channel:
            assert (
                list(channel.stream_stream("/test.Echo/Echo")(iter(messages), timeout=DEADLINE_S)) == messages
            )
    finally:
        stopped = server.stop(0)
        made.close(1.0)
        stopped.wait()
        pool.shutdown()
