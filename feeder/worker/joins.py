"""Calls that carry answers of a stream which is open on another connection.

One connection is one thread that sends and one that receives, and each wakes the other: two of each keep both
sides at work where one moves fewer bytes than the machine can.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable

import grpc

from feeder.errors import Closed
from feeder.wire.status import Refusal
from feeder.worker.stream import Stream

__all__ = ["Joins"]

KEY_BYTES = 16


class Joins:
    """Who may carry whose answers; safe to use from any thread.

    Args:
        most: calls that carry answers of others, at a time.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._streams: dict[bytes, tuple[Stream, str]] = {}
        #: How to cut each call, and whose answers it carries.
        self._carriers: dict[Stream, tuple[Stream, Callable[[], object]]] = {}

    def offer(self, stream: Stream, token: str) -> bytes:
        """A key by which other calls may carry the answers of `stream` until it is forgotten; they must have
        the token of this name, by which it has its data set and rate."""
        key = secrets.token_bytes(KEY_BYTES)
        with self._lock:
            if not stream.closed:  # else it was forgotten already
                self._streams[key] = stream, token
        return key

    def join(self, key: bytes, call: Stream, token: str, cut: Callable[[], object]) -> Stream:
        """Whose answers a call carries from now on.

        Args:
            cut: ends the call at once.

        Raises:
            Refusal: the key is of no live stream of this token, or there are too many such calls already.
            Closed: the call ended meanwhile.
        """
        with self._lock:
            stream, owner = self._streams.get(key, (None, ""))
            if stream is None or owner != token:
                raise Refusal(
                    grpc.StatusCode.NOT_FOUND, "no live stream of this token has the key of this Join"
                )
            if len(self._carriers) >= self._most:
                raise Refusal(
                    grpc.StatusCode.RESOURCE_EXHAUSTED,
                    f"connection {len(self._carriers) + 1} beyond the first of a stream refused: "
                    f"--max-streams is {self._most}",
                )
            if call.closed:
                raise Closed("the call ended before it had joined")
            self._carriers[call] = stream, cut
            return stream

    def cut(self, stream: Stream) -> None:
        """A stream's own call is over: those that still send its answers, to a client that may never read
        them, end with it. The others end by themselves."""
        with self._lock:
            cuts = [cut for of, cut in self._carriers.values() if of is stream and of.unsent]
        for cut in cuts:
            cut()

    def forget(self, call: Stream) -> None:
        """A call is over, whatever it was."""
        with self._lock:
            self._carriers.pop(call, None)
            for key in [key for key, (stream, _) in self._streams.items() if stream is call]:
                del self._streams[key]
