"""What stands for workers, names and functions: looked up at the start, and again while a stream runs."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue

from feeder.errors import FeederError, WorkerUnavailable
from feeder.wire.address import Address, parse_target

__all__ = ["Target", "Watch", "ask", "resolve"]

Target = str | Sequence[str] | Callable[[], str | Sequence[str]]
"""Where workers are: addresses, or a function that says where they are now."""

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


def ask(target: Callable[[], str | Sequence[str]]) -> list[Address]:
    """The addresses that a function of the caller's names now, "dns:" names among them looked up.

    Raises:
        ConfigError: it returns something else.
        WorkerUnavailable: it raised, or names none.
    """
    try:
        found = target()
    except FeederError:
        raise
    except Exception as error:
        raise WorkerUnavailable(f"the function that names the workers failed: {error!r}") from error
    if not found:
        raise WorkerUnavailable("the function that names the workers names none now")
    return resolve(parse_target(found))


class Watch:
    """Looks names up every `period_s` seconds, on a thread of its own, and tells what they stand for.

    A look-up that fails changes nothing: what was found before stays.
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
            except FeederError as error:
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
