"""Files that are kept open between reads, within a bound."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable

from feeder.errors import Closed

__all__ = ["OpenFile", "OpenFiles"]


class OpenFile:
    """A descriptor and how many use it now."""

    __slots__ = ("fd", "users")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.users = 1


class OpenFiles:
    """Descriptors of recently used files, at most `limit` beyond those in use at this moment.

    A descriptor is closed only while nobody reads from it, so that its number cannot come to mean another
    file in the middle of a read.
    Files are named by numbers that the caller chooses.

    Attributes:
        bytes_read: sum of what release() was told.
        retries: sum of what count_retry() was told.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._files: OrderedDict[int, OpenFile] = OrderedDict()
        self._lock = threading.Lock()
        self._closed = False
        self.bytes_read = 0
        self.retries = 0

    def acquire(self, number: int, open_fd: Callable[[], int]) -> OpenFile:
        """The file of this number, opened if need be, which stays open until release().

        Raises:
            Closed: after close().
        """
        with self._lock:
            if self._closed:
                raise Closed("the data set is closed")
            file = self._files.get(number)
            if file is not None:
                file.users += 1
                self._files.move_to_end(number)
                return file
        file = OpenFile(open_fd())  # without the lock: storage may take its time
        with self._lock:
            other = self._files.get(number)
            if other is None and not self._closed:
                self._files[number] = file
                self._shrink(self._limit)
                return file
            os.close(file.fd)
            if self._closed:
                raise Closed("the data set is closed")
            assert other is not None
            other.users += 1
            return other

    def release(self, number: int, file: OpenFile, nbytes: int, *, reusable: bool = True) -> None:
        """Ends a use of `file` in which `nbytes` were read; a file that failed is not used again."""
        with self._lock:
            self.bytes_read += nbytes
            file.users -= 1
            if not reusable and self._files.get(number) is file:
                del self._files[number]
            if file.users == 0 and self._files.get(number) is not file:
                os.close(file.fd)

    def count_retry(self) -> None:
        with self._lock:
            self.retries += 1

    def close(self) -> None:
        """Closes all files; those in use when their readers release them."""
        with self._lock:
            self._closed = True
            for file in self._files.values():
                if file.users == 0:
                    os.close(file.fd)
            self._files.clear()

    def _shrink(self, limit: int) -> None:
        surplus = len(self._files) - limit
        if surplus > 0:
            for number in [number for number, file in self._files.items() if file.users == 0][:surplus]:
                os.close(self._files.pop(number).fd)
