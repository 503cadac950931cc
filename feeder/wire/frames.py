"""Frames of HTTP/2 by their heads; RFC 9113, section 4.1.

What a frame other than DATA says is h2's to understand. DATA carries all that there is in amounts, and h2
takes a third of a millisecond for each, so that whoever has a connection cuts it into frames here first.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple, Self

from h2.connection import H2Connection
from h2.exceptions import StreamClosedError
from hyperframe.frame import DataFrame, HeadersFrame, WindowUpdateFrame

__all__ = [
    "DATA",
    "END_STREAM",
    "HEADERS",
    "HEAD_BYTES",
    "PADDED",
    "PREFACE",
    "STREAM",
    "FrameTooLarge",
    "Frames",
    "Head",
    "credit",
    "data_head",
    "end_of_data",
    "payload",
    "room",
    "spend",
]

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
STREAM = 1
"""The first stream that a client opens."""

HEAD_BYTES = 9
DATA, HEADERS = DataFrame.type, HeadersFrame.type
END_STREAM, PADDED = 0x1, 0x8

_HEAD = struct.Struct(">BHBBI")


class FrameTooLarge(Exception):
    """A frame has more bytes than were allowed."""


class Head(NamedTuple):
    """What a frame begins with: bytes that follow, type, flags and stream."""

    size: int
    kind: int
    flags: int
    stream: int

    @classmethod
    def parse(cls, data: bytes | bytearray, at: int = 0) -> Self:
        """That of the frame at `data[at:]`, of which HEAD_BYTES are there."""
        high, low, kind, flags, stream = _HEAD.unpack_from(data, at)
        return cls(high << 16 | low, kind, flags, stream & 0x7FFFFFFF)

    def __bytes__(self) -> bytes:
        return _HEAD.pack(self.size >> 16, self.size & 0xFFFF, self.kind, self.flags, self.stream)


class Frames:
    """Cuts what a client sends behind its preface into whole frames, whatever pieces they come in.

    Args:
        most: bytes that a frame may have behind its head, above 0.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._preface_left = len(PREFACE)
        self._rest = bytearray()

    def cut(self, data: bytes) -> Iterator[tuple[Head, bytes]]:
        """The frames that `data` ends, each with its head before it.

        Raises:
            FrameTooLarge: a head announces more than is allowed; said before the frame is there. Nothing
                can be cut any more.
        """
        skipped = min(self._preface_left, len(data))
        self._preface_left -= skipped
        rest = self._rest
        rest += data[skipped:]
        at = 0
        try:
            while len(rest) >= at + HEAD_BYTES:
                head = Head.parse(rest, at)
                if head.size > self._most:
                    raise FrameTooLarge(f"a frame of {head.size} bytes came, at most {self._most} are taken")
                end = at + HEAD_BYTES + head.size
                if len(rest) < end:
                    break
                begin, at = at, end
                yield head, bytes(rest[begin:end])
        finally:
            del rest[:at]


def payload(head: Head, frame: bytes) -> bytes | None:
    """What a DATA frame carries besides padding; None where the padding is longer than the frame."""
    if not head.flags & PADDED:
        return frame[HEAD_BYTES:]
    if not head.size or frame[HEAD_BYTES] >= head.size:
        return None
    return frame[HEAD_BYTES + 1 : len(frame) - frame[HEAD_BYTES]]


def data_head(size: int) -> bytes:
    """That of a frame of `size` bytes of DATA on STREAM."""
    return _HEAD.pack(size >> 16, size & 0xFFFF, DATA, 0, STREAM)


def end_of_data() -> bytes:
    """A frame that tells h2 of the end of STREAM, where the DATA before was kept from it."""
    return bytes(Head(0, DATA, END_STREAM, STREAM))


def credit(size: int) -> bytes:
    """Frames by which the peer may send `size` more bytes of DATA on STREAM."""
    return b"".join(WindowUpdateFrame(stream, window_increment=size).serialize() for stream in (0, STREAM))


def room(http: H2Connection) -> int:
    """Bytes of DATA that the peer takes now in one frame of STREAM.

    Raises:
        H2Error: the stream is closed.
    """
    stream = http.streams.get(STREAM)
    if stream is None:
        raise StreamClosedError(STREAM)
    return min(
        http.outbound_flow_control_window,
        stream.outbound_flow_control_window,
        http.max_outbound_frame_size,
    )


def spend(http: H2Connection, size: int) -> None:
    """Counts DATA that goes past h2, as its own `send_data` would."""
    http.outbound_flow_control_window -= size
    http.streams[STREAM].outbound_flow_control_window -= size
