"""One bidirectional gRPC call, served on a connection of its own: the counterpart of `feeder.wire.call`.

grpcio copies each message into a slice of its own before it sends it. Here the kernel takes a message from
where it was made: `sendmsg` gets the heads of frame and message, and a view of the rest. Frames other than
DATA, settings, header compression and all that comes from the peer are h2's work. Any gRPC client that says
so is a peer (`feeder.wire.opening.ONE_CALL`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NoReturn

import grpc
from h2.errors import ErrorCodes
from h2.events import ConnectionTerminated, Event, RequestReceived, StreamEnded, StreamReset
from h2.exceptions import H2Error, StreamClosedError
from hyperframe.frame import GoAwayFrame

from feeder.wire.channel import KEEPALIVE_MS, KEEPALIVE_TIMEOUT_MS, MAX_REQUEST_BYTES
from feeder.wire.context import Handler
from feeder.wire.frames import (
    DATA,
    END_STREAM,
    STREAM,
    FrameTooLarge,
    Head,
    credit,
    data_head,
    end_of_data,
    payload,
    room,
    spend,
)
from feeder.wire.headers import CallFailed, deadline_s, status_headers
from feeder.wire.opening import Opening
from feeder.wire.status import Refusal
from feeder.wire.tls import TlsSocket

__all__ = ["ServedCall"]

log = logging.getLogger(__name__)

TICK_S = 1.0
"""How often a thread that waits for the socket looks whether the peer is still there."""

LINGER_S = 2.0
"""For the peer to end the connection after its call: ended by us, what it has not read yet would be lost."""

MAX_FRAME_BYTES = 8 << 20
"""Answers to the peer's pings wait behind a frame: 80 ms at 100 MB/s."""

MAX_IDLE_FRAMES_PER_S = 10_000
"""Frames of a peer between which no request comes to its end, and no frame is sent to it. A large one of ours
may well open its windows a thousand times."""

CREDIT_BYTES = 16 << 10
"""Of requests that came, after which the client's windows are filled up again: a quarter of what they are."""

MAX_POST_BYTES = 4 << 10
"""Of a message that may wait in the outbox for room in the socket."""

MAX_OUTBOX_BYTES = 64 << 10
"""Of frames other than DATA that the peer makes us send, and does not read."""

