"""Which workers there should be, which there are, and what to do about it. Knows no Ray, thread or clock."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

__all__ = ["Place", "Roster", "Scale"]

BACKOFF_S = 1.0
MAX_BACKOFF_S = 60.0
"""Before a worker is started again: doubles with each that ends without having been ready."""

TOLERANCE = 0.1
"""Demand that is so near to what there is changes nothing, as with Kubernetes' autoscaler."""

SHRINK_STEPS = 5
"""Once demand was low for long enough, a worker goes each 1 / SHRINK_STEPS of that time: lanes move each
time, and caches are filled anew."""


@dataclass(slots=True)
class Place:
    """Where one worker belongs.

    Attributes:
        key: of the place: the node's id where it is bound to one, otherwise a number.
        bound: whether it must be on that node.
        state: "waiting" to be started, "starting" until it answers, "ready".
        address: where clients reach it; empty until it is ready.
        node: address of the node that it is on; empty until Ray has found room for it.
        pid: of its process; 0 until known.
        needed: its share of the workers that there should be.
        restarts: how often it was started again.
        error: why the last one ended; empty while none did.
    """

    key: str
    bound: bool
    state: Literal["waiting", "starting", "ready"] = "waiting"
    address: str = ""
    node: str = ""
    pid: int = 0
    needed: float = 0.0
    restarts: int = 0
    error: str = ""
    failures: int = 0
    not_before_s: float = -math.inf


class Scale:
    """How many workers there should be, by demand: more as soon as `out_s` seconds say so, fewer by one after
    another once `in_s` seconds did."""

    def __init__(self, least: int, most: int, out_s: float, in_s: float) -> None:
        self.wanted = least
        self._least, self._most = least, most
        self._out_s, self._in_s = out_s, in_s
        self._grown_s = -math.inf  # when it last did; what was measured before is of fewer workers
        self._shrunk_s = -math.inf
        self._seen: deque[tuple[float, int]] = deque()

    def update(self, needed: float, all_ready: bool, now_s: float) -> None:
        """Takes the sum of what all workers say is needed."""
        right = self.wanted if abs(needed - self.wanted) <= TOLERANCE * self.wanted else math.ceil(needed)
        right = min(self._most, max(self._least, right))
        self._seen.append((now_s, right))
        while len(self._seen) > 1 and self._seen[1][0] <= now_s - self._in_s:
            self._seen.popleft()
        if right > self.wanted and all_ready and now_s - self._grown_s >= self._out_s:
            self.wanted = right
            self._grown_s = now_s
            self._seen.clear()
        elif (
            self._seen[0][0] <= now_s - self._in_s
            and max(seen for _, seen in self._seen) < self.wanted
            and now_s - self._shrunk_s >= self._in_s / SHRINK_STEPS
        ):
            self.wanted -= 1
            self._shrunk_s = now_s


class Roster:
    """The places of one deployment.

    Args:
        scale: how many; None: one on each node.

    Attributes:
        places: by key, in the order in which they came.
    """

    def __init__(self, scale: Scale | None) -> None:
        self.places: dict[str, Place] = {}
        self._scale = scale

    def plan(self, nodes: Collection[str], now_s: float) -> tuple[list[Place], list[Place]]:
        """Places where a worker is to be started now, and those that are given up, with their worker.

        Args:
            nodes: ids of those that may have one.
        """
        if self._scale is not None:
            ready = [place for place in self.places.values() if place.state == "ready"]
            if ready:
                all_ready = len(ready) == self._scale.wanted
                self._scale.update(sum(place.needed for place in ready), all_ready, now_s)
            wanted = {str(number): False for number in range(self._scale.wanted)}
        else:
            wanted = dict.fromkeys(nodes, True)
        given_up = [place for key, place in self.places.items() if key not in wanted]
        for place in given_up:
            del self.places[place.key]
        for key, bound in wanted.items():
            self.places.setdefault(key, Place(key, bound))
        start = [
            place
            for place in self.places.values()
            if place.state == "waiting" and place.not_before_s <= now_s
        ]
        for place in start:
            place.state = "starting"
        return start, given_up

    def lost(self, place: Place, reason: str, now_s: float) -> None:
        """The worker of a place ended, or its node did."""
        place.failures = 0 if place.state == "ready" else place.failures + 1
        place.state, place.address, place.node, place.pid, place.needed = "waiting", "", "", 0, 0.0
        place.error = reason
        place.restarts += 1
        place.not_before_s = now_s + min(MAX_BACKOFF_S, BACKOFF_S * 2**place.failures)

    @property
    def wanted(self) -> int:
        """How many workers there should be now."""
        return len(self.places) if self._scale is None else self._scale.wanted
