"""The folder that processes share: who uses it, how full it is, and files that appear whole or not at all.

    lock                       held for each decision; who dies lets go of it
    FAMILY-SIZE-CRC-ID.arrow   sealed segments; nothing else is ever read
    ID.part                    reserved, and perhaps half written; its writer holds a lock on it
    users/ID/user.json         who it is; that process holds a lock on it
    users/ID/*.arrow           hard links to the segments that it has mapped

A segment that is evicted loses its name in the folder, and its space when the last who has it mapped lets go:
as long as a link is left, its bytes are counted. What is locked no more was left by a process that died, and
goes.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from feeder.cache.segment import SegmentName
from feeder.errors import Closed, ConfigError, StorageError

__all__ = ["Folder", "Part", "User", "default_folder"]

LOCK_DEADLINE_S = 10.0
"""Decisions take milliseconds: who holds the lock for so long is stopped."""

_LOCK_POLL_S = 0.01

_SPARE_BYTES = 32
"""Of what a user says of itself, for a longer number."""

_LOCK = "lock"
_USERS = "users"
_USER = "user.json"
_PART = ".part"


def default_folder() -> Path:
    """Where the cache is unless told otherwise: in shared memory, by user."""
    return Path(f"/dev/shm/feeder-{os.geteuid()}")


@dataclass(frozen=True)
class User:
    """A process that uses the folder.

    Attributes:
        pid: its number, for messages.
        budget: bytes that it lets all users together take; where they differ, the least holds.
        family: of the segments that it can use (see `family`).
        shards: content of those that it serves.
    """

    pid: int
    budget: int
    family: str
    shards: frozenset[str]


class Part:
    """A file that is reserved for a segment; gone after close() unless it was published."""

    def __init__(self, path: Path, fd: int, capacity: int) -> None:
        self.path = path
        self.fd = fd
        self.capacity = capacity

    def close(self) -> None:
        """Gives the reserved bytes back. May be called again."""
        if self.fd >= 0:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path)
            os.close(self.fd)
            self.fd = -1


class Folder:
    """A cache folder, made where it is missing.

    Args:
        path: of the folder.
        option: what the options of `feeder worker` that set its place and size begin with, for messages.

    Raises:
        ConfigError: it cannot be used: somebody else's, or open to others, or no folder.
    """

    def __init__(self, path: Path, option: str = "--cache") -> None:
        self.path = path
        self.option = option
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = os.stat(path, follow_symlinks=False)
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
                raise ConfigError(
                    f"{path}: a cache must be a folder of your own that nobody else can write to: "
                    f"name another one ({option}-dir)"
                )
            (path / _USERS).mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"{path}: cannot keep a cache here: {error.strerror or error}: "
                f"name another folder ({option}-dir)"
            ) from error
        self._own: Path | None = None
        self._own_fd = -1

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """One decision at a time, over all processes; what dead ones left goes first.

        Raises:
            StorageError: another process holds the lock and does not go on, or the folder has no locks.
        """
        try:
            fd = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StorageError(f"{self.path}: cannot open the lock: {error.strerror}") from error
        try:
            deadline_s = time.monotonic() + LOCK_DEADLINE_S
            while not _try_lock(fd):
                if time.monotonic() > deadline_s:
                    raise StorageError(
                        f"{self.path}: locked for {LOCK_DEADLINE_S:g} s by a process that does not go on"
                    )
                time.sleep(_LOCK_POLL_S)
            self._sweep()
            yield
        finally:
            os.close(fd)

    def join(self, user: User) -> None:
        """Becomes a user of the folder, until leave(); call it under the lock.

        Raises:
            ConfigError: it is in use with another budget.
        """
        for other in self.users():
            if other.budget != user.budget:
                raise ConfigError(
                    f"{self.path}: process {other.pid} keeps a cache of at most {other.budget} bytes here, "
                    f"not {user.budget}: give both the same {self.option}-bytes, or each a folder of its own "
                    f"({self.option}-dir)"
                )
        own = self.path / _USERS / secrets.token_hex(4)
        own.mkdir(mode=0o700)
        self._own_fd = os.open(own / _USER, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        if not _try_lock(self._own_fd):
            raise ConfigError(
                f"{self.path}: this file system has no locks: name another folder ({self.option}-dir)"
            )
        self._own = own
        try:
            self.describe(user)
        except BaseException:
            self.leave()
            raise

    def describe(self, user: User) -> None:
        """Says of itself what others are to know; has them look at the folder. Call it under the lock.

        Raises:
            Closed: it is no user of the folder any more.
        """
        if self._own is None:
            raise Closed(f"{self.path}: this cache is closed")
        about = {
            "pid": user.pid,
            "budget": user.budget,
            "family": user.family,
            "shards": sorted(user.shards),
        }
        text = json.dumps(about).encode()
        # In place, since the lock is on this file, and in the room of the first time: there may be no other.
        size = os.fstat(self._own_fd).st_size or len(text) + _SPARE_BYTES
        os.pwrite(self._own_fd, text.ljust(size), 0)
        os.utime(self.path)

    def leave(self) -> None:
        """Ends the use; call it when nothing is mapped any more. May be called again."""
        if self._own is not None:
            shutil.rmtree(self._own, ignore_errors=True)
            os.close(self._own_fd)
            self._own = None

    def users(self) -> list[User]:
        """Everybody who uses the folder now; call it under the lock."""
        found = []
        for own in _entries(self.path / _USERS):
            with contextlib.suppress(FileNotFoundError):  # it leaves just now, for which it needs no lock
                about = json.loads((self.path / _USERS / own / _USER).read_bytes())
                found.append(User(about["pid"], about["budget"], about["family"], frozenset(about["shards"])))
        return found

    def names(self) -> list[str]:
        """Of the sealed segments, oldest first."""
        found = []
        for entry in os.scandir(self.path):
            if SegmentName.parse(entry.name) is not None:
                with contextlib.suppress(FileNotFoundError):
                    found.append((entry.stat().st_mtime_ns, entry.name))
        return [name for _, name in sorted(found)]

    def used(self) -> int:
        """Bytes of everything in the folder, also of what is evicted and still mapped."""
        sizes: dict[int, int] = {}
        for folder, _, names in os.walk(self.path):
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    status = os.stat(os.path.join(folder, name), follow_symlinks=False)
                    sizes[status.st_ino] = _bytes_of(status)
        return sum(sizes.values())

    def held(self) -> int:
        """Bytes of what was reserved or sealed and is not evicted."""
        found = 0
        for entry in os.scandir(self.path):
            with contextlib.suppress(FileNotFoundError):
                found += _bytes_of(entry.stat(follow_symlinks=False)) if entry.is_file() else 0
        return found

    def reserve(self, nbytes: int) -> Part | None:
        """Takes bytes for a segment; None where the file system is full. Call it under the lock.

        Raises:
            OSError: the folder cannot be written.
        """
        path = self.path / f"{secrets.token_hex(8)}{_PART}"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        part = Part(path, fd, nbytes)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Whole, now: a file that grows while it is written meets the end of the file system as a signal.
            os.posix_fallocate(fd, 0, nbytes)
        except OSError as error:
            part.close()
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                return None
            raise
        return part

    def publish(self, part: Part, name: str) -> None:
        """Makes a sealed segment of a part that was written, at once."""
        os.fchmod(part.fd, 0o400)
        os.rename(part.path, self.path / name)
        os.close(part.fd)
        part.fd = -1

    def link(self, name: str) -> Path:
        """Keeps a segment from being freed while it is mapped; the path to map it by.

        Raises:
            FileNotFoundError: it is gone.
        """
        assert self._own is not None
        with contextlib.suppress(FileExistsError):
            os.link(self.path / name, self._own / name)
        return self._own / name

    def unlink(self, name: str) -> None:
        """Ends what link() began."""
        if self._own is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._own / name)

    def evict(self, names: Iterable[str]) -> int:
        """Takes segments out of the folder; those who have them mapped keep them until they let go.

        Returns:
            How many bytes they have.
        """
        evicted = 0
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                status = os.stat(self.path / name, follow_symlinks=False)
                os.unlink(self.path / name)
                evicted += _bytes_of(status)
        return evicted

    def _sweep(self) -> None:
        for own in _entries(self.path / _USERS):
            place = self.path / _USERS / own
            if place != self._own and not _is_locked(place / _USER):
                shutil.rmtree(place, ignore_errors=True)
        for name in _entries(self.path):
            if name.endswith(_PART) and not _is_locked(self.path / name):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self.path / name)


def _bytes_of(status: os.stat_result) -> int:
    return max(status.st_size, 512 * status.st_blocks)


def _entries(folder: Path) -> Sequence[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return ()


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise StorageError(f"no locks here: {error.strerror}") from error
    return True


def _is_locked(path: Path) -> bool:
    """Whether a living process holds a lock on a file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        return not _try_lock(fd)
    finally:
        os.close(fd)
