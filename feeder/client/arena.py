"""The memory that this client shares with workers on its host: batch buffers in a sealed memfd.

A buffer is an array, and its memory goes back to the arena when that array and all views of it are gone, be
they NumPy's, PyTorch's or a memoryview.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import select
import socket
import weakref
from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feeder.cgroup import memory_limit
from feeder.errors import ServiceError
from feeder.wire.messages import ArenaOffer
from feeder.wire.side import (
    MAX_BUFFERS,
    SEALS,
    SIDE_TIMEOUT_S,
    may_share,
    peer_uid,
    receive_token,
    send_offer,
    side_socket,
)

__all__ = ["Arena", "Handover", "hand_over"]

SPARE_BUFFERS = 4
"""Beyond those that are ready or in the making: for the batch in use, the one before it, and two that
somebody keeps, such as a transfer to a device."""

MEMORY_SHARE = 0.5
"""Of what the cgroup allows this process: the arena never takes more."""


class Arena:
    """Batch buffers of one stream.

    Args:
        batch_bytes: pixels of one batch.
        depth: batches that are ready or in the making at a time.

    Attributes:
        count: buffers.
        dropped: numbers of buffers whose arrays are gone; safe to append to at any moment, a garbage
            collection included.

    Raises:
        ServiceError: the system, or the limit of memory, has none to give.
    """

    def __init__(self, batch_bytes: int, depth: int) -> None:
        page = mmap.PAGESIZE
        self._buffer_bytes = -(-batch_bytes // page) * page
        self.count = min(depth + SPARE_BUFFERS, MAX_BUFFERS)
        limit = memory_limit()
        if limit is not None:
            self.count = min(self.count, int(limit * MEMORY_SHARE) // self._buffer_bytes)
        if self.count < 1:
            raise ServiceError(
                f"a batch of {batch_bytes} bytes is over half of the {limit} that the cgroup allows"
            )
        self.dropped: deque[int] = deque()
        self._reserved: set[int] = set()
        try:
            fd = os.memfd_create("feeder-arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except (OSError, AttributeError) as error:
            raise ServiceError(f"the system gives no memfd ({error})") from None
        try:
            os.ftruncate(fd, self.offer.nbytes)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
            self._memory = np.frombuffer(mmap.mmap(fd, self.offer.nbytes), np.uint8)
            self._address = self._memory.ctypes.data
        except OSError as error:
            os.close(fd)
            raise ServiceError(f"{self.offer.nbytes} bytes cannot be mapped ({error.strerror})") from None
        self.fd = fd
        # Not before the last thread that may send it has let go of this object.
        weakref.finalize(self, os.close, fd)

    @property
    def offer(self) -> ArenaOffer:
        """What a worker is told of it."""
        return ArenaOffer(self.count, self._buffer_bytes)

    def array(self, number: int, shape: tuple[int, ...]) -> NDArray[np.uint8]:
        """A buffer as a new array, uint8 of this shape and page-aligned; `dropped` hears when it, and all
        that was made of it, are gone.

        Raises:
            ServiceError: the system has no memory left for a buffer that was not used before.
        """
        begin = number * self._buffer_bytes
        if number not in self._reserved:
            # Now, by this process: memory that a worker's first write would take counts for the worker, and
            # kills it where there is none.
            try:
                os.posix_fallocate(self.fd, begin, self._buffer_bytes)
            except OSError as error:
                raise ServiceError(f"no memory for one more buffer ({error.strerror})") from None
            self._reserved.add(number)
        return np.asarray(_Lease(self._memory, self._address + begin, number, self.dropped, shape))

    def view(self, number: int, shape: tuple[int, ...]) -> NDArray[np.uint8]:
        """A buffer as an array that nobody hears of; to be gone before the buffer is used again."""
        begin = number * self._buffer_bytes
        return self._memory[begin : begin + int(np.prod(shape))].reshape(shape)


class _Lease:
    """What an array over a buffer, and every view of it, keeps alive."""

    def __init__(
        self,
        memory: NDArray[np.uint8],
        address: int,
        number: int,
        dropped: deque[int],
        shape: tuple[int, ...],
    ) -> None:
        self._memory = memory
        self._number = number
        self._dropped = dropped
        self.__array_interface__: dict[str, Any] = {
            "version": 3,
            "shape": shape,
            "typestr": "|u1",
            "data": (address, False),
        }

    def __del__(self) -> None:
        self._dropped.append(self._number)


class Handover:
    """An arena in the hands of one worker: the socket whose end says that it lets it alone.

    Attributes:
        token: what Open tells the worker of it.
    """

    def __init__(self, connection: socket.socket, token: bytes) -> None:
        self.token = token
        self._connection = connection

    def cancel(self) -> None:
        """Asks the worker to write no more; `ended` comes true when it does not."""
        self._shut(socket.SHUT_WR)

    def ended(self, timeout_s: float = 0.0) -> bool:
        """Whether the worker will write no more, waited for so long. True where another thread has closed
        this, which is only done then."""
        poll = select.poll()
        try:
            poll.register(self._connection, select.POLLIN)
        except ValueError:  # closed
            return True
        return bool(poll.poll(timeout_s * 1000))

    def close(self) -> None:
        """Gives back the socket, whose end the worker then sees. May be called twice."""
        self._shut(socket.SHUT_RDWR)  # a child that was forked has it, too
        self._connection.close()

    def _shut(self, how: int) -> None:
        with contextlib.suppress(OSError):  # it ended before
            self._connection.shutdown(how)


def hand_over(arena: Arena, path: str) -> Handover:
    """Offers an arena to the worker whose side socket has this path.

    Raises:
        ServiceError: it is not on this host, or does not take it.
    """
    if not path:
        raise ServiceError("the worker has no side socket")
    if not os.path.isabs(path):
        raise ServiceError(f"the worker's side socket has no absolute path: {path!r}")
    try:
        connection = side_socket()
    except OSError as error:
        raise ServiceError(f"no socket for {path}: {error.strerror}") from None
    try:
        connection.settimeout(SIDE_TIMEOUT_S)
        connection.connect(path)
        uid, own = peer_uid(connection), os.geteuid()
        if not may_share(uid, own):
            raise ServiceError(f"user {uid} listens at {path}, and this process runs as user {own}")
        send_offer(connection, arena.fd, arena.offer)
        return Handover(connection, receive_token(connection))
    except OSError as error:
        connection.close()
        raise ServiceError(f"{path}: {error.strerror or error}") from None
    except BaseException:
        connection.close()
        raise
