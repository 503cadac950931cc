"""Which stream's request is worked on next: events in, jobs out; no thread, no clock, no bytes.

    asked --take--> in the works --answered--> credit is free --sent--> bytes are free

Streams take turns. A stream whose answers are not fetched stops at its share of the budget for unsent bytes,
and leaves its turns to others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field

from feeder.errors import ConfigError
from feeder.wire.messages import ChunkRequest

__all__ = ["Job", "Scheduler"]


@dataclass(frozen=True, slots=True)
class Job:
    """A request whose turn it is; `nbytes` of its stream's share are reserved until it is sent."""

    stream: int
    request: ChunkRequest
    nbytes: int


@dataclass(slots=True)
class _Stream:
    image_bytes: int
    pending: deque[ChunkRequest] = field(default_factory=deque)
    outstanding: int = 0
    unsent_bytes: int = 0


class Scheduler:
    """State of all streams' requests.

    Args:
        budget_bytes: of pixels that are made or wait to be sent, over all streams, which share it equally.
        stream_bytes: a stream's share is no more than this.
        max_outstanding: requests of one stream that may be unanswered at a time.

    A share always lets one chunk through, however large; so the bound is the budget plus one chunk a stream.
    """

    def __init__(self, budget_bytes: int, stream_bytes: int, max_outstanding: int) -> None:
        self._budget_bytes = budget_bytes
        self._stream_bytes = stream_bytes
        self.max_outstanding = max_outstanding
        self._streams: dict[int, _Stream] = {}
        # Each stream that has a pending request, in the order of their turns.
        self._turns: deque[int] = deque()

    @property
    def waiting(self) -> bool:
        """Whether any request has not been taken; `take` may still find that none has room."""
        return bool(self._turns)

    def open(self, stream: int, image_bytes: int) -> None:
        """A stream begins, whose images have `image_bytes` bytes each."""
        self._streams[stream] = _Stream(image_bytes)

    def close(self, stream: int) -> None:
        """A stream ends; what it asked for and did not get is forgotten."""
        if self._streams.pop(stream, None) and stream in self._turns:
            self._turns.remove(stream)

    def ask(self, stream: int, request: ChunkRequest) -> None:
        """A request came.

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
        if not state.pending:
            self._turns.append(stream)
        state.pending.append(request)

    def take(self, without: Collection[int] = ()) -> Job | None:
        """The next request to work on; None if there is none whose stream has room for the answer.

        Args:
            without: streams that leave their turns to others now.
        """
        share = min(self._stream_bytes, self._budget_bytes // max(1, len(self._streams)))
        for _ in range(len(self._turns)):
            stream = self._turns.popleft()
            state = self._streams[stream]
            nbytes = len(state.pending[0].slots) * state.image_bytes
            if stream in without or (state.unsent_bytes and state.unsent_bytes + nbytes > share):
                self._turns.append(stream)
                continue
            request = state.pending.popleft()
            state.unsent_bytes += nbytes
            if state.pending:
                self._turns.append(stream)
            return Job(stream, request, nbytes)
        return None

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
