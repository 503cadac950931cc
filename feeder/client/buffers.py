"""Which buffer of an arena may be used for a new batch: events in, decisions out; no memory, no socket, no
clock.

    free --take--> in use --dropped--> free, where no worker may still write into it
                                       retired --confirmed, ended--> free

A worker may write into a buffer from when it was asked to until it answers, or until its socket's end says
that it will never. What it was asked to write is a part of the batch that nobody else writes meanwhile: a
second worker that is asked for the same slots is asked to send them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = ["Buffers", "Write"]

MOST_RETIRED = 2
"""Buffers that a worker may keep from being used again: one more, and it is asked into none."""


class Write(NamedTuple):
    """What a worker was asked to write: a chunk, known by its first slot, into a buffer."""

    worker: str
    buffer: int
    slot: int


@dataclass(slots=True)
class _Buffer:
    used: bool = False
    #: By request, what workers may still write.
    writes: dict[int, Write] = field(default_factory=dict)


class Buffers:
    """The state of `count` buffers."""

    def __init__(self, count: int) -> None:
        self._buffers = [_Buffer() for _ in range(count)]
        #: The one that was used last comes first: its pages are warm.
        self._free = list(range(count))[::-1]
        self._writes: dict[int, Write] = {}

    # Events.

    def take(self) -> int | None:
        """A buffer for a new batch; None if there is none."""
        if not self._free:
            return None
        number = self._free.pop()
        self._buffers[number].used = True
        return number

    def dropped(self, number: int) -> None:
        """The batch in a buffer is gone: nobody on this side reads or writes it."""
        self._buffers[number].used = False
        self._settle(number)

    def asked(self, request: int, write: Write) -> None:
        """A worker was asked to write."""
        self._writes[request] = self._buffers[write.buffer].writes[request] = write

    def confirmed(self, worker: str, request: int) -> Write | None:
        """A worker answered: what it was asked to write with this request, and will not any more; None where
        it was not asked to."""
        write = self._writes.get(request)
        if write is None or write.worker != worker:
            return None
        del self._writes[request], self._buffers[write.buffer].writes[request]
        self._settle(write.buffer)
        return write

    def ended(self, worker: str) -> None:
        """A worker's socket ended: it writes nothing more."""
        for request in [request for request, write in self._writes.items() if write.worker == worker]:
            self.confirmed(worker, request)

    # What the caller may ask.

    def may_write(self, write: Write) -> bool:
        """Whether a worker may be asked for this: nobody else may be writing the same, and it keeps no more
        than MOST_RETIRED buffers from being used again."""
        return not self.written(write.buffer, write.slot) and self.retired(write.worker) <= MOST_RETIRED

    def written(self, buffer: int, slot: int) -> bool:
        """Whether a worker may still write the chunk that begins with this slot into this buffer."""
        return any(write.slot == slot for write in self._buffers[buffer].writes.values())

    def owes(self, worker: str) -> bool:
        """Whether a worker may still write anything."""
        return any(write.worker == worker for write in self._writes.values())

    def retired(self, worker: str | None = None) -> int:
        """Buffers that are not used, and not free, because of a worker; or of any."""
        return len(
            {
                write.buffer
                for write in self._writes.values()
                if worker in (None, write.worker) and not self._buffers[write.buffer].used
            }
        )

    @property
    def free(self) -> int:
        """Buffers that `take` can give."""
        return len(self._free)

    def _settle(self, number: int) -> None:
        buffer = self._buffers[number]
        if not buffer.used and not buffer.writes:
            self._free.append(number)
