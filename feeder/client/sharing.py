"""What a stream shares of its memory with which workers: carries out what `Buffers` decides."""

from __future__ import annotations

import logging
import threading
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from feeder.client.arena import Arena, Handover, hand_over
from feeder.client.buffers import Buffers, Write
from feeder.client.workers import WorkerInfo
from feeder.errors import Refused, ServiceError
from feeder.wire import max_slots

__all__ = ["Sharing", "Transport", "chunk_slots"]

log = logging.getLogger(__name__)

Transport: TypeAlias = Literal["auto", "shm", "grpc"]

SENT_BYTES = 32 * 224 * 224 * 3
PLACED_BYTES = 2 * SENT_BYTES
"""Most pixels of one chunk that comes over the network, 4.8 MB, and of one that a worker on this host writes
into the batch. What a chunk costs both sides besides its bytes was over 1 ms on a busy machine: chunks of 32
images took a fifth less processor time than chunks of 16, and those of 64 from a full cache a tenth less than
those of 32."""

END_TIMEOUT_S = 1.0
"""How long a worker that is dialled again may take to finish what it wrote for the connection before."""


def chunk_slots(image_bytes: int, *, placed: bool = False) -> int:
    """The most slots to ask a worker for at a time, which writes them into the batch or sends them."""
    return min(max_slots(image_bytes), max(1, (PLACED_BYTES if placed else SENT_BYTES) // image_bytes))


class Sharing:
    """The arena of a stream, once a worker on this host was found, and the workers that have it.

    All but `offer` are called with the stream's lock held.

    Args:
        transport: "auto", "shm" (who does not take the arena is refused) or "grpc" (nobody is asked).
        shape: of a batch's pixels.
        depth: batches that are ready or in the making at a time.
        lock: the stream's.

    Attributes:
        transports: how each worker that was connected gives its pixels: "shm" or "grpc".
    """

    def __init__(
        self, transport: Transport, shape: tuple[int, ...], depth: int, lock: threading.Lock
    ) -> None:
        self.transports: dict[str, str] = {}
        self._transport = transport
        self._shape = shape
        self._depth = depth
        self._lock = lock
        self._arena: Arena | None = None
        self._buffers = Buffers(0)
        #: One a worker: in use, or not ended yet.
        self._handovers: dict[str, Handover] = {}
        #: Workers that may be asked to write.
        self._live: set[str] = set()
        self._closed = False

    # Workers that come and go.

    def offer(self, name: str, info: WorkerInfo) -> bytes:
        """Gives the arena to a worker that is about to be called, if it is on this host: what Open tells of
        it, or nothing. Takes the lock, but not while it waits.

        Raises:
            Refused: the transport is "shm", and the worker does not take the arena.
        """
        if self._transport == "grpc":
            return b""
        try:
            if not info.side_socket:
                raise ServiceError("it has no socket for that")
            with self._lock:
                before = self._handovers.get(name)
            if before is not None and not before.ended(END_TIMEOUT_S):
                raise ServiceError("it may still be writing for the connection before")
            with self._lock:
                self._settle()
                arena = self._made_arena()
            handover = hand_over(arena, info.side_socket)
        except ServiceError as error:
            if self._transport == "shm":
                raise self._refused(name, str(error)) from None
            log.info("worker %s is served over the network: %s", name, error)
            return b""
        with self._lock:
            if self._closed:
                handover.close()
                return b""
            self._handovers[name] = handover
        return handover.token

    def opened(self, name: str, *, taken: bool) -> None:
        """A worker is connected, with the arena or without.

        Raises:
            Refused: the transport is "shm", and it is without.
        """
        if taken and name in self._handovers:
            self._live.add(name)
            self.transports[name] = "shm"
            return
        if not self._buffers.owes(name):  # else it may yet write for the connection before, and its end tells
            self._forget(name)
        if self._transport == "shm":
            raise self._refused(name, "it did not know the arena any more")
        self.transports[name] = "grpc"

    def lost(self, name: str) -> None:
        """A worker's connection ended, or nothing more is wanted of it; it may still be writing. Its socket
        stays until its end tells that it is not, or all are given back."""
        self._live.discard(name)
        handover = self._handovers.get(name)
        if handover is not None:
            handover.cancel()
            if not self._buffers.owes(name):
                self._forget(name)

    def close_all(self) -> None:
        """Gives back all sockets, and the arena; arrays that somebody keeps stay as they are."""
        self._closed = True
        self._live.clear()
        for name in list(self._handovers):
            self._forget(name)
        self._arena, self._buffers = None, Buffers(0)

    # Batches.

    def images(self) -> tuple[NDArray[np.uint8], int | None]:
        """An array for a new batch, and which buffer of the arena it is; None: memory of its own."""
        if self._arena is not None and self._live:
            self._settle()
            number = self._buffers.take()
            if number is not None:
                try:
                    return self._arena.array(number, self._shape), number
                except ServiceError as error:
                    log.warning("%s; batches come over the network", error)
                    self._buffers.dropped(number)
        return np.empty(self._shape, np.uint8), None

    def asks(self, request: int, worker: str, buffer: int | None, slot: int) -> bool:
        """Whether a worker shall write the answer to a request, a chunk that begins with this slot, into a
        buffer; from now on it may."""
        if buffer is None or worker not in self._live:
            return False
        write = Write(worker, buffer, slot)
        if not self._buffers.may_write(write):
            return False
        self._buffers.asked(request, write)
        return True

    def confirmed(self, worker: str, request: int) -> Write | None:
        """A worker answered a request: what it wrote for it, or would have; None where it should not have."""
        return self._buffers.confirmed(worker, request)

    def written(self, buffer: int | None, slot: int) -> bool:
        """Whether a worker may still be writing the chunk that begins with this slot."""
        return buffer is not None and self._buffers.written(buffer, slot)

    def view(self, buffer: int) -> NDArray[np.uint8]:
        """What a buffer holds, for as long as the lock is held."""
        assert self._arena is not None
        return self._arena.view(buffer, self._shape)

    def retired(self) -> int:
        """Buffers that wait for a worker to leave them alone, as far as is known now."""
        self._settle()
        return self._buffers.retired()

    def _made_arena(self) -> Arena:
        if self._arena is None:
            self._arena = Arena(int(np.prod(self._shape)), self._depth)
            self._buffers = Buffers(self._arena.count)
        return self._arena

    def _settle(self) -> None:
        """Takes note of what happened to buffers without a word."""
        while self._arena is not None and self._arena.dropped:
            self._buffers.dropped(self._arena.dropped.popleft())
        if self._handovers.keys() <= self._live:
            return
        for name in self._handovers.keys() - self._live:
            if self._handovers[name].ended():
                self._buffers.ended(name)
                self._forget(name)

    def _forget(self, name: str) -> None:
        handover = self._handovers.pop(name, None)
        if handover is not None:
            handover.close()

    @staticmethod
    def _refused(name: str, reason: str) -> Refused:
        return Refused(
            f"worker {name} does not write into this process's memory, as transport='shm' wants: {reason}; "
            "use transport='auto' to be served over the network then"
        )
