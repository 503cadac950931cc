"""Our serving side of gRPC over HTTP/2, against a client of h2 that does what few clients do."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Callable, Generator, Iterator
from typing import Any

import grpc
import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    PingAckReceived,
    PingReceived,
    ResponseReceived,
    SettingsAcknowledged,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)
from h2.exceptions import FlowControlError
from h2.settings import SettingCodes, Settings
from hyperframe.frame import DataFrame, HeadersFrame, PingFrame, PriorityFrame, SettingsFrame

from feeder.wire import serve as serve_module
from feeder.wire.context import CallContext
from feeder.wire.frames import DATA, PADDED, STREAM, Head
from feeder.wire.headers import CallFailed
from feeder.wire.opening import ONE_CALL, Opening
from feeder.wire.serve import ServedCall
from feeder.wire.status import Refusal

PATH = "/test.Echo/Stream"
DEADLINE_S = 30.0


def framed(message: bytes) -> bytes:
    return b"\0" + len(message).to_bytes(4, "big") + message


def echo(requests: Iterator[bytes], context: CallContext) -> Generator[bytes]:
    """Answers each request with itself, or with as many bytes as "give N" names; has its two threads, as the
    worker's Feed has."""
    assert isinstance(context, ServedCall)
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def read() -> None:
        try:
            for request in requests:
                answers.put(request)
            answers.put(None)
        except (Refusal, CallFailed) as error:
            answers.put(error)
        finally:
            context.hear_out()

    context.add_callback(lambda: answers.put(CallFailed(grpc.StatusCode.CANCELLED, "it is over")))
    reader = threading.Thread(target=read)
    reader.start()
    while (answer := answers.get()) is not None:
        if isinstance(answer, Refusal):
            context.abort(answer.code, str(answer))
        if isinstance(answer, CallFailed):
            return
        if answer == b"fail":
            raise ValueError("no 100 % such\nthing: ü")
        yield bytes(range(256)) * int(answer[5:]) if answer.startswith(b"give ") else answer


class Client:
    """A client of h2 whose bytes a test chooses."""

    def __init__(self, connection: socket.socket, window: int = 65535, frame: int = 16384) -> None:
        self.connection = connection
        connection.settimeout(DEADLINE_S)
        self.http = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        settings = {SettingCodes.INITIAL_WINDOW_SIZE: window, SettingCodes.MAX_FRAME_SIZE: frame}
        self.http.local_settings = Settings(client=True, initial_values=settings)
        self.http.max_inbound_frame_size = frame
        self.http.initiate_connection()
        self.body, self.status, self.first = b"", {}, {}
        self.acknowledges = True
        self.goodbye: ConnectionTerminated | None = None
        self.seen: list[Event] = []
        self.ended = False

    def request(self, **more: str) -> None:
        headers = {":method": "POST", ":scheme": "http", ":path": PATH, ":authority": "here"}
        headers |= {"te": "trailers", "content-type": "application/grpc", ONE_CALL[0]: ONE_CALL[1]}
        more = {name.replace("_", "-"): value for name, value in more.items()}
        self.http.send_headers(1, list((headers | more).items()))

    def send(self, data: bytes = b"", *, end: bool = False) -> None:
        if data or end:
            self.http.send_data(1, data, end_stream=end)
        self.flush()

    def flush(self) -> None:
        self.connection.sendall(self.http.data_to_send())

    def hear(self) -> bool:
        """Handles what comes next; False at the end of the connection."""
        try:
            data = self.connection.recv(65536)
        except ConnectionResetError:
            return False
        for event in self.http.receive_data(data):
            self.seen.append(event)
            if isinstance(event, DataReceived):
                self.body += event.data
                if self.acknowledges:
                    self.http.acknowledge_received_data(event.flow_controlled_length, 1)
            elif isinstance(event, ResponseReceived):
                self.first = dict(event.headers)
            elif isinstance(event, TrailersReceived):
                self.status = dict(event.headers)
            elif isinstance(event, StreamEnded | StreamReset):
                self.ended = True
            elif isinstance(event, ConnectionTerminated):
                self.goodbye = event
        return bool(data)

    def until(self, condition: Callable[[], Any]) -> None:
        deadline_s = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline_s
            if not self.hear():
                assert condition(), "the connection ended before"
            self.flush()


