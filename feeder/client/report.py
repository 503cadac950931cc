"""How a consumer fares, and what workers are told of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from queue import Empty, SimpleQueue
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from feeder.client.known import WorkerView
from feeder.wire.call import Call
from feeder.wire.codec import encode_request
from feeder.wire.headers import CallFailed
from feeder.wire.messages import ClientReport, SlotStatus

__all__ = ["Pace", "Part", "send_requests"]

REPORT_S = 1.0
"""Between two reports on one connection."""


class Part(NamedTuple):
    """One worker's part in a stream: thread-seconds of receiving from it, and what the session knows."""

    land_s: float
    view: WorkerView


class _Moment(NamedTuple):
    """Seconds until `since_s`, and whether the consumer waits since then; None: it was not there yet."""

    step_s: float = 0.0
    wait_s: float = 0.0
    since_s: float | None = None
    waits: bool = False

    def later(self, now_s: float, *, waits: bool) -> _Moment:
        spent_s = 0.0 if self.since_s is None else now_s - self.since_s
        step_s, wait_s = self.step_s, self.wait_s
        if self.waits:
            wait_s += spent_s
        else:
            step_s += spent_s
        return _Moment(step_s, wait_s, now_s, waits)


class Pace:
    """What one consumer did since its stream began. Its owner's lock guards all but `waits` and `works`,
    which the consumer alone calls."""

    def __init__(self) -> None:
        self._at = _Moment()  # one attribute, so that who reads it never sees half of a change
        self._steps = 0
        self._images = 0
        self._masked = 0
        self._substituted = 0
        # Of workers that left for good.
        self._land_s = 0.0
        self._hedges = 0
        self._failovers = 0

    @property
    def wait_s(self) -> float:
        """Time that the consumer waited for batches, up to the last one that it got."""
        return self._at.wait_s

    def waits(self, now_s: float) -> None:
        """The consumer came for a batch."""
        self._at = self._at.later(now_s, waits=True)

    def works(self, now_s: float) -> None:
        """It goes, with a batch or an error."""
        self._at = self._at.later(now_s, waits=False)

    def takes(self, number: int, status: NDArray[np.uint8]) -> None:
        """It gets batch `number`, whose slots have this status, uint8 [B]; the second time counts no more."""
        if number < self._steps:
            return
        self._steps = number + 1
        self._images += len(status)
        if any(status.tobytes()):  # rare: not all are their own
            self._masked += int(np.count_nonzero(status > SlotStatus.SUBSTITUTE))
            self._substituted += int(np.count_nonzero(status == SlotStatus.SUBSTITUTE))

    def left(self, part: Part) -> None:
        """A worker is forgotten; what it did stays in the sums."""
        self._land_s += part.land_s
        self._hedges += part.view.hedges
        self._failovers += part.view.failovers

    def report(
        self, now_s: float, parts: Iterable[Part], *, ready: int, prefetch: int, bytes_copied: int
    ) -> ClientReport:
        """All of it, up to now, with the parts of the workers that have not left."""
        parts = list(parts)
        at = self._at
        at = at.later(now_s, waits=at.waits)
        hedges = self._hedges + sum(part.view.hedges for part in parts)
        return ClientReport(
            steps=self._steps,
            step_s=at.step_s,
            wait_s=at.wait_s,
            land_s=self._land_s + sum(part.land_s for part in parts),
            ready=ready,
            prefetch=prefetch,
            images=self._images,
            masked=self._masked,
            substituted=self._substituted,
            hedges=hedges,
            retries=self._failovers + sum(part.view.failovers for part in parts) - hedges,
            workers=sum(part.view.state in ("live", "suspect") for part in parts),
            bytes_copied=bytes_copied,
        )


def send_requests(
    call: Call, requests: SimpleQueue[bytes | None], report: Callable[[], ClientReport | None]
) -> None:
    """Sends what is put into the queue, until None or the end of the call, and a report now and then.

    Args:
        requests: messages. An empty one has sent what `Call.post` left.
        report: what to tell the worker; None where it takes no reports.
    """
    due_s = time.monotonic() + REPORT_S
    more = True
    try:
        while more:
            together = []
            try:
                together.append(requests.get(timeout=max(0.0, due_s - time.monotonic())))
                while True:  # those of a batch come at once
                    together.append(requests.get_nowait())
            except Empty:
                pass
            more = None not in together
            call.send(*filter(None, together))
            if time.monotonic() >= due_s:
                due_s = time.monotonic() + REPORT_S
                told = report()
                if told is not None:
                    call.send(encode_request(told))
        call.done_sending()
    except CallFailed:
        pass  # the receiving thread meets it, too
