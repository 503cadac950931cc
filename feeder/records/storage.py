"""Retrying what storage refuses for a moment. A storage error never makes a record bad."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from feeder.errors import StorageError

__all__ = ["RETRY_DELAYS_S", "retry"]

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
