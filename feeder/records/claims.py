"""Claims: which of several processes, on any hosts, makes a file that all of them want in a shared folder.

Whoever creates `.NAME.claim` beside the file to be has claimed it, and sets the claim's times anew while it
gets on. A claim that was left alone for LEASE_S belongs to a process that died or hangs, and goes to who
asks next. No clock but the file system's own is read, so hosts whose clocks differ agree on that.

Claims save work and promise nothing: in a bad moment (a process that slept for longer than a lease) two hold
one. So what is made must be the same by whomever, and put in place by renaming.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from feeder.records.storage import temporary

__all__ = ["LEASE_S", "Claim", "Claims", "leave_all"]

LEASE_S = 30.0
"""A file that nobody got on with for this long is free. Reading that stalls this long loses its claim, too:
then somebody else runs into what stalled it, and says so, instead of waiting for ever."""

BEATS = 6
"""How often a claim's times are set anew within a lease, at most."""

SETTLE_S = 0.25
"""After taking over a claim, how long until it is looked whether somebody else did so in the same moment."""

_LONGEST = 300

_held: dict[Path, bytes] = {}
"""What this process has claimed, and what its claims say."""


def leave_all() -> None:
    """Leaves all claims of this process, which is about to end; takes no lock, so a signal handler may."""
    for path, text in list(_held.items()):
        _unlink(path, text)


class Claim:
    """One claim that is held, until it is left."""

    def __init__(self, path: Path, fd: int, text: bytes) -> None:
        self._path = path
        self._fd = fd
        self._text = text
        self._next_s = time.monotonic() + LEASE_S / BEATS
        _held[path] = text

    def beat(self) -> None:
        """Says that the holder gets on; may be called as often as one likes, from any thread."""
        now_s = time.monotonic()
        if now_s >= self._next_s:
            self._next_s = now_s + LEASE_S / BEATS
            with contextlib.suppress(OSError):  # then somebody else makes it, too
                os.utime(self._fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)
        if _held.get(self._path) == self._text:
            del _held[self._path]
        _unlink(self._path, self._text)


class Claims:
    """The claims of one process in one folder, which is made if it is missing.

    Raises:
        OSError: from its methods, too: nothing can be written in the folder.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder

    def take(self, path: Path) -> Claim | None:
        """Claims a file of the folder; None where somebody else has."""
        claim = _claim_of(path)
        text = f"{socket.gethostname()}:{os.getpid()} {secrets.token_hex(8)}".encode()
        try:
            fd = os.open(claim, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        except FileExistsError:
            return self._take_over(claim, text)
        try:
            os.fchmod(fd, 0o644)
            os.write(fd, text)
        except BaseException:
            os.close(fd)
            os.unlink(claim)
            raise
        return Claim(claim, fd, text)

    def holder(self, path: Path) -> str:
        """Host and process that claimed a file last, for a person to read; "" where nobody has."""
        try:
            return _look(_claim_of(path))[0].decode("utf-8", "replace").partition(" ")[0]
        except OSError:
            return ""

    def _take_over(self, claim: Path, text: bytes) -> Claim | None:
        try:
            _, touched_s = _look(claim)
        except FileNotFoundError:
            return None  # left in this moment, so most likely its file is there
        if abs(self._now_s() - touched_s) < LEASE_S:  # a time to come is from before a clock was set right
            return None
        with temporary(claim) as (fd, hidden):
            os.write(fd, text)
            os.fchmod(fd, 0o644)
            os.replace(hidden, claim)
            kept = os.dup(fd)
        time.sleep(SETTLE_S)
        taken = Claim(claim, kept, text)
        try:
            if _look(claim)[0] == text:
                return taken
        except FileNotFoundError:
            pass
        with taken:  # another was faster, or has made the file by now
            return None

    def _now_s(self) -> float:
        """The time that the file system gives to what is written now."""
        with tempfile.TemporaryFile(dir=self._folder) as file:
            os.utime(file.fileno())
            return os.fstat(file.fileno()).st_mtime


def _claim_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.claim")


def _unlink(claim: Path, text: bytes) -> None:
    """Removes a claim unless it is another's by now."""
    with contextlib.suppress(OSError):
        if _look(claim)[0] == text:
            os.unlink(claim)


def _look(claim: Path) -> tuple[bytes, float]:
    """What a claim says, and its time in seconds; opened, which makes a network file system ask anew. A link
    is an error: one that leads nowhere would look like a claim that was just left, for ever."""
    fd = os.open(claim, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    try:
        return os.read(fd, _LONGEST), os.fstat(fd).st_mtime
    finally:
        os.close(fd)