def opened(client: Client, server: socket.socket) -> ServedCall:
    """The call that the client has begun."""
    opening, behind = Opening(PATH), []
    client.flush()
    while not opening.decided:
        behind = opening.feed(server.recv(65536))
    assert opening.headers is not None
    server.sendall(opening.greeting)
    return ServedCall(server, opening, behind, "test")


class Serving:
    """A call that is served, and its client."""

    def __init__(self, handler: Any, **settings: int) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        with listener:
            connection = socket.create_connection(listener.getsockname())
            server, _ = listener.accept()
        self.client = Client(connection, **settings)
        self._handler, self._server = handler, server

    def begin(self, **headers: str) -> Client:
        self.client.request(**headers)
        self.call = opened(self.client, self._server)
        self.thread = threading.Thread(target=self._run)
        self.thread.start()
        return self.client

    def _run(self) -> None:
        self.call.run(self._handler)
        self.call.close()

    def end(self) -> None:
        self.client.connection.close()
        self.thread.join(DEADLINE_S)
        assert not self.thread.is_alive()
        deadline_s = time.monotonic() + DEADLINE_S
        while self._server.fileno() != -1:  # whoever uses it last closes it
            assert time.monotonic() < deadline_s
            time.sleep(0.005)


@pytest.fixture
def serving() -> Iterator[Callable[..., Serving]]:
    """Serves calls, which are ended after the test."""
    made: list[Serving] = []

    def make(handler: Any = echo, **settings: int) -> Serving:
        made.append(Serving(handler, **settings))
        return made[-1]

    yield make
    for one in made:
        one.end()


Serve = Callable[..., Serving]


def test_messages_come_back_and_the_call_ends_well(serving: Serve) -> None:
    client = serving().begin()
    messages = [b"one", b"", b"x" * 5000]
    client.send(b"".join(map(framed, messages)), end=True)  # three in a frame
    client.until(lambda: client.ended)
    assert client.body == b"".join(map(framed, messages))
    assert client.first == {":status": "200", "content-type": "application/grpc"}
    assert client.status == {"grpc-status": "0"}


def test_a_request_in_single_bytes(serving: Serve) -> None:
    client = serving().begin()
    for byte in framed(b"hello") + framed(b"there"):
        client.send(bytes([byte]))
    client.until(lambda: client.body == framed(b"hello") + framed(b"there"))
    client.send(end=True)
    client.until(lambda: client.ended)
    assert client.status == {"grpc-status": "0"}


@pytest.mark.parametrize(
    ("window", "frame"), [(1, 16384), (7, 16384), (20_000, 20_000), (2**31 - 1, 2**24 - 1)]
)
def test_the_peers_windows_and_frames_are_kept(serving: Serve, window: int, frame: int) -> None:
    """h2 raises where they are not."""
    size = 1 if window < 10 else 1000
    client = serving(window=window, frame=frame).begin()
    client.send(framed(b"give %d" % size))
    client.until(lambda: len(client.body) == 5 + 256 * size)
    assert client.body == framed(bytes(range(256)) * size)
    client.send(framed(b"more"))
    client.until(lambda: client.body.endswith(framed(b"more")))


def test_the_account_of_the_windows_is_h2s(serving: Serve) -> None:
    """What is sent past h2 must count for it: to the byte, and no byte more."""
    one = serving()
    client = one.begin()
    client.acknowledges = False
    client.send(framed(b"give 1000"))
    client.until(lambda: len(client.body) == 65535)
    assert client.http.remote_flow_control_window(1) == 0
    assert one.call._http.local_flow_control_window(1) == 0
    with pytest.raises(FlowControlError):
        client.http.receive_data(DataFrame(1, b"x").serialize())


