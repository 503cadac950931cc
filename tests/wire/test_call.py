"""Our side of gRPC over HTTP/2, against grpcio's server, and against one that does what few servers do."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

import grpc
import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, RequestReceived
from h2.settings import SettingCodes, Settings
from hyperframe.frame import DataFrame, GoAwayFrame, PingFrame

from feeder.wire import call as call_module
from feeder.wire.address import Address
from feeder.wire.call import Call
from feeder.wire.channel import SERVER_OPTIONS
from feeder.wire.headers import CallFailed

METHOD = "/test.Echo/Stream"
OK = [("grpc-status", "0")]


def echo(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
    for message in requests:
        if message == b"fail":
            context.abort(grpc.StatusCode.NOT_FOUND, "no 100 % such thing: ü")
        yield message


@pytest.fixture
def server() -> Iterator[tuple[grpc.Server, Address]]:
    server = grpc.server(futures.ThreadPoolExecutor(4), options=SERVER_OPTIONS)
    handlers = {"Stream": grpc.stream_stream_rpc_method_handler(echo)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Echo", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield server, Address("tcp", "127.0.0.1", port)
    server.stop(0).wait(5)


def dial(address: Address, method: str = METHOD) -> Call:
    return Call(address, method, user_agent="test")


def test_messages_come_back(server: tuple[grpc.Server, Address]) -> None:
    with dial(server[1]) as call:
        for message in (b"one", b"", b"x" * 5000):
            call.send(message)
            assert call.receive() == len(message)
            assert call.read(len(message) + 1) == message
        call.done_sending()
        assert call.receive() is None


def test_a_message_is_read_in_parts_and_its_rest_is_skipped(server: tuple[grpc.Server, Address]) -> None:
    with dial(server[1]) as call:
        call.send(bytes(range(250)))
        call.send(b"next")
        assert call.receive() == 250
        part = bytearray(100)
        call.read_into(memoryview(part)[50:])
        assert part == bytes(50) + bytes(range(50))
        assert call.read(2) == bytes([50, 51])
        assert call.receive() == 4
        with pytest.raises(CallFailed, match="5 bytes wanted of a message with 4 left"):
            call.read_into(memoryview(bytearray(5)))
        assert call.read(4) == b"next"


def test_messages_are_sent_together_and_short_ones_are_read_ahead(
    server: tuple[grpc.Server, Address],
) -> None:
    """Sizes around what is read ahead, in one read each or many in one."""
    ahead = call_module.AHEAD_BYTES
    sizes = [1, ahead - 1, ahead, 0, ahead + 1, 3, 3, 3 * ahead, 7, *range(40)]
    messages = [bytes([number]) * size for number, size in enumerate(sizes)]
    with dial(server[1]) as call:
        call.send(*messages)
        call.done_sending()
        for message in messages:
            assert call.receive() == len(message)
            assert call.read(min(3, len(message))) == message[:3]
            assert call.read(len(message)) == message[3:]
        assert call.receive() is None


def test_what_comes_in_pieces_is_put_together(odd_server: Callable[..., Address]) -> None:
    def script(http: H2Connection, connection: socket.socket) -> None:
        answer(http)
        http.send_data(1, b"\0\0\0\0\2go" + b"\0" + (5000).to_bytes(4, "big") + bytes(range(250)) * 20)
        http.send_headers(1, OK, end_stream=True)
        data = http.data_to_send()
        for size in (*[1] * 60, 2, 11, 2041, 2047, 2048, len(data)):
            connection.sendall(data[:size])
            data = data[size:]

    with dial(odd_server(script)) as call:
        assert call.receive() == 2
        assert call.read(2) == b"go"
        assert call.receive() == 5000
        assert call.read(5000) == bytes(range(250)) * 20
        assert call.receive() is None


def test_much_is_sent_and_received_at_once(server: tuple[grpc.Server, Address]) -> None:
    """More than all windows and buffers hold, in both directions."""
    messages = [bytes([number]) * (1 << 20) for number in range(64)]
    with dial(server[1]) as call:

        def send() -> None:
            for message in messages:
                call.send(message)
            call.done_sending()

        sender = threading.Thread(target=send)
        sender.start()
        for message in messages:
            assert call.receive() == len(message)
            assert call.read(len(message)) == message
        assert call.receive() is None
        sender.join()


def test_a_unix_socket_will_do(tmp_path: object) -> None:
    path = f"{tmp_path}/socket"
    server = grpc.server(futures.ThreadPoolExecutor(2))
    handlers = {"Stream": grpc.stream_stream_rpc_method_handler(echo)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Echo", handlers),))
    server.add_insecure_port(f"unix:{path}")
    server.start()
    try:
        with dial(Address("unix", path=path)) as call:
            call.send(b"hello")
            assert call.receive() == 5
    finally:
        server.stop(0).wait(5)


def test_a_status_is_raised_with_its_text(server: tuple[grpc.Server, Address]) -> None:
    with dial(server[1]) as call:
        call.send(b"fail")
        with pytest.raises(CallFailed) as failure:
            call.receive()
    assert failure.value.code() is grpc.StatusCode.NOT_FOUND
    assert failure.value.details() == "no 100 % such thing: ü"


def test_a_method_that_the_server_lacks(server: tuple[grpc.Server, Address]) -> None:
    with dial(server[1], "/test.Echo/Other") as call, pytest.raises(CallFailed) as failure:
        call.receive()
    assert failure.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_nobody_is_there() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = Address("tcp", "127.0.0.1", taken.getsockname()[1])
        with pytest.raises(CallFailed, match="connection refused") as failure:
            dial(address)
    assert failure.value.code() is grpc.StatusCode.UNAVAILABLE


def test_a_server_that_stops_ends_the_call(server: tuple[grpc.Server, Address]) -> None:
    with dial(server[1]) as call:
        call.send(b"one")
        assert call.receive() == 3
        server[0].stop(0)
        with pytest.raises(CallFailed) as failure:
            call.receive()
    assert failure.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


def test_a_server_that_drains_still_ends_the_call_well(server: tuple[grpc.Server, Address]) -> None:
    with dial(server[1]) as call:
        call.send(b"one")
        assert call.receive() == 3
        stopped = server[0].stop(30)  # sends GOAWAY and waits for the calls that run
        call.send(b"two")
        assert call.receive() == 3
        call.done_sending()
        assert call.receive() is None
        assert stopped.wait(10)


def test_cancel_from_another_thread_wakes_the_receiver(server: tuple[grpc.Server, Address]) -> None:
    with dial(server[1]) as call:
        timer = threading.Timer(0.2, call.cancel)
        timer.start()
        with pytest.raises(CallFailed):
            call.receive()
        timer.join()
        with pytest.raises(CallFailed):
            call.send(b"late")


# A server of ours, one connection, whose frames a test chooses.

Script = Callable[[H2Connection, socket.socket], None]


@pytest.fixture
def odd_server() -> Iterator[Callable[[Script], Address]]:
    ends: list[Callable[[], None]] = []

    def start(script: Script) -> Address:
        listener = socket.create_server(("127.0.0.1", 0))

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(10)
                http = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))
                http.local_settings = Settings(False, {SettingCodes.INITIAL_WINDOW_SIZE: 1000})
                http.initiate_connection()
                connection.sendall(http.data_to_send())
                while not any(
                    isinstance(event, RequestReceived) for event in http.receive_data(connection.recv(65536))
                ):
                    pass
                script(http, connection)
                if rest := http.data_to_send():
                    connection.sendall(rest)
                while connection.recv(65536):  # until the client goes
                    pass

        thread = threading.Thread(target=serve)
        thread.start()
        ends.append(listener.close)
        ends.append(thread.join)
        return Address("tcp", *listener.getsockname())

    yield start
    for end in ends:
        end()


def answer(http: H2Connection) -> None:
    http.send_headers(1, [(":status", "200"), ("content-type", "application/grpc")])


def test_padded_and_split_data(odd_server: Callable[[Script], Address]) -> None:
    message = bytes(range(200))
    framed = b"\0" + len(message).to_bytes(4, "big") + message

    def script(http: H2Connection, connection: socket.socket) -> None:
        answer(http)
        for at in range(0, len(framed), 7):
            http.send_data(1, framed[at : at + 7], pad_length=at % 5 or None)
            http.send_data(1, b"", pad_length=3)
            http.ping(b"12345678")
        http.send_headers(1, OK, end_stream=True)

    with dial(odd_server(script)) as call:
        assert call.receive() == 200
        assert call.read(200) == message
        assert call.receive() is None


def test_an_answer_without_grpc(odd_server: Callable[[Script], Address]) -> None:
    def script(http: H2Connection, connection: socket.socket) -> None:
        http.send_headers(1, [(":status", "403"), ("content-type", "text/html")])
        http.send_data(1, b"", end_stream=True)

    with dial(odd_server(script)) as call, pytest.raises(CallFailed, match="HTTP status 403") as failure:
        call.receive()
    assert failure.value.code() is grpc.StatusCode.PERMISSION_DENIED


@pytest.mark.parametrize(
    ("status", "code"), [("403", grpc.StatusCode.PERMISSION_DENIED), ("503", grpc.StatusCode.UNAVAILABLE)]
)
def test_the_page_of_a_proxy_is_no_message(
    odd_server: Callable[[Script], Address], status: str, code: grpc.StatusCode
) -> None:
    def script(http: H2Connection, connection: socket.socket) -> None:
        http.send_headers(1, [(":status", status), ("content-length", "11")])
        http.send_data(1, b"no upstream", end_stream=True)

    with (
        dial(odd_server(script)) as call,
        pytest.raises(CallFailed, match=f"HTTP status {status}") as failure,
    ):
        call.receive()
    assert failure.value.code() is code


def test_a_reset_stream(odd_server: Callable[[Script], Address]) -> None:
    with (
        dial(odd_server(lambda http, _: http.reset_stream(1, 8))) as call,
        pytest.raises(CallFailed) as failure,
    ):
        call.receive()
    assert failure.value.code() is grpc.StatusCode.CANCELLED


def test_nothing_is_sent_on_a_stream_that_was_reset(odd_server: Callable[[Script], Address]) -> None:
    with dial(odd_server(lambda http, _: http.reset_stream(1, 8))) as call:
        with pytest.raises(CallFailed, match="reset"):
            call.receive()
        with pytest.raises(CallFailed, match="closed"):
            call.done_sending()


def test_a_header_that_is_no_utf8(odd_server: Callable[[Script], Address]) -> None:
    def script(http: H2Connection, connection: socket.socket) -> None:
        headers = [(b":status", b"200"), (b"grpc-status", b"5"), (b"grpc-message", b"\xff")]
        http.send_headers(1, headers, end_stream=True)

    with dial(odd_server(script)) as call, pytest.raises(CallFailed, match="NOT_FOUND: \ufffd"):
        call.receive()


def test_the_call_ends_within_a_message(odd_server: Callable[[Script], Address]) -> None:
    def script(http: H2Connection, connection: socket.socket) -> None:
        answer(http)
        http.send_data(1, b"\0\0\0\0\x09half")
        http.send_headers(1, OK, end_stream=True)

    with dial(odd_server(script)) as call:
        assert call.receive() == 9
        with pytest.raises(CallFailed, match="within a message"):
            call.read(9)


def test_the_connection_ends_within_a_message(odd_server: Callable[[Script], Address]) -> None:
    def script(http: H2Connection, connection: socket.socket) -> None:
        answer(http)
        http.send_data(1, b"\0\0\0\0\x09half")
        connection.sendall(http.data_to_send())
        connection.shutdown(socket.SHUT_WR)

    with dial(odd_server(script)) as call:
        assert call.receive() == 9
        with pytest.raises(CallFailed, match="connection was closed"):
            call.read(9)


@pytest.mark.parametrize(
    ("frames", "message"),
    [
        (DataFrame(1, data=b"\1\0\0\0\1x").serialize(), "compressed"),
        (GoAwayFrame(0, last_stream_id=0, error_code=11).serialize(), "closed the connection .code 11"),
        (b"\0\0\1\7\0\0\0\0\0x", "too short"),
        (b"\0\0\1\0\x08\0\0\0\1\5", "1 bytes has 5 of padding"),
        (b"\xff\xff\xff\4\0\0\0\0\0", "16777215 bytes"),
        (b"\0\0\1\4\0\0\0\0\0x", "not HTTP/2"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "type 80 with 4740180 bytes"),
    ],
)
def test_what_no_server_should_send(
    odd_server: Callable[[Script], Address], frames: bytes, message: str
) -> None:
    def script(http: H2Connection, connection: socket.socket) -> None:
        answer(http)
        connection.sendall(http.data_to_send() + frames)

    with dial(odd_server(script)) as call, pytest.raises(CallFailed, match=message):
        call.receive()


def test_a_peer_that_is_silent_is_asked_and_then_given_up(
    odd_server: Callable[[Script], Address], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_module, "KEEPALIVE_MS", 500)
    monkeypatch.setattr(call_module, "KEEPALIVE_TIMEOUT_MS", 500)
    pinged = threading.Event()

    def script(http: H2Connection, connection: socket.socket) -> None:
        answer(http)
        connection.sendall(http.data_to_send())
        received = b""
        while bytes([PingFrame.type, 0]) not in received:
            received += connection.recv(65536)
        pinged.set()  # and no answer

    with dial(odd_server(script)) as call, pytest.raises(CallFailed, match="keepalive"):
        call.receive()
    assert pinged.is_set()


def test_requests_wait_for_the_peers_window(odd_server: Callable[[Script], Address]) -> None:
    message = bytes(range(256)) * 1000

    def script(http: H2Connection, connection: socket.socket) -> None:
        answer(http)
        http.send_data(1, b"\0\0\0\0\2go")
        received = b""
        while len(received) < 5 + len(message):
            connection.sendall(http.data_to_send())
            for event in http.receive_data(connection.recv(65536)):
                if isinstance(event, DataReceived):
                    received += event.data
                    http.acknowledge_received_data(event.flow_controlled_length, 1)
        assert received[5:] == message
        http.send_headers(1, OK, end_stream=True)

    with dial(odd_server(script)) as call:
        assert call.receive() == 2  # by now the peer's settings are known
        call.send(message)
        assert call.receive() is None


class _SlowSocket:
    """A socket that takes its time to send."""

    def __init__(self, inner: Any) -> None:
        self.sends = threading.Event()
        self.was_open: bool | None = None
        self._inner = inner

    def send(self, data: bytes, flags: int) -> int:
        self.sends.set()
        for _ in range(30):
            time.sleep(0.01)
        self.was_open = self._inner.fileno() >= 0
        raise BrokenPipeError

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def test_who_posts_while_the_call_is_closed_meets_no_other_socket(
    server: tuple[grpc.Server, Address], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A number that was given back may be another socket's before it is sent to."""
    call = dial(server[1])
    slow = _SlowSocket(call._socket)

    def post() -> None:
        with pytest.raises(CallFailed):
            call.post(b"late")

    thread = threading.Thread(target=post)

    def cancel() -> None:  # what `close` does between its goodbye and the end of the socket
        monkeypatch.setattr(call, "_socket", slow)
        thread.start()
        assert slow.sends.wait(60)

    monkeypatch.setattr(call, "cancel", cancel)
    call.close()
    thread.join(60)
    assert slow.was_open