_HEADERS = [(":status", "200"), ("content-type", "application/grpc")]
_READ_BYTES = 16 << 10
_MESSAGE_HEAD = 5
_AT_ONCE = int(socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


class _Aborted(Exception):
    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.code, self.details = code, details


class ServedCall:
    """The call that an opening asks for; also its requests, and its context.

    One thread runs it. Another iterates over its requests and then hears it out: whatever the peer says is
    heard by that thread alone, so that without it nothing but a status can be sent.

    Args:
        connection: connected and blocking, or after its handshake.
        opening: decided, with headers.
        behind: the frames that came behind the request.
        peer: who calls, for the log.
    """

    def __init__(
        self,
        connection: socket.socket | TlsSocket,
        opening: Opening,
        behind: Iterable[tuple[Head, bytes]],
        peer: str,
    ) -> None:
        if isinstance(connection, socket.socket):
            tick = struct.pack("ll", int(TICK_S), 0)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, tick)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, tick)
        self._socket = connection
        self._peer = peer
        self._metadata = [
            (name.decode("latin-1"), value.decode("latin-1"))
            for name, value in (opening.headers or {}).items()
            if not name.startswith(b":")
        ]
        self._deadline_s = deadline_s(opening.headers or {})
        #: Guards what follows; held for no longer than a send that does not wait.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._waiting = False  # the thread that runs the call waits for the peer's windows
        self._http = opening.http
        self._frames = opening.frames
        self._outbox = bytearray()  # frames other than DATA that wait for the socket
        self._sending = False  # the thread that runs the call is within a frame
        self._answered = False  # our headers were sent
        self._over = ""  # why nothing is heard or sent any more
        self._callbacks: list[Callable[[], None]] = []
        self._users = 1  # threads that use the socket; the last one closes it
        self._reading = False
        self._received = bytearray()
        self._half_closed = False
        self._heard_s = self._counted_s = time.monotonic()
        self._pinged_s: float | None = None
        self._idle_frames = 0
        self._unacknowledged = 0
        with self._lock:
            self._over = self._take(behind)
            self._flush()

    # For the handler.

    def peer(self) -> str:
        """Who calls, for the log."""
        return self._peer

    def invocation_metadata(self) -> Sequence[tuple[str, str | bytes]]:
        """The headers that came with the call."""
        return self._metadata

    def add_callback(self, callback: Callable[[], None]) -> bool:
        """Has `callback` called when the call is over; False where it is over already."""
        with self._lock:
            if not self._over:
                self._callbacks.append(callback)
            return not self._over

    def abort(self, code: grpc.StatusCode, details: str) -> NoReturn:
        """Ends the call with a status, by an exception."""
        raise _Aborted(code, details)

    def __iter__(self) -> Iterator[bytes]:
        """The requests, until the peer ends its side.

        Raises:
            Refusal: what came is no message, or one that is too large.
            CallFailed: the call is over.
        """
        with self._lock:
            self._check()
            self._reading = True
            self._users += 1
        while True:
            with self._lock:
                messages = self._take_messages()
                if not messages and self._half_closed:
                    return
                self._check()
            yield from messages
            if not messages:
                self._hear()

    def hear_out(self) -> None:
        """For the thread that iterated: hears the peer until the connection ends, and drops its requests."""
        with self._lock:
            if not self._reading:
                return  # it was over before the first request
        while self._hear():
            with self._lock:
                self._received.clear()
        with self._lock:
            self._reading = False
            self._changed.notify_all()
        self.close()

    def post(self, message: bytes) -> bool:
        """Sends a small message of the handler beside those that it gives, without waiting, from any thread;
        returns False where something is before it: then nothing was done."""
        with self._lock:
            size = _MESSAGE_HEAD + len(message)
            if size > MAX_POST_BYTES or self._over or not self._answered:
                return False
            if self._sending or self._outbox or room(self._http) < size:
                return False
            spend(self._http, size)
            self._outbox += b"%b\0%b%b" % (
                data_head(size),
                struct.pack(">I", len(message)),
                message,
            )
            self._idle_frames = 0
            self._flush()
            return True

    # For the front.

    def run(self, handler: Handler) -> None:
        """Sends what the handler gives and the status; returns when the peer has ended the connection, or had
        the time for it."""
        try:
            self._answer(handler)
        except CallFailed:
            pass  # the peer is gone; the handler was told
        finally:
            self._finish()

    def cancel(self) -> None:
        """Ends the call at once, whoever waits in it; takes no lock."""
        with contextlib.suppress(OSError):  # it is gone already
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Gives back the socket, once, for each thread that used it."""
        with self._lock:
            self._users -= 1
            last = not self._users
        if last:
            self._socket.close()

    # Sending.

    def _answer(self, handler: Handler) -> None:
        code, details = grpc.StatusCode.OK, ""
        try:
            with contextlib.closing(handler(iter(self), self)) as messages:
                for message in messages:
                    self._send(message)
        except _Aborted as aborted:
            code, details = aborted.code, aborted.details
        except CallFailed:
            raise
        except Exception as error:
            log.exception("%s: a call failed", self._peer)
            code, details = grpc.StatusCode.UNKNOWN, f"{type(error).__name__}: {error}"
        self._end(code, details)

    def _send(self, message: bytes) -> None:
        head = b"\0" + struct.pack(">I", len(message))
        rest = memoryview(message)
        while head or rest:
            with self._lock:
                size = min(self._await_room(), len(head) + len(rest), MAX_FRAME_BYTES)
                if not self._answered:
                    self._answered = True
                    self._http.send_headers(STREAM, _HEADERS)
                lead, head = head[:size], head[size:]
                part, rest = rest[: size - len(lead)], rest[size - len(lead) :]
                spend(self._http, size)
                before = self._take_outbox()
                self._sending = True
            self._write([before + data_head(size) + lead, part])
            with self._lock:
                self._sending = False
                self._idle_frames = 0
                self._flush()

    def _await_room(self) -> int:
        """With the lock: waits for the peer's windows; returns how many bytes it takes in one frame."""
        while True:
            self._check()
            size = room(self._http)
            if size > 0:
                return size
            if not self._reading:
                raise _Aborted(grpc.StatusCode.INTERNAL, "no thread hears the client any more")
            self._waiting = True
            self._changed.wait()
            self._waiting = False

    def _end(self, code: grpc.StatusCode, details: str) -> None:
        status = status_headers(code, details)
        with self._lock:
            self._check()
            headers = status if self._answered else [*_HEADERS, *status]
            self._http.send_headers(STREAM, headers, end_stream=True)
            if not self._half_closed:
                self._http.reset_stream(STREAM, ErrorCodes.NO_ERROR)
            last = self._take_outbox()
            self._sending = True
        self._write([last])

    def _write(self, parts: list[bytes | memoryview]) -> None:
        """Sends all of `parts`, waiting for room in the socket."""
        moved_s = time.monotonic()
        while parts:
            try:
                sent = self._socket.sendmsg(parts, (), socket.MSG_NOSIGNAL)
            except BlockingIOError:  # TICK_S went by without room for a byte
                if time.monotonic() - moved_s > (KEEPALIVE_MS + KEEPALIVE_TIMEOUT_MS) / 1000:
                    raise CallFailed(grpc.StatusCode.UNAVAILABLE, "the peer takes nothing") from None
                continue
            except OSError as error:
                raise CallFailed(grpc.StatusCode.UNAVAILABLE, error.strerror or str(error)) from None
            moved_s = time.monotonic()
            while parts and sent >= len(parts[0]):
                sent -= len(parts.pop(0))
            if sent:
                parts[0] = memoryview(parts[0])[sent:]

    def _take_outbox(self) -> bytes:
        taken = bytes(self._outbox) + self._http.data_to_send()
        self._outbox.clear()
        return taken

    def _flush(self) -> None:
        """With the lock: sends frames other than DATA as far as that needs no waiting."""
        self._outbox += self._http.data_to_send()
        if self._sending:
            return
        try:
            while self._outbox:
                sent = self._socket.send(self._outbox, _AT_ONCE)
                del self._outbox[:sent]
        except OSError:
            pass  # there is no room; or no connection, which whoever reads is told

    def _finish(self) -> None:
        self._set_over("the call has ended")
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
        until_s = time.monotonic() + LINGER_S
        with self._lock:
            heard = self._changed.wait_for(lambda: not self._reading, LINGER_S)
        with contextlib.suppress(OSError):
            while heard and time.monotonic() < until_s and self._socket.recv(_READ_BYTES):
                pass
        self.cancel()

    # Receiving.

    def _hear(self) -> bool:
        """Waits for bytes and handles them, for a tick at most; returns whether more may come."""
        if self._deadline_s is not None and time.monotonic() >= self._deadline_s:
            self._fail("its deadline passed", ErrorCodes.CANCEL)
        try:
            data = self._socket.recv(_READ_BYTES)
        except BlockingIOError:  # a tick went by
            return self._keep_alive()
        except OSError as error:
            self._set_over(error.strerror or str(error))
            return False
        if not data:
            self._set_over("the client closed the connection")
            return False
        with self._lock:
            self._heard_s, self._pinged_s = time.monotonic(), None
            if self._over:
                return True
            failure = self._take(self._frames.cut(data))
            self._flush()
            self._over = failure  # before anyone else asks h2 about a stream that is closed
            unwanted = bool(failure) and self._sending
            if self._waiting:
                self._changed.notify_all()
        if failure:
            self._set_over(failure)
        if unwanted:
            self.cancel()  # the rest of the frame may never be read
        return True

    def _take(self, frames: Iterable[tuple[Head, bytes]]) -> str:
        """With the lock: takes what came; returns why the call is over, if it is."""
        failure = ""
        try:
            for head, frame in frames:
                failure = self._count_frame()
                if not failure and head.kind == DATA and head.stream == STREAM and not self._half_closed:
                    failure = self._take_data(head, frame)
                elif not failure:
                    failure = self._note(self._http.receive_data(frame))
                if failure:
                    break
        except FrameTooLarge as error:
            failure = self._part(ErrorCodes.FRAME_SIZE_ERROR, f"the client is at fault: {error}")
        except H2Error as error:
            failure = f"not HTTP/2 as it should be: {error}"
        return failure

    def _take_data(self, head: Head, frame: bytes) -> str:
        data = payload(head, frame)
        if data is None:
            return self._part(ErrorCodes.PROTOCOL_ERROR, "the client sent more padding than frame")
        self._received += data
        self._unacknowledged += head.size
        if self._unacknowledged >= CREDIT_BYTES:
            self._outbox += credit(self._unacknowledged)
            self._unacknowledged = 0
        return self._note(self._http.receive_data(end_of_data())) if head.flags & END_STREAM else ""

    def _note(self, events: Sequence[Event]) -> str:
        for event in events:
            if isinstance(event, StreamEnded) and event.stream_id == STREAM:
                self._half_closed = True
            elif isinstance(event, StreamReset) and event.stream_id == STREAM:
                return f"the client reset the stream (code {event.error_code})"
            elif isinstance(event, ConnectionTerminated):
                return "the client said goodbye"
            elif isinstance(event, RequestReceived):
                with contextlib.suppress(StreamClosedError):  # the client thought better of it
                    self._http.reset_stream(event.stream_id or 0, ErrorCodes.REFUSED_STREAM)
        return ""

    def _count_frame(self) -> str:
        """Returns why there were too many, if there were."""
        if self._heard_s - self._counted_s >= 1.0:
            self._counted_s, self._idle_frames = self._heard_s, 0
        self._idle_frames += 1
        if self._idle_frames > MAX_IDLE_FRAMES_PER_S or len(self._outbox) > MAX_OUTBOX_BYTES:
            return self._part(ErrorCodes.ENHANCE_YOUR_CALM, "the client sends frames that ask for nothing")
        return ""

    def _part(self, code: ErrorCodes, failure: str) -> str:
        # Last of all: some clients take nothing after it, and would be told of that instead.
        goodbye = GoAwayFrame(0, last_stream_id=STREAM, error_code=code).serialize()
        self._outbox += self._http.data_to_send() + goodbye
        return failure

    def _take_messages(self) -> list[bytes]:
        """With the lock: the requests that are here whole."""
        messages: list[bytes] = []
        while len(self._received) >= _MESSAGE_HEAD:
            compressed, size = struct.unpack_from(">BI", self._received)
            if compressed:
                raise Refusal(grpc.StatusCode.INTERNAL, "a compressed request came, without its encoding")
            if size > MAX_REQUEST_BYTES:
                raise Refusal(
                    grpc.StatusCode.RESOURCE_EXHAUSTED,
                    f"a request of {size} bytes came, at most {MAX_REQUEST_BYTES} are taken",
                )
            end = _MESSAGE_HEAD + size
            if len(self._received) < end:
                break
            messages.append(bytes(self._received[_MESSAGE_HEAD:end]))
            del self._received[:end]
            self._idle_frames = 0
        if self._received and self._half_closed:
            raise Refusal(grpc.StatusCode.INTERNAL, "the last request is cut")
        return messages

    def _keep_alive(self) -> bool:
        now_s = time.monotonic()
        if self._pinged_s is not None:
            if now_s - self._pinged_s >= KEEPALIVE_TIMEOUT_MS / 1000:
                self._set_over("keepalive: the client does not answer")
                self.cancel()
                return False
        elif now_s - self._heard_s >= KEEPALIVE_MS / 1000:
            self._pinged_s = now_s
            with self._lock:
                if not self._over:
                    self._http.ping(os.urandom(8))
        with self._lock:
            self._flush()
        return True

    def _fail(self, reason: str, code: ErrorCodes) -> None:
        self._deadline_s = None
        with self._lock:
            if not self._over:
                with contextlib.suppress(StreamClosedError):  # the status is on its way
                    self._http.reset_stream(STREAM, code)
                self._flush()
                self._over = reason
        self._set_over(reason)

    def _check(self) -> None:
        if self._over:
            raise CallFailed(grpc.StatusCode.CANCELLED, self._over)

    def _set_over(self, reason: str) -> None:
        with self._lock:
            self._over = self._over or reason
            callbacks, self._callbacks = self._callbacks, []
            self._changed.notify_all()
        log.debug("%s: %s", self._peer, reason)
        for callback in callbacks:
            callback()
