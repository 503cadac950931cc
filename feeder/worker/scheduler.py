"""Which stream's request is worked on next: events in, jobs out; no thread, no clock, no bytes.

    asked --take--> in the works --answered--> credit is free --sent--> bytes are free

Jobs take turns, and the streams of a job among themselves: next is who was given the fewest images. So a
job of eight streams gets no more than a job of one, and small chunks get as much as large ones. A stream
whose answers are not fetched stops at its share of the budget for unsent bytes, and leaves its turns to
others; what it leaves is not made up for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Generic, Protocol, TypeVar

from feeder.errors import ConfigError
from feeder.wire.messages import ChunkRequest

__all__ = ["Job", "Scheduler"]

BUDGET_BYTES = 512 << 20
STREAM_BYTES = 128 << 20
"""Pixels that are made or wait to be sent: of all streams, and of one. 128 MiB are 27 chunks of 32 images of
224 pixels, a tenth of a second of what the fastest host takes."""

MAX_OUTSTANDING = 256
"""Requests of one stream that may be unanswered: 8,192 images in chunks of 32."""


@dataclass(slots=True)
class Job:
    """A request whose turn it is; `nbytes` of its stream's share are reserved until it is sent.

    `since_s` is when it came into the stage that it is in, at first when it was asked; see `Stages`. `passed`
    are those before with their beginnings and ends, where the request is traced.
    """

    stream: int
    request: ChunkRequest
    nbytes: int
    since_s: float = field(default=0.0, compare=False)
    passed: list[tuple[str, float, float]] = field(default_factory=list, compare=False)


class _Served(Protocol):
    images: int
    """That it was given, and those that it let go by."""


_Who = TypeVar("_Who", bound=_Served)


class _Turns(Generic[_Who]):
    """Who wants something: who was given the fewest images comes first, then who waited longest.

    Start-time fair queueing (Goyal, Vin and Cheng 1996): who had nothing to ask for begins where the others
    are, so that a rest earns nothing.

    Attributes:
        heap: who wants something; next is the first.
    """

    def __init__(self) -> None:
        self.heap: list[tuple[int, int, _Who]] = []
        self._ticks = count()
        self._level = 0

    def add(self, who: _Who) -> None:
        """It wants something again."""
        who.images = max(who.images, self._level)
        heappush(self.heap, (who.images, next(self._ticks), who))

    def pop(self) -> _Who:
        """The next, which wants nothing until it is added."""
        return heappop(self.heap)[2]

    def serve(self, who: _Who, images: int) -> None:
        """Who was popped is given something."""
        self._level = max(self._level, who.images)
        who.images += images

    def discard(self, who: _Who) -> None:
        """It wants nothing any more."""
        self.heap = [entry for entry in self.heap if entry[2] is not who]
        heapify(self.heap)


@dataclass(slots=True, eq=False)
class _Stream:
    number: int
    job: str
    image_bytes: int
    #: And when each came.
    pending: deque[tuple[ChunkRequest, float]] = field(default_factory=deque)
    outstanding: int = 0
    unsent_bytes: int = 0
    images: int = 0


@dataclass(slots=True, eq=False)
class _Job:
    turns: _Turns[_Stream] = field(default_factory=_Turns)
    streams: int = 0
    images: int = 0


class Scheduler:
    """State of all streams' requests.

    Args:
        budget_bytes: of pixels that are made or wait to be sent, over all streams, which share it equally.
        stream_bytes: a stream's share is no more than this.
        max_outstanding: requests of one stream that may be unanswered at a time.

    A share always lets one chunk through, however large; so the bound is the budget plus one chunk a stream.
    """

    def __init__(
        self,
        budget_bytes: int = BUDGET_BYTES,
        stream_bytes: int = STREAM_BYTES,
        max_outstanding: int = MAX_OUTSTANDING,
    ) -> None:
        self._budget_bytes = budget_bytes
        self._stream_bytes = stream_bytes
        self.max_outstanding = max_outstanding
        self._streams: dict[int, _Stream] = {}
        self._jobs: dict[str, _Job] = {}
        # Each job that has a stream with a pending request; each such stream is in its job's turns.
        self._turns: _Turns[_Job] = _Turns()

    @property
    def waiting(self) -> bool:
        """Whether any request has not been taken; `take` may still find that none has room."""
        return bool(self._turns.heap)

    @property
    def pending(self) -> int:
        """Requests that have not been taken."""
        return sum(len(state.pending) for state in self._streams.values())

    def open(self, stream: int, image_bytes: int, job: str = "") -> None:
        """A stream begins, whose images have `image_bytes` bytes each; streams of one job share its turns."""
        self._streams[stream] = _Stream(stream, job, image_bytes)
        self._jobs.setdefault(job, _Job()).streams += 1

    def close(self, stream: int) -> None:
        """A stream ends; what it asked for and did not get is forgotten."""
        state = self._streams.pop(stream, None)
        if state is None:
            return
        job = self._jobs[state.job]
        if state.pending:
            job.turns.discard(state)
            if not job.turns.heap:
                self._turns.discard(job)
        job.streams -= 1
        if not job.streams:
            del self._jobs[state.job]

    def ask(self, stream: int, request: ChunkRequest, now_s: float = 0.0) -> None:
        """A request came, now.

        Raises:
            ConfigError: more requests are unanswered than Opened allowed.
        """
        state = self._streams[stream]
        if state.outstanding >= self.max_outstanding:
            raise ConfigError(
                f"chunk request {request.id} is one too many: {state.outstanding} are unanswered, and Opened "
                f"allowed {self.max_outstanding}"
            )
        state.outstanding += 1
        state.pending.append((request, now_s))
        if len(state.pending) == 1:
            job = self._jobs[state.job]
            if not job.turns.heap:
                self._turns.add(job)
            job.turns.add(state)

    def take(self, without: Collection[int] = ()) -> Job | None:
        """The next request to work on; None if there is none whose stream has room for the answer.

        Args:
            without: streams that leave their turns to others now.
        """
        share = min(self._stream_bytes, self._budget_bytes // max(1, len(self._streams)))
        passed: list[_Job] = []
        found = None
        while self._turns.heap and found is None:
            job = self._turns.pop()
            passed.append(job)
            found = self._take_of(job, share, without)
        for job in passed:
            if job.turns.heap:
                self._turns.add(job)
        return found

    def _take_of(self, job: _Job, share: int, without: Collection[int]) -> Job | None:
        passed: list[_Stream] = []
        found = None
        while job.turns.heap and found is None:
            state = job.turns.pop()
            passed.append(state)
            request, asked_s = state.pending[0]
            images = len(request.slots)
            nbytes = images * state.image_bytes
            if state.number in without or (state.unsent_bytes and state.unsent_bytes + nbytes > share):
                continue
            work = max(1, images)  # one that asks for nothing, which is answered, too, counts as one
            job.turns.serve(state, work)
            self._turns.serve(job, work)
            state.pending.popleft()
            state.unsent_bytes += nbytes
            found = Job(state.number, request, nbytes, asked_s)
        for state in passed:
            if state.pending:
                job.turns.add(state)
        return found

    def answered(self, job: Job) -> None:
        """The answer to a job is about to be sent: who gets it may ask anew at once."""
        state = self._streams.get(job.stream)
        if state is not None:
            state.outstanding -= 1

    def sent(self, job: Job) -> None:
        """The answer to a job left the worker, or will never: its bytes are free again."""
        state = self._streams.get(job.stream)
        if state is not None:
            state.unsent_bytes -= job.nbytes

    def owed(self, stream: int) -> int:
        """Requests of the stream that are not answered; 0 for one that ended."""
        state = self._streams.get(stream)
        return state.outstanding if state else 0
