"""Further connections of a stream, over which its worker sends answers, too.

One connection keeps one thread at work on each side, which wait for each other: two move half as many bytes
again on one host, and let two processors encrypt.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import grpc

from feeder.errors import FeederError
from feeder.wire.call import Call
from feeder.wire.codec import encode_request
from feeder.wire.headers import CallFailed
from feeder.wire.messages import Join

__all__ = ["Carriers"]

log = logging.getLogger(__name__)

END_S = 30.0
"""For what is still on its way on the others when the first connection has come to its end."""


class Carriers:
    """Those of one stream after the other; each has a thread.

    A worker may take no further connection, which costs nothing but speed. One that it took is as good as the
    first: where it breaks, what was on its way is lost, and so is the stream.

    Args:
        dial: opens a connection to the worker.
        receive: takes all that comes on it; called on its thread.
        name: of the threads.
    """

    def __init__(self, dial: Callable[[], Call], receive: Callable[[Call], None], name: str) -> None:
        self._dial = dial
        self._receive = receive
        self._name = name
        #: Guards what follows.
        self._changed = threading.Condition()
        self._first: Call | None = None  # of the stream that there is
        self._calls: set[Call] = set()
        self._count = 0
        self._error: FeederError | CallFailed | None = None
        self._threads: set[threading.Thread] = set()

    @property
    def count(self) -> int:
        """Connections on which answers come, or came until the stream ended."""
        return self._count

    @contextmanager
    def beside(self, first: Call) -> Iterator[None]:
        """While a stream is received on its first connection; afterwards nothing comes on the others.

        Raises:
            FeederError, CallFailed: why one of the others ended, if it did before.
        """
        with self._changed:
            self._first, self._error, self._count = first, None, 0
        try:
            yield
            with self._changed:  # they end by themselves where the stream ended well
                self._changed.wait_for(lambda: not self._calls, END_S)
        finally:
            with self._changed:
                self._first = None
                self.cancel()
                self._changed.wait_for(lambda: not self._calls)
                error = self._error
            if error is not None:
                raise error

    def cancel(self) -> None:
        """Ends those that there are, whoever waits in them; takes no lock."""
        for call in tuple(self._calls):
            call.cancel()

    def start(self, key: bytes, count: int) -> None:
        """Opens `count` connections, on which answers of the stream come that the worker gave `key`."""
        first = self._first
        for number in range(count):
            name = f"{self._name}-{number}"
            thread = threading.Thread(target=self._run, args=(first, key), name=name, daemon=True)
            with self._changed:
                thread.start()
                self._threads.add(thread)

    def join(self, timeout_s: float) -> None:
        """Waits until the threads are gone, after `cancel`: one that still dials is ended by nobody."""
        until_s = time.monotonic() + timeout_s
        with self._changed:
            threads = self._threads - {threading.current_thread()}
        for thread in threads:
            thread.join(max(0.0, until_s - time.monotonic()))

    def _run(self, first: Call, key: bytes) -> None:
        try:
            self._join(first, key)
        finally:
            with self._changed:
                self._threads.discard(threading.current_thread())

    def _join(self, first: Call, key: bytes) -> None:
        try:
            with self._dial() as call, self._open(first, call):
                call.send(encode_request(Join(key)))
                if call.receive() is not None:  # what it says is that it took it
                    self._carry(first, call)
        except (FeederError, CallFailed) as error:
            log.debug("%s: no further connection: %s", self._name, error)

    @contextmanager
    def _open(self, first: Call, call: Call) -> Iterator[None]:
        """While a call is one that `cancel` ends."""
        with self._changed:
            if self._first is not first:
                raise CallFailed(grpc.StatusCode.CANCELLED, "it took too long")
            self._calls.add(call)
        try:
            yield
        finally:
            with self._changed:
                self._calls.discard(call)
                self._changed.notify_all()

    def _carry(self, first: Call, call: Call) -> None:
        with self._changed:
            self._count += 1
        try:
            self._receive(call)
        except (FeederError, CallFailed) as error:
            with self._changed:
                if self._first is first:
                    self._error = self._error or error
            first.cancel()
        except BaseException:
            first.cancel()
            raise