def test_a_window_that_opens_lets_the_rest_through(serving: Serve) -> None:
    client = serving().begin()
    client.acknowledges = False
    client.send(framed(b"give 1000"))
    client.until(lambda: len(client.body) == 65535)
    client.http.increment_flow_control_window(1 << 20)  # of the connection alone
    client.flush()
    client.http.increment_flow_control_window(1000, 1)
    client.flush()
    client.until(lambda: len(client.body) == 66535)
    client.http.increment_flow_control_window(1 << 20, 1)
    client.flush()
    client.until(lambda: len(client.body) == 256_005)


def test_a_setting_changes_the_window_in_the_middle(serving: Serve) -> None:
    client = serving(window=10).begin()
    client.acknowledges = False
    client.send(framed(b"give 100"))
    client.until(lambda: len(client.body) == 10)
    client.http.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 30_000})
    client.flush()
    client.until(lambda: len(client.body) == 25_605)


def test_pings_are_answered_while_much_is_sent(serving: Serve) -> None:
    client = serving(window=2**31 - 1, frame=2**24 - 1).begin()
    client.send(framed(b"give 40000"))
    client.http.ping(b"12345678")
    client.flush()
    client.until(lambda: any(isinstance(event, PingAckReceived) for event in client.seen))
    client.until(lambda: len(client.body) == 5 + 256 * 40_000)


def test_a_handler_that_fails(serving: Serve) -> None:
    client = serving().begin()
    client.send(framed(b"fail"))
    client.until(lambda: client.ended)
    assert client.first[":status"] == "200"  # headers and status in one
    assert client.first["grpc-status"] == "2"
    assert client.first["grpc-message"] == "ValueError: no 100 %25 such%0Athing: %C3%BC"


@pytest.mark.parametrize(
    ("data", "status", "text"),
    [
        (b"\1\0\0\0\1x", "13", "compressed"),
        (b"\0\x7f\xff\xff\xff", "8", "a request of 2147483647 bytes came, at most 1048576 are taken"),
        (b"\0\0\0\0\5hal", "13", "the last request is cut"),
        (b"\0\0", "13", "the last request is cut"),
    ],
)
def test_requests_that_are_none(serving: Serve, data: bytes, status: str, text: str) -> None:
    client = serving().begin()
    client.send(data, end=True)
    client.until(lambda: client.ended)
    assert client.first["grpc-status"] == status
    assert text in client.first["grpc-message"]


def test_the_largest_request_is_taken(serving: Serve) -> None:
    message = bytes(range(256)) * 4096
    client = serving().begin()
    rest = framed(message)
    while rest:
        room = min(client.http.local_flow_control_window(1), 16384)
        if room:
            client.send(rest[:room])
            rest = rest[room:]
        else:
            client.until(lambda: client.http.local_flow_control_window(1))
    client.until(lambda: client.body == framed(message))


def test_a_second_call_is_refused_and_the_first_goes_on(serving: Serve) -> None:
    client = serving().begin()
    client.http.send_headers(
        3, [(":method", "POST"), (":path", PATH), (":scheme", "http"), (":authority", "x")]
    )
    client.http.send_data(3, b"much")
    client.flush()
    client.until(lambda: any(isinstance(event, StreamReset) for event in client.seen))
    (reset,) = (event for event in client.seen if isinstance(event, StreamReset))
    assert (reset.stream_id, reset.error_code) == (3, 7)  # REFUSED_STREAM
    client.send(framed(b"still"))
    client.until(lambda: client.body == framed(b"still"))


def over(one: Serving) -> threading.Event:
    """Is set when the handler hears that its call is over."""
    event = threading.Event()
    assert one.call.add_callback(event.set)
    return event


@pytest.mark.parametrize("ending", ["reset", "close", "goodbye", "no HTTP/2"])
def test_the_peer_ends_the_call(serving: Serve, ending: str) -> None:
    one = serving()
    client = one.begin()
    ended = over(one)
    client.send(framed(b"give 1000"))  # and it waits for the window
    client.until(lambda: client.body)
    if ending == "reset":
        client.http.reset_stream(1, 8)
        client.flush()
    elif ending == "goodbye":
        client.http.close_connection()
        client.flush()
    elif ending == "no HTTP/2":
        client.connection.sendall(HeadersFrame(2, b"x", flags=["END_HEADERS"]).serialize())
    else:
        client.connection.close()
    assert ended.wait(DEADLINE_S)
    assert not one.call.add_callback(lambda: None)


