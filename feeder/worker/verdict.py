"""What became of a reload, told to who asked for it.

`feeder reload` listens at a socket that the worker's number names, sends SIGHUP, and is called. The worker
calls before it reads its settings: what it says in the end is of those that there were when it was asked.
Whoever sends only the signal reads the log.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Self

from feeder.errors import ConfigError
from feeder.wire.side import peer_pid, peer_uid

__all__ = ["Asker", "Verdict", "telling"]

TELL_S = 5.0
"""For who asked to take what it is told."""

_PIECE_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a reload.

    Attributes:
        taken: whether the settings were; else all is as before.
        text: what was taken, or why nothing was.
        restart: what has changed and needs a restart, in words; "" where nothing does.
        doubts: what the settings say and hardly mean, one a line.
    """

    taken: bool
    text: str
    restart: str = ""
    doubts: str = ""


class Asker:
    """Listens for the verdict of a worker of this host, also one of another user where this is root's.

    Args:
        pid: of its process.

    Raises:
        ConfigError: somebody else listens for it.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._listener.bind(_name(pid))
            self._listener.listen()
        except OSError as error:
            self._listener.close()
            raise ConfigError(
                f"another `feeder reload` waits for process {pid} ({error.strerror}): try again after it"
            ) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def hear(self, timeout_s: float) -> Verdict | None:
        """The verdict of a reload that began after this was made; None: it did not come in time."""
        deadline_s = time.monotonic() + timeout_s
        with contextlib.suppress(TimeoutError):
            while True:
                self._listener.settimeout(_left_s(deadline_s))
                connection, _ = self._listener.accept()
                with connection:
                    if peer_pid(connection) == self._pid:
                        return _parsed(_all_of(connection, deadline_s))
        return None


@contextlib.contextmanager
def telling() -> Iterator[Callable[[Verdict], None]]:
    """For a reload that begins: calls who asked for it, if anybody did; gives what tells the verdict."""
    with contextlib.ExitStack() as stack:
        asker = None
        with contextlib.suppress(
            OSError
        ):  # nobody listens; or there are no descriptors left, and still a reload
            connection = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            connection.settimeout(TELL_S)
            connection.connect(_name(os.getpid()))
            if peer_uid(connection) in (os.geteuid(), 0):
                asker = connection

        def tell(verdict: Verdict) -> None:
            if asker is not None:
                with contextlib.suppress(OSError):
                    asker.sendall(json.dumps(asdict(verdict)).encode())

        yield tell


def _name(pid: int) -> str:
    return f"\0feeder-reload-{pid}"


def _left_s(deadline_s: float) -> float:
    left_s = deadline_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s


def _parsed(text: bytes) -> Verdict:
    try:
        return Verdict(**json.loads(text))
    except ValueError:  # it is cut short, or nothing at all
        return Verdict(False, "its process has ended")


def _all_of(connection: socket.socket, deadline_s: float) -> bytes:
    received = bytearray()
    while True:
        connection.settimeout(_left_s(deadline_s))
        piece = connection.recv(_PIECE_BYTES)
        if not piece:
            return bytes(received)
        received += piece
