"""The bad records that a worker met: each logged once, the newest kept for `feeder status`."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable

from feeder.errors import printable
from feeder.wire.messages import BadRecordInfo

__all__ = ["Quarantine"]

log = logging.getLogger(__name__)

KEPT = 100
"""Newest bad records that Describe tells (feeder.proto)."""

REMEMBERED = 100_000
"""Bad records that are known to have been logged; a data set with more than that has other troubles."""

LOG_BURST = 20
LOG_PERIOD_S = 60.0
"""At most so many log lines in any such period; the rest are counted in the next line that is written."""


class Quarantine:
    """Collects bad records from any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: OrderedDict[tuple[str, int], BadRecordInfo] = OrderedDict()
        self._period_end_s = float("-inf")
        self._lines = 0
        self._unlogged = 0

    def add(self, found: Iterable[BadRecordInfo]) -> None:
        """Takes note of records that were found bad, perhaps not for the first time."""
        for info in found:
            with self._lock:
                key = (info.dataset, info.record)
                known = key in self._seen
                self._seen[key] = info
                if known:
                    continue
                if len(self._seen) > REMEMBERED:
                    self._seen.popitem(last=False)
                note = self._note()
            if note is not None:
                log.warning(
                    "bad record: %s: %s: record %d: %s%s",
                    info.dataset,
                    printable(info.shard),
                    info.index,
                    printable(info.reason),
                    note,
                )

    def newest(self) -> list[BadRecordInfo]:
        """The records found last, at most 100, newest first."""
        with self._lock:
            newest = reversed(self._seen.values())
            return [info for info, _ in zip(newest, range(KEPT), strict=False)]

    def _note(self) -> str | None:
        """What to add to the line about a new bad record; None where it must not be written."""
        now_s = self._clock()
        if now_s >= self._period_end_s:
            self._period_end_s = now_s + LOG_PERIOD_S
            self._lines = 0
        if self._lines >= LOG_BURST:
            self._unlogged += 1
            return None
        self._lines += 1
        note = f" (and {self._unlogged} more since the last line)" if self._unlogged else ""
        self._unlogged = 0
        return note
