"""What a method's handler and the call that it serves know of each other."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import NoReturn, Protocol

import grpc

__all__ = ["CallContext", "Handler"]


class CallContext(Protocol):
    """What a method's handler may ask of its call: a part of grpc.ServicerContext."""

    def peer(self) -> str:
        """Who calls, for the log."""

    def invocation_metadata(self) -> Sequence[tuple[str, str | bytes]]:
        """The headers that came with the call."""

    def add_callback(self, callback: Callable[[], None]) -> bool:
        """Has `callback` called when the call is over; False where it is over already."""

    def abort(self, code: grpc.StatusCode, details: str) -> NoReturn:
        """Ends the call with a status, by an exception."""

    def cancel(self) -> object:
        """Ends the call at once, whoever waits in it."""


class Handler(Protocol):
    """A method that streams both ways, messages as bytes: gives answers until the call ends well."""

    def __call__(self, requests: Iterator[bytes], context: CallContext) -> Generator[bytes]: ...
