"""Storage: retrying what it refuses for a moment, and files that appear whole.

A storage error never makes a record bad.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from feeder.errors import StorageError

__all__ = ["RETRY_DELAYS_S", "locked", "retry", "temporary"]

RETRY_DELAYS_S = (0.05, 0.25, 1.0)
"""Pauses before the second, third and last attempt; a network file system that fails over takes longer than
this, and then another worker may have the data."""

# Waiting does not help against these.
_FINAL = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)

T = TypeVar("T")


def retry(
    attempt: Callable[[], T],
    where: str,
    *,
    pause: Callable[[float], object] = time.sleep,
    on_retry: Callable[[], None] | None = None,
) -> T:
    """The result of `attempt`, which is called up to four times while it raises OSError.

    Args:
        attempt: reads something; has no effect when it fails.
        where: file that the error names.
        pause: waits a number of seconds; may raise to give up.
        on_retry: called before each further attempt.

    Raises:
        StorageError: the last attempt failed, or the file is gone or may not be read.
    """
    for delay_s in (*RETRY_DELAYS_S, None):
        try:
            return attempt()
        except StorageError:
            raise
        except OSError as error:
            if delay_s is None or isinstance(error, _FINAL):
                tried = "" if delay_s is not None else f" ({len(RETRY_DELAYS_S) + 1} attempts)"
                raise StorageError(f"{where}: cannot read: {error.strerror or error}{tried}") from error
        if on_retry is not None:
            on_retry()
        pause(delay_s)
    raise AssertionError("unreachable")


@contextlib.contextmanager
def temporary(path: Path) -> Iterator[tuple[int, Path]]:
    """A hidden file beside `path`, open, and gone afterwards unless renamed; those of killed builds go first.

    A living build holds a lock on its file, which ends with the process.
    """
    prefix, suffix = f".{path.name}.", ".tmp"
    for name in os.listdir(path.parent):
        if name.startswith(prefix) and name.endswith(suffix):
            with contextlib.suppress(OSError):
                fd = os.open(path.parent / name, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os.unlink(path.parent / name)
                finally:
                    os.close(fd)
    while True:
        fd, name = tempfile.mkstemp(prefix=prefix, suffix=suffix, dir=path.parent)
        with contextlib.suppress(OSError):  # no locks here: then nobody else gets one either
            fcntl.flock(fd, fcntl.LOCK_EX)
        if os.fstat(fd).st_nlink:
            break
        os.close(fd)  # another build took it for a leftover before it was locked
    try:
        yield fd, Path(name)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
    finally:
        os.close(fd)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One at a time, of those who ask, changes a folder; the others wait for the few renames that takes."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):  # no locks here: then nobody else gets one either
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
