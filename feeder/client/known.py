"""What a session knows of its steps, their pieces, and one worker."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from feeder.errors import FeederError
from feeder.order import Order, Position

__all__ = ["Piece", "Step", "Worker", "WorkerState", "WorkerView", "places"]

WorkerState: TypeAlias = Literal["down", "joining", "live", "suspect", "draining"]

HEDGE_FACTOR = 3.0
HEDGE_FLOOR_S = 0.2
"""A worker is passed by after 3 times the silence that it keeps 99 % of the time, and at least 0.2 s."""

SILENCES_KEPT = 256
SILENCES_KNOWN = 32
"""Of a worker, before its habits count; and how often they are looked at anew."""


class Step(NamedTuple):
    """One batch of this consumer: its number in the stream, from 0, and where it lies in the order."""

    number: int
    epoch: int
    taken: int


def places(order: Order, position: Position, steps: int | None) -> Iterator[tuple[int, int]]:
    """(epoch, taken) of so many steps from a position on; None: for ever."""
    while steps is None or steps > 0:
        yield position.epoch, position.taken
        position = position.advance(order)
        steps = None if steps is None else steps - 1


@dataclass(slots=True, eq=False)
class Piece:
    """The slots of one step that one request asks for.

    Attributes:
        step: the step that it is a part of.
        slots: of the global step, ascending.
        lane: of the first slot; it decides who is next in line.
        written: it is in the batch.
        asked: request numbers that may still bring it, and of whom.
        refused_by: workers that failed to make it since the last round began.
        rounds: how often all live workers had failed.
        not_before_s: when it may be asked for again.
        error: what the last failure said.
    """

    step: Step
    slots: tuple[int, ...]
    lane: int
    written: bool = False
    asked: dict[int, str] = field(default_factory=dict)
    refused_by: set[str] = field(default_factory=set)
    rounds: int = 0
    not_before_s: float = 0.0
    error: FeederError | None = None


@dataclass(slots=True)
class Worker:
    """What a session knows of one worker, and is about to ask of it."""

    state: WorkerState = "down"
    #: It drains, and was silent for so long that what it owes is asked from others, too.
    silent: bool = False
    beside: bool = False
    max_outstanding: int = 0
    max_slots: int = 1
    #: Requests that it has not answered on this connection.
    owed: dict[int, Piece] = field(default_factory=dict)
    #: Pieces to ask of it, first step first. Only a live worker has any.
    queue: deque[Piece] = field(default_factory=deque)
    #: When it last answered, or began to owe.
    heard_s: float = 0.0
    #: Times between an answer and what came before: the answer before, or the request after a rest.
    silences: deque[float] = field(default_factory=lambda: deque(maxlen=SILENCES_KEPT))
    #: The silence that 99 % of the last ones did not exceed; infinite while too few are known.
    usual_s: float = math.inf
    answers: int = 0
    chunks: int = 0
    images: int = 0
    #: Pieces that it owed or refused and that went to another.
    failovers: int = 0
    #: Those of them that went there although it may only be late.
    hedges: int = 0

    def late_s(self, suspect_after_s: float) -> float:
        """When its silence becomes unusual."""
        return self.heard_s + min(max(HEDGE_FACTOR * self.usual_s, HEDGE_FLOOR_S), suspect_after_s)

    def note_silence(self, now: float) -> None:
        """It answers now."""
        self.silences.append(now - self.heard_s)
        self.heard_s = now
        self.answers += 1
        if self.answers % SILENCES_KNOWN == 0:
            ordered = sorted(self.silences)
            self.usual_s = ordered[len(ordered) * 99 // 100 - (len(ordered) < 100)]


@dataclass(frozen=True, slots=True)
class WorkerView:
    """What a session knows of one worker; counts since the stream began."""

    state: WorkerState
    outstanding: int
    chunks: int
    images: int
    failovers: int
    hedges: int
    beside: bool
    late_after_s: float
