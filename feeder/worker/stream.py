"""One Feed call, between the thread that reads requests, the pipeline, and the thread that sends answers."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from feeder.errors import Closed, FeederError, ProtocolError
from feeder.worker.access import Pace
from feeder.worker.scheduler import Job

__all__ = ["Answer", "Spent", "Stream"]


class Answer(NamedTuple):
    """A FeedReply as bytes, the job that it answers if any, its images, their bytes in the client's arena,
    those that were copied instead of made, and when it was made, by the clock of the job."""

    data: bytes
    job: Job | None = None
    images: int = 0
    placed_bytes: int = 0
    shared_bytes: int = 0
    made_s: float = 0.0


class Spent(NamedTuple):
    """Seconds that all answers together waited for the socket, but for those that were posted, and those that
    were spent in `pause`."""

    unsent_s: float = 0.0
    paced_s: float = 0.0


class _Count(NamedTuple):
    """So many there are, and the seconds of all that there were, together, up to `since_s`."""

    size: int = 0
    sum_s: float = 0.0
    since_s: float = 0.0

    def later(self, change: int = 0) -> _Count:
        now_s = time.perf_counter()
        return _Count(self.size + change, self.sum_s + self.size * (now_s - self.since_s), now_s)


class Stream:
    """Collects answers for the threads that send them; ends once, for whatever reason comes first.

    Holds at most one answer for each request that is unanswered, and two more: the scheduler sees to that.

    Attributes:
        number: unique in this process.
        of: whose answers this call carries, once it is open: its own, or those of another.
        closed: nobody waits for answers any more.
        names: what lines of the log say of it beside their message; its session and job once they are known.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.names: dict[str, object] = {"stream": number}
        self.of = self
        self.closed = False
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        #: What those who send wait for: one of them is woken for each answer, all for the end.
        self._due = threading.Condition(self._lock)
        self._opened = False
        self._arena = False
        self._answers: deque[Answer] = deque()
        self._post: Callable[[bytes], bool] | None = None
        self._pace: Pace | None = None
        self._posting = 0
        # One attribute each, so that who reads it without the lock never sees half of a change.
        self._unsent = _Count()
        self._paced = _Count()
        self._error: FeederError | None = None
        self._finishing = False
        self._ended = False

    @property
    def ended(self) -> bool:
        """Whether those who send were told that no answer follows."""
        return self._ended

    @property
    def unsent(self) -> int:
        """Answers that no socket has: those that wait, and those that are being sent."""
        return self._unsent.size + self._posting

    @property
    def spent(self) -> Spent:
        """What answers waited so far."""
        return Spent(self._unsent.later().sum_s, self._paced.later().sum_s)

    def opened(self, *, arena: bool = False, of: Stream | None = None) -> None:
        """The client's Open was accepted, with its arena or without; or its Join, for those `of` another."""
        with self._lock:
            self._opened, self._arena, self.of = True, arena, of or self
            self._changed.notify_all()

    def wait_opened(self, timeout_s: float) -> bool:
        """Waits until the client's first message was accepted; returns whether its arena was, too.

        Raises:
            ProtocolError: the client ended its side before, or sent nothing in time.
            Closed: the call ended.
            FeederError: what `fail` was told.
        """
        with self._lock:
            in_time = self._changed.wait_for(
                lambda: self._opened or self._error or self._finishing or self.closed, timeout_s
            )
            if self._error is not None:
                raise self._error
            if self.closed:
                raise Closed("the call ended before the stream was open")
            if not self._opened:
                what = "the client ended its side" if in_time else f"nothing came within {timeout_s:g} s"
                raise ProtocolError(f"the first message must be Open or Join: {what}")
            return self._arena

    def pause(self, delay_s: float) -> None:
        """Waits for so long, or until nobody waits for answers any more."""
        with self._lock:
            self._paced = self._paced.later(+1)
            self._changed.wait_for(lambda: self.closed or self._error, delay_s)
            self._paced = self._paced.later(-1)

    def put(self, answer: Answer) -> None:
        """An answer is ready to be sent."""
        with self._lock:
            self._queue(answer)

    def posts(self, post: Callable[[bytes], bool], pace: Pace) -> None:
        """Whoever made a small answer may send it itself from now on.

        Args:
            post: takes a FeedReply as bytes; returns False where it would have to wait, and did nothing.
            pace: nobody may where it has a rate.
        """
        with self._lock:
            self._post, self._pace = post, pace

    def claim(self) -> bool:
        """Whether the caller may `post` an answer, since nothing waits before it; then it must. Several may
        post at a time, in any order."""
        with self._lock:
            paced = self._pace is None or self._pace.images_per_s is not None
            if paced or self._unsent.size or self.closed:
                return False
            self._posting += 1
            return True

    def post(self, data: bytes) -> None:
        """Sends a FeedReply after `claim`, or has it sent by who may wait."""
        assert self._post is not None
        posted = self._post(data)
        with self._lock:
            self._posting -= 1
            if not posted:
                self._queue(Answer(data))
            self._look_for_end()

    def sent(self) -> None:
        """An answer that `next` gave is with the socket, or will never be."""
        with self._lock:
            self._sent()

    def finish(self) -> None:
        """No more requests will come, or be waited for: the stream ends once nothing is owed, and all answers
        are with the sockets."""
        with self._lock:
            self._finishing = True
            self._wake_all()

    def fail(self, error: FeederError) -> None:
        """The stream ends with an error, before any answer that waits; and whoever it carries answers of."""
        with self._lock:
            self._error = self._error or error
            self._wake_all()
            of = self.of
        if of is not self:
            of.fail(error)

    def close(self) -> None:
        """The call is over; answers that wait are dropped. Whoever it carries answers of fails, unless that
        came to its end: some may be lost."""
        with self._lock:
            self.closed = True
            self._unsent = self._unsent.later(-len(self._answers))
            self._answers.clear()
            self._wake_all()
            of = self.of
        if of is not self and not of.ended:
            of.fail(Closed("another connection, which carried answers of this stream, ended before it"))

    def next(self, owes: Callable[[], bool]) -> Answer | None:
        """Waits for the next answer to send; None when the stream ends. Any number of threads may send.

        Args:
            owes: whether any request is unanswered, asked anew whenever something changed.

        Raises:
            FeederError: what `fail` was told.
        """
        with self._lock:
            # Without a deadline: each way in which a call ends, gRPC's keepalive included, leads to `close`.
            self._due.wait_for(
                lambda: (
                    self._answers
                    or self._error
                    or self.closed
                    or (self._finishing and not self.unsent and not owes())
                )
            )
            if self._error is not None:
                raise self._error
            if self._answers:
                return self._answers.popleft()
            self._ended = True
            return None

    def _queue(self, answer: Answer) -> None:
        if not self.closed:
            self._answers.append(answer)
            self._unsent = self._unsent.later(+1)
            self._due.notify()

    def _sent(self) -> None:
        self._unsent = self._unsent.later(-1)
        self._look_for_end()

    def _look_for_end(self) -> None:
        if self._finishing and not self.unsent:
            self._due.notify_all()

    def _wake_all(self) -> None:
        self._changed.notify_all()
        self._due.notify_all()
