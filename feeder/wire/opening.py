"""The beginning of a connection, as far as its first request: what it asks for, decided without a socket.

Whoever serves the connection then is told all that came. Until then the client gets one SETTINGS frame, for
which some wait before they ask anything. It says nothing that another server's own would have to take back.
"""

from __future__ import annotations

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import RequestReceived
from h2.exceptions import H2Error
from h2.settings import SettingCodes, Settings
from hyperframe.frame import GoAwayFrame, SettingsFrame

from feeder.wire.frames import HEAD_BYTES, HEADERS, PREFACE, STREAM, Frames, FrameTooLarge, Head

__all__ = [
    "MAX_OPENING_BYTES",
    "MAX_OPENING_FRAMES",
    "ONE_CALL",
    "Opening",
    "WithoutFirstAck",
    "refusal",
]

MAX_OPENING_BYTES = 64 << 10
"""Of a connection that has asked for nothing yet. A request has some hundred bytes."""

MAX_OPENING_FRAMES = 64
"""Of the same: h2 takes up to 50 us for each, on the thread that welcomes all. A client sends a handful."""

MAX_HEADER_BYTES = 16 << 10
"""Of a request's headers, unpacked: what gRPC allows."""

ONE_CALL = ("feeder-connection", "one-call")
"""A header by which a client says that its connection is for this call alone."""

_ACK = 0x1


class Opening:
    """What came on a connection before its first request, and the request.

    Args:
        path: of the calls that are looked for, "/package.Service/Method".

    Attributes:
        http: the state of the connection, for who serves such a call; what it wants to send, was not sent.
        frames: has what came of a frame that is not there yet, for the same.
        greeting: what the client is sent first.
        received: all that came.
        headers: of the first request, if it is such a call, goes on, and is the only one; else None.
        decided: whether nothing that comes could change that.
    """

    def __init__(self, path: str) -> None:
        self._path = path.encode()
        self.http = H2Connection(H2Configuration(client_side=False))
        self.http.local_settings = Settings(
            client=False, initial_values={SettingCodes.MAX_HEADER_LIST_SIZE: MAX_HEADER_BYTES}
        )
        self.http.decoder.max_header_list_size = MAX_HEADER_BYTES
        self.http.initiate_connection()
        self.http.receive_data(PREFACE)
        self.frames = Frames(self.http.max_inbound_frame_size)
        self.greeting = self.http.data_to_send()
        self.received = bytearray()
        self.headers: dict[bytes, bytes] | None = None
        self.decided = False
        self._frames_left = MAX_OPENING_FRAMES

    @property
    def is_http2(self) -> bool:
        """Whether all of HTTP/2's preface came."""
        return self.received.startswith(PREFACE)

    def feed(self, data: bytes) -> list[tuple[Head, bytes]]:
        """Takes more bytes; returns the frames behind the request, where that is such a call."""
        self.received += data
        if not PREFACE.startswith(self.received[: len(PREFACE)]):
            self.decided = True
            return []
        frames = self.frames.cut(data)
        try:
            for _, frame in frames:
                self._frames_left -= 1
                if self._frames_left < 0:
                    self.decided = True
                    return []
                events = self.http.receive_data(frame)
                requests = [event for event in events if isinstance(event, RequestReceived)]
                if requests:
                    return self._decide(requests[0], list(frames))
        except (H2Error, FrameTooLarge):
            self.decided = True
        self.decided = self.decided or len(self.received) >= MAX_OPENING_BYTES
        return []

    def _decide(self, request: RequestReceived, behind: list[tuple[Head, bytes]]) -> list[tuple[Head, bytes]]:
        self.decided = True
        headers = dict(request.headers or ())
        alone = all(head.kind != HEADERS for head, _ in behind)
        goes_on = request.stream_ended is None  # without requests it is no stream to serve
        if alone and goes_on and request.stream_id == STREAM and self._is_such(headers):
            self.headers = headers
            return behind
        return []

    def _is_such(self, headers: dict[bytes, bytes]) -> bool:
        kind = headers.get(b"content-type", b"")
        name, value = ONE_CALL
        return (
            headers.get(b":path") == self._path
            and headers.get(name.encode()) == value.encode()
            and headers.get(b":method") == b"POST"
            and headers.get(b"te") == b"trailers"
            and kind in (b"application/grpc", b"application/grpc+proto")
            and headers.get(b"grpc-encoding", b"identity") == b"identity"
        )


class WithoutFirstAck:
    """Passes on what a client sends, but its first SETTINGS acknowledgement: that is for the greeting, of
    which the server behind knows nothing."""

    def __init__(self) -> None:
        self._left = len(PREFACE)  # bytes that pass, until the next frame's head
        self._head = b""
        self._found = False

    def __call__(self, data: bytes) -> bytes:
        """What of `data`, and of what was held back before, is to be passed on."""
        if self._found:
            return data
        passed = bytearray()
        at = 0  # pieces are not cut off: of many small frames each would copy all that follow
        while at < len(data):
            if self._left:
                part = data[at : at + self._left]
                passed += part
                at, self._left = at + len(part), self._left - len(part)
                continue
            missing = HEAD_BYTES - len(self._head)
            self._head += data[at : at + missing]
            at += missing
            if len(self._head) == HEAD_BYTES:
                head, self._head = Head.parse(self._head), b""
                self._left = head.size
                if head.kind == SettingsFrame.type and head.flags & _ACK and not head.size:
                    self._found = True
                    return bytes(passed + data[at:])
                passed += bytes(head)
        return bytes(passed)


def refusal(reason: str) -> bytes:
    """What a client is sent on a connection that is not taken."""
    calm = GoAwayFrame(0, error_code=ErrorCodes.ENHANCE_YOUR_CALM, additional_data=reason.encode())
    return SettingsFrame(0).serialize() + calm.serialize()
