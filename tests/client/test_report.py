"""What a client tells workers of itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import feeder
from feeder.client import report as report_module
from feeder.client.known import WorkerView
from feeder.client.report import Pace, Part
from feeder.order import SlotStatus
from feeder.wire.messages import ClientReport

TINY: dict[str, Any] = {"batch_size": 8, "image_size": 4}
OWN, SUBSTITUTE, BAD, PADDING = SlotStatus.OWN, SlotStatus.SUBSTITUTE, SlotStatus.BAD, SlotStatus.PADDING


def part(land_s: float, failovers: int, hedges: int) -> Part:
    return Part(land_s, WorkerView("live", 0, 0, 0, failovers, hedges, False, 1.0))


def told(pace: Pace, now_s: float, *parts: Part) -> ClientReport:
    return pace.report(now_s, parts, ready=0, prefetch=4, bytes_copied=0)


def test_time_is_spent_at_work_or_waiting() -> None:
    pace = Pace()
    assert told(pace, 100.0) == ClientReport(prefetch=4)
    pace.waits(101.0)
    assert told(pace, 103.0).wait_s == 2.0  # it waits still
    pace.works(104.0)
    assert (pace.wait_s, told(pace, 110.0).step_s) == (3.0, 6.0)
    pace.waits(111.0)
    pace.works(111.5)
    last = told(pace, 112.0)
    assert (last.step_s, last.wait_s) == (7.5, 3.5)
    assert last.step_s + last.wait_s == 112.0 - 101.0


def test_batches_count_once() -> None:
    pace = Pace()
    pace.takes(0, np.array([OWN, SUBSTITUTE, BAD, PADDING], np.uint8))
    pace.takes(0, np.array([OWN, SUBSTITUTE, BAD, PADDING], np.uint8))  # after a KeyboardInterrupt
    pace.takes(1, np.array([OWN, OWN, OWN, SUBSTITUTE], np.uint8))
    report = told(pace, 1.0)
    assert (report.steps, report.images, report.masked, report.substituted) == (2, 8, 2, 2)


def test_what_a_worker_did_stays_when_it_leaves() -> None:
    pace = Pace()
    a, b = part(1.0, failovers=5, hedges=2), part(0.5, failovers=1, hedges=1)
    both = told(pace, 1.0, a, b)
    assert (both.land_s, both.hedges, both.retries, both.workers) == (1.5, 3, 3, 2)
    pace.left(a)
    one = told(pace, 1.0, b)
    assert (one.land_s, one.hedges, one.retries, one.workers) == (1.5, 3, 3, 1)


def test_only_workers_that_take_reports_get_them(
    scripted: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_module, "REPORT_S", 0.02)
    a, b = scripted(), scripted()
    a.takes_reports = True
    with feeder.connect([a.address, b.address]).stream("data", **TINY, epochs=2) as stream:
        for _ in range(5):
            next(stream)
        deadline_s = time.monotonic() + 20
        while not a.reports or a.reports[-1].steps < 5:  # also while nothing is asked for
            assert time.monotonic() < deadline_s, a.reports
            time.sleep(0.01)
        newest = a.reports[-1]
        assert (newest.images, newest.masked, newest.workers) == (40, 0, 2)
        assert newest.prefetch >= newest.ready
        list(stream)
    assert b.reports == []
