"""The signals of a worker: what comes while it starts, and one after another what comes while it serves."""

from __future__ import annotations

import math
import os
import select
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Self

from feeder.records.claims import leave_all
from feeder.worker.supervisor import Supervisor

__all__ = ["RELOAD", "Inbox", "ended_at_once", "hang_ups_noted"]

RELOAD = signal.SIGHUP.name

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@contextmanager
def hang_ups_noted() -> Iterator[list[int]]:
    """SIGHUP is added to what this gives, and does nothing else, where no Inbox takes it: before there is
    one, and after it. One that was blocked comes now: threads and processes from here on inherit no block."""
    noted: list[int] = []
    before = signal.signal(signal.SIGHUP, lambda number, frame: noted.append(number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
    try:
        yield noted
    finally:
        signal.signal(signal.SIGHUP, before)


@contextmanager
def ended_at_once() -> Iterator[None]:
    """SIGTERM ends the process as usual, since an index in the making is not waited for; but others need not
    wait for what it had claimed either."""

    def end(number: int, frame: FrameType | None) -> None:
        leave_all()
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class Inbox:
    """Signals that come, and notes of other threads, one byte each.

    A pipe, because the system may hand a signal to any thread of the process: then nothing wakes the main
    thread but what Python's own handler writes to the wakeup descriptor.
    """

    IDLE = 0

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._receive, self._send = os.pipe()
        os.set_blocking(self._send, False)

    def __enter__(self) -> Self:
        self._handlers = {number: signal.signal(number, _noted) for number in _SIGNALS}
        self._wakeup = signal.set_wakeup_fd(self._send, warn_on_full_buffer=False)
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._wakeup)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        os.close(self._receive)
        os.close(self._send)

    def post(self, number: int) -> None:
        """As if a signal had come, or IDLE."""
        os.write(self._send, bytes([number]))

    def get(self, timeout_s: float | None = None) -> str | None:
        """What came first; None after the timeout. Who supervises the process hears from it meanwhile."""
        until_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
        beat_s = self._supervisor.beat_s or math.inf
        poll = select.poll()  # select(2) takes no descriptor beyond 1023
        poll.register(self._receive, select.POLLIN)
        while True:
            wait_s = min(max(0.0, until_s - time.monotonic()), beat_s)
            ready = poll.poll(None if wait_s == math.inf else math.ceil(wait_s * 1000))
            self._supervisor.beat()  # also where something came: it may come more often than that
            if ready:
                break
            if time.monotonic() >= until_s:
                return None
        number = os.read(self._receive, 1)[0]
        return "all streams ended" if number == self.IDLE else signal.Signals(number).name


def _noted(number: int, frame: FrameType | None) -> None:
    """A handler of Python's own, so that the signal reaches the wakeup descriptor and does nothing else."""
