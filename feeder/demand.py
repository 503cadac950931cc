"""How many workers there should be, by what one says of its time."""

from __future__ import annotations

import time
from collections import deque

__all__ = ["BUSY_TARGET", "DEMAND_WINDOW_S", "Demand"]

BUSY_TARGET = 0.75
"""Share of the time that a worker should be at work: the rest is room for bursts, and for one that goes."""

DEMAND_WINDOW_S = 60.0


class Demand:
    """One worker's share of how many there should be; the sum over all workers is the number.

    Args:
        window_s: over which it is measured, or since it was last asked for where that is longer ago.
    """

    def __init__(self, window_s: float = DEMAND_WINDOW_S) -> None:
        self._window_s = window_s
        self._seen: deque[tuple[float, float, float]] = deque([(-window_s, 0.0, 0.0)])

    def needed(self, busy_s: float, idle_s: float) -> float:
        """Workers like this one that its clients would keep at work BUSY_TARGET of the time; 0 at rest.

        Args:
            busy_s: thread-seconds that it made chunks, since its start.
            idle_s: thread-seconds that it waited for something to do, since its start.
        """
        now_s = time.monotonic()
        self._seen.append((now_s, busy_s, idle_s))
        while len(self._seen) > 2 and self._seen[1][0] <= now_s - self._window_s:
            self._seen.popleft()
        _, busy_before_s, idle_before_s = self._seen[0]
        busy_s, idle_s = busy_s - busy_before_s, idle_s - idle_before_s
        return busy_s / (busy_s + idle_s) / BUSY_TARGET if busy_s > 0 else 0.0
