"""Names that stand for workers: looked up at the start, and again while a stream runs."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue

from feeder.errors import WorkerUnavailable
from feeder.wire.address import Address

__all__ = ["Watch", "resolve"]

log = logging.getLogger(__name__)


def resolve(addresses: Sequence[Address]) -> list[Address]:
    """The addresses, each "dns:" name replaced by all that it stands for now.

    Raises:
        WorkerUnavailable: a name stands for nothing.
    """
    resolved: list[Address] = []
    for address in addresses:
        if address.kind != "dns":
            resolved.append(address)
            continue
        try:
            answers = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:  # UnicodeError: a label that is empty or too long
            raise WorkerUnavailable(
                f"the name {address.host!r} of {address} does not resolve ({error}); check it"
            ) from error
        resolved += [Address("tcp", str(answer[4][0]), address.port, name=address.host) for answer in answers]
    return list(dict.fromkeys(resolved))


class Watch:
    """Looks names up every `period_s` seconds, on a thread of its own, and tells what they stand for.

    Names that do not resolve for a while change nothing: what was found before stays.
    """

    def __init__(
        self, look_up: Callable[[], list[Address]], period_s: float, found: Callable[[list[Address]], None]
    ) -> None:
        self._look_up = look_up
        self._period_s = period_s
        self._found = found
        # No Event: `stop` may run inside a garbage collection, where only the put of a SimpleQueue is safe.
        self._stopped: SimpleQueue[None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="feeder-names", daemon=True)

    def start(self) -> None:
        """Looks up from now on, the first time after one period."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread soon, without waiting."""
        self._stopped.put(None)

    def join(self, timeout_s: float) -> None:
        """Waits until the thread is gone, after `stop`. A look-up that the system is at cannot be cut short;
        resolv.conf says how long it may take."""
        if self._thread.ident is not None:
            self._thread.join(max(0.0, timeout_s))

    def _run(self) -> None:
        missed = False
        while not self._is_stopped():
            try:
                addresses = self._look_up()
            except WorkerUnavailable as error:
                if not missed:
                    log.warning("%s; the workers of before are kept", error)
                missed = True
                continue
            missed = False
            self._found(addresses)

    def _is_stopped(self) -> bool:
        """Waits for the end of one period; whether it was stopped meanwhile."""
        try:
            self._stopped.get(timeout=self._period_s)
        except Empty:
            return False
        return True
