"""Where the time of a run went."""

from __future__ import annotations

import time
from typing import Literal, TypeAlias

__all__ = ["PHASES", "Chrono", "Phase"]

Phase: TypeAlias = Literal["start", "compile", "input", "step", "eval", "checkpoint"]

PHASES: dict[Phase, str] = {
    "start": "starting: connecting, first batches, first weights",
    "compile": "compiling",
    "input": "waiting for input, device idle",
    "step": "training steps",
    "eval": "evaluation",
    "checkpoint": "checkpoints",
}


class Chrono:
    """A clock that always runs for exactly one phase, so that the phases add up to the whole."""

    def __init__(self) -> None:
        self._spent_s: dict[Phase, float] = dict.fromkeys(PHASES, 0.0)
        self._phase: Phase = "start"
        self._since = time.monotonic()

    def enter(self, phase: Phase) -> float:
        """From now on time counts for `phase`; returns now, in seconds of time.monotonic()."""
        now = time.monotonic()
        self._spent_s[self._phase] += now - self._since
        self._phase, self._since = phase, now
        return now

    def move(self, source: Phase, target: Phase, seconds: float) -> None:
        """Counts seconds that were booked on `source` for `target`."""
        self._spent_s[source] -= seconds
        self._spent_s[target] += seconds

    def spent_s(self) -> dict[Phase, float]:
        """Seconds of each phase so far."""
        self.enter(self._phase)
        return dict(self._spent_s)
