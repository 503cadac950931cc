"""One bidirectional gRPC call on a connection of its own, which is read straight into the caller's memory.

grpcio hands out a received message as `bytes`, after three copies of it; at megabytes a message these were
most of what a stream cost its client. Here the payload of DATA frames goes from the socket to where the
caller wants it, and everything else of HTTP/2 is h2's work. Any gRPC server is a peer. Protocol: RFC 9113,
and "gRPC over HTTP2" of the gRPC project.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Iterable
from types import TracebackType
from typing import Self

import grpc
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    Event,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)
from h2.exceptions import H2Error
from h2.settings import SettingCodes, Settings
from hyperframe.frame import GoAwayFrame, RstStreamFrame

from feeder.wire.address import Address
from feeder.wire.channel import KEEPALIVE_MS, KEEPALIVE_TIMEOUT_MS, dial
from feeder.wire.credentials import Credentials
from feeder.wire.frames import (
    DATA,
    END_STREAM,
    HEAD_BYTES,
    PADDED,
    STREAM,
    Head,
    credit,
    end_of_data,
    room,
    spend,
)
from feeder.wire.headers import CallFailed, failure_of, request_headers, reset, texts
from feeder.wire.tls import TlsSocket, shake

__all__ = ["Call"]

TICK_S = 1.0
"""How often a thread that waits for bytes looks whether the peer is still there."""

WINDOW_BYTES = 2**31 - 1
"""The most that HTTP/2 allows. What a worker may send unread is bounded by the requests that it was sent."""

CREDIT_BYTES = 256 << 20
"""Received bytes after which the peer's windows are filled up again: an eighth of them, since each time
wakes a thread of the peer."""

AHEAD_BYTES = 2048
"""What is less is read with what follows it, and copied from there: heads, and a worker's short answers. Each
read costs more than to copy that much."""

FRAME_BYTES = 2**24 - 1
MAX_CONTROL_BYTES = 1 << 20
"""Of a frame that is not DATA: headers and settings have some hundred bytes."""

_MESSAGE_HEAD = 5
_AT_ONCE = int(socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


class Call:
    """Sends messages from any thread, and receives them on one.

    Args:
        address: of the server; a "dns" name is that of its first address that answers.
        method: path of a method that streams both ways, "/package.Service/Method".
        user_agent: what the server may log.
        credentials: what the server is shown; None: what the environment says.

    Raises:
        CallFailed: nobody answers there, or not as a server that is trusted.
        ConfigError: a file of the credentials cannot be used.
    """

    def __init__(
        self, address: Address, method: str, *, user_agent: str, credentials: Credentials | None = None
    ) -> None:
        credentials = credentials or Credentials.from_environment()
        headers = request_headers(address, method, user_agent, credentials)
        self._socket = _dial(address, credentials)
        self._heard_s = time.monotonic()
        self._pinged_s: float | None = None
        #: Guards what follows; held for no longer than a send that does not wait.
        self._lock = threading.Lock()
        self._http = H2Connection(H2Configuration(client_side=True))
        self._http.local_settings = Settings(
            client=True,
            initial_values={
                SettingCodes.ENABLE_PUSH: 0,
                SettingCodes.INITIAL_WINDOW_SIZE: WINDOW_BYTES,
                SettingCodes.MAX_FRAME_SIZE: FRAME_BYTES,
            },
        )
        self._unsent = bytearray()  # messages, with their heads, that wait for the peer's windows
        self._half_closed = False
        self._outbox = bytearray()  # bytes that wait for the socket
        # For the receiving thread alone.
        self._ahead = memoryview(bytearray(AHEAD_BYTES))
        self._unread = self._ahead[:0]
        self._frame_left = 0  # of DATA
        self._padding_left = 0
        self._message_left = 0
        self._unacknowledged = 0
        self._ended = False
        self._headers: dict[str, str] = {}
        self._trailers: dict[str, str] = {}
        try:
            with self._lock:
                self._http.initiate_connection()
                self._http.increment_flow_control_window(
                    WINDOW_BYTES - self._http.inbound_flow_control_window
                )
                self._http.send_headers(STREAM, headers)
                self._flush()
        except BaseException:
            self._socket.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def send(self, *messages: bytes) -> None:
        """Sends messages, together where there is room; waits while the connection is full.

        Raises:
            CallFailed: the connection is gone.
        """
        with self._lock:
            self._add(messages)
        self._push()

    def post(self, *messages: bytes) -> bool:
        """Sends messages as far as that needs no waiting; returns whether the socket took all that it may be
        given. Where it did not, `send` must follow, be it of nothing.

        Raises:
            CallFailed: the connection is gone.
        """
        with self._lock:
            self._add(messages)
            self._queue_messages()
            self._flush()
            return not self._outbox

    def done_sending(self) -> None:
        """No message follows.

        Raises:
            CallFailed: the connection is gone.
        """
        with self._lock:
            self._half_closed = True
        self._push()

    def receive(self) -> int | None:
        """Waits for the next message and returns its size in bytes; None when the call ended well. What was
        not read of the one before is skipped.

        Raises:
            CallFailed: the call ended otherwise.
        """
        self.skip()
        if not self._next_payload():
            self._raise_status()
            return None
        compressed, self._message_left = struct.unpack(">BI", self._payload(_MESSAGE_HEAD))
        if compressed:
            raise CallFailed(grpc.StatusCode.INTERNAL, "a compressed message came, none was allowed")
        return self._message_left

    def read_into(self, view: memoryview) -> None:
        """Fills `view`, of single bytes, with the next bytes of the current message.

        Raises:
            CallFailed: the message has fewer, or the call ended within it.
        """
        if len(view) > self._message_left:
            raise CallFailed(
                grpc.StatusCode.INTERNAL,
                f"{len(view)} bytes wanted of a message with {self._message_left} left",
            )
        self._message_left -= len(view)
        self._fill(view)

    def read(self, size: int) -> bytes:
        """At most `size` more bytes of the current message; see `read_into`."""
        size = min(size, self._message_left)
        self._message_left -= size
        return self._payload(size)

    def skip(self) -> None:
        """Drops what is left of the current message."""
        if self._message_left:
            scratch = memoryview(bytearray(min(self._message_left, 1 << 18)))
            while self._message_left:
                self.read_into(scratch[: self._message_left])

    def cancel(self) -> None:
        """Ends the call at once, whoever waits in it; takes no lock."""
        with contextlib.suppress(OSError):  # it is gone already
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Gives back the socket; the call ends cancelled if it has not ended."""
        if not self._ended:
            with self._lock:
                self._outbox += RstStreamFrame(STREAM, error_code=ErrorCodes.CANCEL).serialize()
                with contextlib.suppress(CallFailed):  # nobody is there to be told
                    self._flush()
        self.cancel()
        with self._lock:  # a thread that posts has the number of the socket, which may be another's then
            self._socket.close()

    # Sending.

    def _add(self, messages: Iterable[bytes]) -> None:
        for message in messages:
            self._unsent += b"\0" + struct.pack(">I", len(message)) + message

    def _push(self) -> None:
        """Sends what can be sent, waiting for room in the socket."""
        poll = select.poll()
        poll.register(self._socket, select.POLLOUT)
        while True:
            with self._lock:
                self._queue_messages()
                self._flush()
                if not self._outbox:
                    return
            poll.poll(TICK_S * 1000)

    def _queue_messages(self) -> None:
        """With the lock: hands messages to h2 as far as the peer's windows allow."""
        try:
            self._hand_over()
        except H2Error as error:
            raise CallFailed(grpc.StatusCode.UNAVAILABLE, f"the stream is closed ({error})") from None

    def _hand_over(self) -> None:
        if self._unsent and self._ended:
            raise CallFailed(grpc.StatusCode.UNAVAILABLE, "the call has ended")
        while self._unsent:
            size = min(room(self._http), len(self._unsent))
            if size <= 0:
                return
            spend(self._http, size)
            self._outbox += self._http.data_to_send() + bytes(Head(size, DATA, 0, STREAM))
            self._outbox += self._unsent[:size]
            del self._unsent[:size]
        if self._half_closed:
            self._half_closed = False
            self._http.end_stream(STREAM)

    def _flush(self) -> None:
        """With the lock: sends what the socket takes without waiting."""
        self._outbox += self._http.data_to_send()
        try:
            while self._outbox:
                sent = self._socket.send(self._outbox, _AT_ONCE)
                del self._outbox[:sent]
        except BlockingIOError:
            pass
        except OSError as error:
            raise _lost(error) from None

    # Receiving.

    def _payload(self, size: int) -> bytes:
        """The next bytes of payload."""
        if size <= min(self._frame_left, AHEAD_BYTES):
            self._frame_left -= size
            return bytes(self._next(size))
        data = bytearray(size)
        self._fill(memoryview(data))
        return bytes(data)

    def _fill(self, view: memoryview) -> None:
        """Reads payload until `view` is full."""
        while len(view):
            if not self._next_payload():
                self._raise_status()
                raise CallFailed(grpc.StatusCode.INTERNAL, "the call ended within a message")
            part = view[: self._frame_left]
            self._read_exactly(part)
            self._frame_left -= len(part)
            view = view[len(part) :]

    def _next_payload(self) -> bool:
        """Handles frames until one has payload to read; False when the stream has ended."""
        while not self._frame_left:
            if self._padding_left:
                self._read_exactly(memoryview(bytearray(self._padding_left)))
                self._padding_left = 0
            if self._ended:
                return False
            self._next_frame()
        return True

    def _next_frame(self) -> None:
        raw = bytes(self._next(HEAD_BYTES))
        head = Head.parse(raw)
        if head.kind == DATA and head.stream == STREAM:
            self._begin_data(head)
            return
        if head.size > MAX_CONTROL_BYTES:
            raise CallFailed(
                grpc.StatusCode.INTERNAL, f"a frame of type {head.kind} with {head.size} bytes came"
            )
        body = bytearray(head.size)
        self._read_exactly(memoryview(body))
        if head.kind == GoAwayFrame.type:
            self._go_away(bytes(body))
            return
        self._handle(raw + bytes(body))

    def _begin_data(self, head: Head) -> None:
        padding = 0
        if head.flags & PADDED and head.size:
            padding = self._next(1)[0]
        payload = head.size - padding - (1 if head.flags & PADDED else 0)
        if payload < 0:
            raise CallFailed(
                grpc.StatusCode.INTERNAL, f"a DATA frame of {head.size} bytes has {padding} of padding"
            )
        self._frame_left, self._padding_left = payload, padding
        self._unacknowledged += head.size
        if self._unacknowledged >= CREDIT_BYTES:
            received, self._unacknowledged = self._unacknowledged, 0
            with self._lock:
                self._outbox += credit(received)
                self._flush()
        if head.flags & END_STREAM:
            self._handle(end_of_data())

    def _go_away(self, body: bytes) -> None:
        # h2 would close the connection at once; a server that drains still ends the streams that it has.
        if len(body) < 8:
            raise CallFailed(grpc.StatusCode.INTERNAL, "a GOAWAY frame that is too short came")
        last, code = struct.unpack(">II", body[:8])
        if code != ErrorCodes.NO_ERROR or last & 0x7FFFFFFF < STREAM:
            said = body[8:].decode("utf-8", "replace")
            raise CallFailed(
                grpc.StatusCode.UNAVAILABLE, f"the server closed the connection (code {code}: {said})"
            )

    def _handle(self, frame: bytes) -> None:
        try:
            with self._lock:
                events = self._http.receive_data(frame)
        except H2Error as error:
            raise CallFailed(grpc.StatusCode.INTERNAL, f"not HTTP/2 as it should be: {error}") from None
        for event in events:
            self._note(event)
        if not self._ended:
            with self._lock:
                self._queue_messages()
                self._flush()

    def _note(self, event: Event) -> None:
        if isinstance(event, ResponseReceived):
            self._headers = texts(event.headers)
            if self._headers.get(":status") != "200":  # as of a proxy: the body is a page, not messages
                self._raise_status()
        elif isinstance(event, TrailersReceived):
            self._trailers = texts(event.headers)
        elif isinstance(event, StreamEnded):
            self._ended = True
        elif isinstance(event, StreamReset):
            self._ended = True
            raise reset(event.error_code or 0)

    def _raise_status(self) -> None:
        """Raises where the call that has ended did not end well."""
        failure = failure_of(self._headers, self._trailers)
        if failure is not None:
            raise failure

    def _next(self, size: int) -> memoryview:
        """The next bytes, at most AHEAD_BYTES; they are there until more are read."""
        have = len(self._unread)
        if have < size:
            self._ahead[:have] = self._unread
            while have < size:
                have += self._receive(self._ahead[have:])
            self._unread = self._ahead[:have]
        part, self._unread = self._unread[:size], self._unread[size:]
        return part

    def _read_exactly(self, view: memoryview) -> None:
        here = min(len(view), len(self._unread))
        view[:here], view, self._unread = self._unread[:here], view[here:], self._unread[here:]
        while len(view) >= AHEAD_BYTES:
            view = view[self._receive(view, socket.MSG_WAITALL) :]
        if len(view):
            view[:] = self._next(len(view))

    def _receive(self, view: memoryview, flags: int = 0) -> int:
        """Waits for bytes; returns how many of them are in `view` now, at least one."""
        while True:
            try:
                count = self._socket.recv_into(view, 0, flags)
            except BlockingIOError:  # TICK_S went by without a byte
                self._keep_alive()
                continue
            except OSError as error:
                raise _lost(error) from None
            if count == 0:
                raise CallFailed(grpc.StatusCode.UNAVAILABLE, "the connection was closed")
            self._heard_s, self._pinged_s = time.monotonic(), None
            return count

    def _keep_alive(self) -> None:
        now = time.monotonic()
        if self._pinged_s is not None:
            if now - self._pinged_s >= KEEPALIVE_TIMEOUT_MS / 1000:
                raise CallFailed(grpc.StatusCode.UNAVAILABLE, "keepalive: the other side does not answer")
        elif now - self._heard_s >= KEEPALIVE_MS / 1000:
            self._pinged_s = now
            with self._lock:
                self._http.ping(os.urandom(8))
                self._flush()


def _dial(address: Address, credentials: Credentials) -> socket.socket | TlsSocket:
    context = None if address.kind == "unix" else credentials.context()
    try:
        connection = dial(address)
        if context is not None:
            return TlsSocket(shake(connection, context, address), TICK_S)
    except OSError as error:
        raise _lost(error) from None
    connection.settimeout(None)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", int(TICK_S), 0))
    return connection


def _lost(error: OSError) -> CallFailed:
    return CallFailed(grpc.StatusCode.UNAVAILABLE, (error.strerror or str(error)).lower())
