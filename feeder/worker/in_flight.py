"""Chunks whose records are on their way from object stores, within bounds."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from feeder.batch import Asked
from feeder.records import Reading
from feeder.worker.answers import OpenStream
from feeder.worker.scheduler import Job
from feeder.worker.shared_chunks import Share

__all__ = ["AHEAD_BYTES", "AHEAD_CHUNKS", "Coming", "InFlight", "Work"]

AHEAD_CHUNKS = 64
AHEAD_BYTES = 256 << 20
"""Chunks, and bytes of their records, that are asked for from object stores ahead of who decodes them."""


@dataclass(slots=True)
class Work:
    """A request whose turn has come, and the chunk that it shares with others if it does."""

    opened: OpenStream
    job: Job
    share: Share | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Coming:
    """A chunk whose records were asked for from an object store."""

    work: Work
    asked: Asked
    reading: Reading


class InFlight:
    """What is coming. The pipeline's lock guards it.

    Attributes:
        came: what came and was not taken up.
    """

    def __init__(self) -> None:
        self._all: set[Coming] = set()
        self._bytes = 0
        self.came: deque[Coming] = deque()

    @property
    def may_ask(self) -> bool:
        """Whether there is room for one more."""
        return len(self._all) < AHEAD_CHUNKS and self._bytes < AHEAD_BYTES

    def add(self, coming: Coming) -> None:
        """One more was asked for."""
        self._all.add(coming)
        self._bytes += coming.reading.nbytes

    def note_came(self, coming: Coming) -> None:
        """All of it is here, or will not come."""
        self.came.append(coming)

    def take(self) -> Coming:
        """The one that came first."""
        coming = self.came.popleft()
        self._all.discard(coming)
        self._bytes -= coming.reading.nbytes
        return coming

    def clear(self) -> None:
        """Forgets all."""
        self.came.clear()
        self._all.clear()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Coming]:
        return iter(self._all)