@pytest.mark.parametrize(
    "flood",
    [
        PingFrame(0, b"12345678").serialize(),
        SettingsFrame(0, {4: 65535}).serialize(),
        DataFrame(1, b"").serialize(),
        PriorityFrame(5, depends_on=0, stream_weight=1).serialize(),
        b"\0\0\0\xee\0\0\0\0\0",  # of an unknown type
    ],
    ids=["ping", "settings", "empty data", "priority", "unknown"],
)
def test_floods_end_the_call(serving: Serve, flood: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve_module, "MAX_IDLE_FRAMES_PER_S", 100)
    one = serving()
    client = one.begin()
    ended = over(one)
    while not ended.is_set():  # however slow this machine is
        try:
            client.connection.sendall(flood * 1500)
        except OSError:
            break
    assert ended.wait(DEADLINE_S)


def test_a_frame_that_is_too_large_is_not_waited_for(serving: Serve) -> None:
    one = serving()
    client = one.begin()
    ended = over(one)
    client.connection.sendall(b"\xff\xff\xff\0\0\0\0\0\1")
    assert ended.wait(DEADLINE_S)


def test_a_client_at_fault_is_told_so_behind_all_else(serving: Serve) -> None:
    """Its settings are acknowledged before, though they came with the fault."""
    one = serving()
    client = one.client
    client.request()
    request = client.http.data_to_send()
    padded = bytes(Head(2, DATA, PADDED, STREAM)) + b"\5x"
    client.connection.sendall(request + padded)
    one.call = opened(client, one._server)
    one.thread = threading.Thread(target=one._run)
    one.thread.start()
    client.until(lambda: client.goodbye)
    assert client.goodbye is not None
    assert client.goodbye.error_code == ErrorCodes.PROTOCOL_ERROR
    assert any(isinstance(event, SettingsAcknowledged) for event in client.seen)


def test_a_silent_peer_is_asked_and_then_given_up(serving: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve_module, "KEEPALIVE_MS", 500)
    monkeypatch.setattr(serve_module, "KEEPALIVE_TIMEOUT_MS", 500)
    one = serving()
    client = one.begin()
    ended = over(one)
    client.until(lambda: any(isinstance(event, PingReceived) for event in client.seen))
    # The client of `until` has answered; from here it is silent.
    assert ended.wait(DEADLINE_S)


def test_a_peer_that_takes_nothing_is_given_up(serving: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its windows are open, its socket is full."""
    monkeypatch.setattr(serve_module, "KEEPALIVE_MS", 500)
    monkeypatch.setattr(serve_module, "KEEPALIVE_TIMEOUT_MS", 500)
    one = serving(window=2**31 - 1, frame=2**24 - 1)
    client = one.begin()
    client.http.increment_flow_control_window(1 << 30)
    ended = over(one)
    client.send(framed(b"give 250000"))
    assert ended.wait(DEADLINE_S)


def test_a_call_ends_at_its_deadline(serving: Serve) -> None:
    one = serving()
    client = one.begin(grpc_timeout="200m")
    ended = over(one)
    client.until(lambda: client.ended)
    assert ended.wait(DEADLINE_S)


def test_a_deadline_that_passes_while_the_status_is_sent(serving: Serve) -> None:
    one = serving()
    client = one.client
    client.request(grpc_timeout="1n")
    client.http.end_stream(1)
    one.call = opened(client, one._server)
    assert list(one.call) == []
    one.call._end(grpc.StatusCode.OK, "")
    one.thread = threading.Thread(target=one.call.close)
    one.thread.start()
    client.connection.close()
    one.call.hear_out()  # and gives back the socket, for which `serving` looks


def test_cancel_wakes_whoever_waits(serving: Serve) -> None:
    one = serving()
    client = one.begin()
    client.send(framed(b"give 1000"))
    client.until(lambda: client.body)
    one.call.cancel()
    one.thread.join(DEADLINE_S)
    assert not one.thread.is_alive()
