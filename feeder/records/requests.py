"""Calls to object stores: so many at a time, each with a deadline, tried again where a store is busy.

    submit -> queue -> a thread calls -> result
                ^           |
                |           +-- failed, or no answer within the deadline
                +-- pause --+

The pause after attempt n, from 0 on, is drawn evenly from [0, min(cap, base * 2^n)]: "full jitter", as in
"Exponential Backoff And Jitter" (AWS Architecture Blog, 2015). No thread sleeps meanwhile. A library cannot
be told to stop waiting for an answer: a thread whose call outlives its deadline is given up, and another one
takes its place.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import math
import os
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Generic, NamedTuple, Self, TypeVar

from feeder.errors import Closed, StorageError

__all__ = ["PARALLEL", "Permanent", "Policy", "RequestCounters", "Requests"]

log = logging.getLogger(__name__)

PARALLEL = min(256, 32 * len(os.sched_getaffinity(0)))
"""Calls at a time. A store takes 30 to 100 ms to send 100 kB, so that 32 give 300 to 1,000 records a second,
about what one core decodes."""

MAX_LOST = 64
"""Threads that may hang in calls that were given up; with so many nothing is called any more."""

TELL_S = 10.0
"""At most so often the log says that something is tried again."""

CLOSE_S = 10.0

T = TypeVar("T")


class Permanent(Exception):
    """A call failed in a way that another attempt does not change; the text says what came and what to do."""


@dataclass(frozen=True)
class Policy:
    """How long a call is waited for, and how often it is tried.

    Attributes:
        attempt_s: seconds that one attempt may take, and
        bytes_per_s: the rate at which it must at least read beyond that.
        total_s: seconds after its first attempt began in which a call must be done.
        base_s, cap_s: of the pauses, in seconds.
    """

    attempt_s: float = 20.0
    bytes_per_s: float = 1e6
    total_s: float = 60.0
    base_s: float = 0.1
    cap_s: float = 10.0


USUAL = Policy()


@dataclass(frozen=True, slots=True)
class RequestCounters:
    """Sums since the start.

    Attributes:
        requests: attempts, those that failed included.
        retries: attempts after the first.
        merged: ranges that came with a request for their neighbour.
        bytes: that came.
    """

    requests: int = 0
    retries: int = 0
    merged: int = 0
    bytes: int = 0


class _Call(Generic[T]):
    __slots__ = ("attempts", "call", "deadline_s", "future", "nbytes", "said", "where")

    def __init__(self, call: Callable[[], T], where: str, nbytes: int) -> None:
        self.call = call
        self.where = where
        self.nbytes = nbytes
        self.future: Future[T] = Future()
        self.attempts = 0
        self.deadline_s = 0.0
        self.said = ""  # what the store said the last time that it answered


class _Attempt(NamedTuple):
    call: _Call[Any]
    until_s: float
    thread: threading.Thread


class Requests:
    """A bounded pool of threads that call. Threads start when they are needed and end with close().

    Args:
        policy: deadlines and pauses; None: the usual ones.
        parallel: calls at a time.
        describe: what an OSError of a store says, without secrets; raises Permanent where another attempt is
            in vain.
    """

    def __init__(
        self,
        policy: Policy | None = None,
        parallel: int = PARALLEL,
        describe: Callable[[OSError], str] = str,
    ) -> None:
        self._policy = policy or USUAL
        self._parallel = parallel
        self._describe = describe
        self._random = random.Random()
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._time = threading.Condition(self._lock)
        self._queue: deque[_Call[Any]] = deque()
        self._pausing: list[tuple[float, int, _Call[Any]]] = []
        self._running: dict[int, _Attempt] = {}
        self._number = itertools.count()
        self._wake_s = math.inf  # when the keeper looks again
        self._idle = 0
        self._lost = 0
        self._told_s = -math.inf
        self._closing = False
        self._counters = RequestCounters()
        self._threads: set[threading.Thread] = set()
        self._keeper: threading.Thread | None = None

    @property
    def counters(self) -> RequestCounters:
        """What happened so far."""
        return self._counters

    def submit(self, call: Callable[[], T], where: str, nbytes: int = 0) -> Future[T]:
        """Has `call` called by one of the threads.

        Args:
            call: reads something, without an effect when it fails; its OSErrors are tried again.
            where: what errors name.
            nbytes: that it reads.

        Returns:
            What will have the result, or raise StorageError, or Closed where close() was faster.

        Raises:
            StorageError: too many calls never came back.
            Closed: after close().
        """
        made = _Call(call, where, nbytes)
        with self._lock:
            if self._closing:
                raise Closed("the data set is closed")
            if self._lost >= MAX_LOST:
                raise StorageError(f"{where}: cannot read: {self._lost} requests before it never came back")
            self._enqueue(made)
        return made.future

    def count_merged(self, ranges: int) -> None:
        """Notes ranges that need no request of their own."""
        with self._lock:
            self._counters = replace(self._counters, merged=self._counters.merged + ranges)

    def close(self) -> None:
        """Fails what waits, and ends the threads after the calls that they are at. May be called twice."""
        with self._lock:
            self._closing = True
            waiting = [*self._queue, *(call for _, _, call in self._pausing)]
            self._queue.clear()
            self._pausing.clear()
            self._work.notify_all()
            self._time.notify_all()
            threads = [*self._threads, *([self._keeper] if self._keeper else [])]
        for call in waiting:
            _settle(call, error=Closed("the data set was closed while a read was waited for"))
        deadline_s = time.monotonic() + CLOSE_S
        for thread in threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _enqueue(self, call: _Call[Any]) -> None:
        self._queue.append(call)
        self._staff()
        if self._keeper is None:
            self._keeper = threading.Thread(target=self._keep, name="feeder-requests", daemon=True)
            self._keeper.start()

    def _staff(self) -> None:
        """Sees to it that what was queued last, or one thread less, finds a thread."""
        if self._idle >= len(self._queue):
            self._work.notify()
        elif len(self._threads) < self._parallel:
            thread = threading.Thread(target=self._run, name="feeder-request", daemon=True)
            self._threads.add(thread)
            thread.start()

    def _run(self) -> None:
        while (taken := self._take()) is not None:
            number, call = taken
            error: BaseException | None = None
            result: Any = None
            try:
                result = call.call()
            except BaseException as raised:  # noqa: BLE001  # it belongs to who waits for the result
                error = raised
            if not self._ended(number, call, result, error):
                return

    def _take(self) -> tuple[int, _Call[Any]] | None:
        """The next call, and the number of the attempt; None: the thread is to end."""
        with self._lock:
            while True:
                while not self._queue and not self._closing:
                    self._idle += 1
                    self._work.wait()
                    self._idle -= 1
                if self._closing:
                    return None
                call = self._queue.popleft()
                if call.attempts or call.future.set_running_or_notify_cancel():
                    break
            policy = self._policy
            now_s = time.monotonic()
            slack_s = call.nbytes / policy.bytes_per_s
            if not call.attempts:
                call.deadline_s = now_s + policy.total_s + slack_s
            call.attempts += 1
            until_s = min(now_s + policy.attempt_s + slack_s, call.deadline_s)
            number = next(self._number)
            self._running[number] = _Attempt(call, until_s, threading.current_thread())
            self._wake(until_s)
            done = self._counters
            self._counters = replace(
                done, requests=done.requests + 1, retries=done.retries + (call.attempts > 1)
            )
            return number, call

    def _ended(self, number: int, call: _Call[Any], result: Any, error: BaseException | None) -> bool:
        """Notes how an attempt ended; whether its thread may go on."""
        with self._lock:
            if self._running.pop(number, None) is None:  # given up: another thread is in this one's place
                self._lost -= 1
                return False
            if error is None:
                self._counters = replace(self._counters, bytes=self._counters.bytes + call.nbytes)
        try:
            if isinstance(error, Permanent):
                raise error
            if isinstance(error, OSError) and not isinstance(error, StorageError):
                call.said = self._describe(error)
                self._again(call, call.said)
            else:
                _settle(call, result, error)
        except Permanent as permanent:
            _settle(call, error=StorageError(f"{call.where}: {permanent}"))
        return True

    def _again(self, call: _Call[Any], what: str) -> None:
        """Has a call that failed called again after a pause, or fails it for good."""
        policy = self._policy
        now_s = time.monotonic()
        pause_s = self._random.uniform(0, min(policy.cap_s, policy.base_s * 2.0 ** (call.attempts - 1)))
        error: Exception | None = None
        tell = False
        with self._lock:
            if not self._closing and self._lost < MAX_LOST and now_s + pause_s < call.deadline_s:
                heapq.heappush(self._pausing, (now_s + pause_s, next(self._number), call))
                self._wake(now_s + pause_s)
                tell = now_s > self._told_s + TELL_S
                self._told_s = now_s if tell else self._told_s
            elif self._closing:
                error = Closed("the data set was closed while a read was tried again")
            else:
                attempts = "1 attempt" if call.attempts == 1 else f"{call.attempts} attempts"
                spent_s = now_s - call.deadline_s + policy.total_s + call.nbytes / policy.bytes_per_s
                error = StorageError(
                    f"{call.where}: cannot read: {what} ({attempts} in {spent_s:.1f} s): is the store up, "
                    f"and can it be reached from here?"
                )
        if error is not None:
            _settle(call, error=error)
        elif tell:
            log.warning("%s: %s: trying again", call.where, what)

    def _wake(self, due_s: float) -> None:
        if due_s < self._wake_s:
            self._time.notify()

    def _keep(self) -> None:
        """Ends pauses, and gives up attempts whose deadline has passed."""
        while True:
            with self._lock:
                if self._closing:
                    return
                now_s = time.monotonic()
                while self._pausing and self._pausing[0][0] <= now_s:
                    self._enqueue(heapq.heappop(self._pausing)[2])
                late = {
                    number: attempt for number, attempt in self._running.items() if attempt.until_s <= now_s
                }
                for number, attempt in late.items():
                    del self._running[number]
                    self._threads.discard(attempt.thread)
                    self._lost += 1
                    if self._queue:
                        self._staff()
                if not late:
                    self._wake_s = min(
                        [self._pausing[0][0] if self._pausing else math.inf]
                        + [attempt.until_s for attempt in self._running.values()]
                    )
                    self._time.wait(None if self._wake_s == math.inf else self._wake_s - now_s)
                    self._wake_s = -math.inf
            for attempt in late.values():
                said = f", before that {attempt.call.said}" if attempt.call.said else ""
                self._again(attempt.call, f"no answer within the deadline{said}")


def _settle(call: _Call[Any], result: Any = None, error: BaseException | None = None) -> None:
    if not call.attempts and not call.future.set_running_or_notify_cancel():
        return  # cancelled meanwhile
    if error is not None:
        call.future.set_exception(error)
    else:
        call.future.set_result(result)
