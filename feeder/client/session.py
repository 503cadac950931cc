"""Which chunk is asked from which worker: events in, requests out; no thread, no socket, no clock.

A session works on a window of consecutive steps, as many as the client has room for. Each step is cut into
pieces, and a piece is asked from the worker that the order assigns its lane to, never more at a time than the
worker allows. What a worker fails to deliver is asked from the next in line. Pieces are pure, so whoever
answers first is right:

    wanted --delivered--> written

The caller tells what happened (`opened`, `lost`, `delivered`, ...), then sends what `poll` returns.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from feeder.errors import FeederError
from feeder.order import assign, chunks, next_in_line, slots_by_worker

__all__ = ["Piece", "Request", "Session", "Step", "WorkerState", "WorkerView"]

WorkerState: TypeAlias = Literal["down", "live", "suspect", "draining"]

ROUNDS = 3
"""How often each live worker is asked for a piece before its failure is the stream's."""

RETRY_S = 0.2
"""Wait before all workers are asked a second time; doubled before the third."""

SUSPECT_AFTER_S = 10.0
"""A worker that owes and was silent for so long is no longer waited for. Pitfall P11 asks for 10 s; reads
from cold remote storage are retried by the worker for about as long."""

HEDGE_FACTOR = 3.0
HEDGE_FLOOR_S = 0.2
HEDGE_SHARE = 0.05
"""A worker is passed by sooner, after 3 times the silence that it keeps 99 % of the time and at least 0.2 s,
while what is asked twice because of that stays within 5 % of all requests."""

SILENCES_KEPT = 256
SILENCES_KNOWN = 32
"""Of a worker, before its habits count; and how often they are looked at anew."""


GATHER_S = 0.5
"""At the start nothing is asked before each worker was reached or failed to be, or this time is over:
otherwise the one that answers first would be asked for the whole first window."""


class Step(NamedTuple):
    """One batch of this consumer: its number in the stream, from 0, and where it lies in the order."""

    number: int
    epoch: int
    taken: int


class Request(NamedTuple):
    """An instruction: ask `worker` for `slots` of `step`, under the number `id`."""

    worker: str
    id: int
    step: Step
    slots: tuple[int, ...]


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
class _Worker:
    state: WorkerState = "down"
    #: It drains, and was silent for so long that what it owes is asked from others, too.
    silent: bool = False
    max_outstanding: int = 0
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


class Session:
    """The state of one stream's requests.

    Args:
        steps: (epoch, taken) of each step to come; ends where the stream ends.
        slots: this consumer's slots of every global step.
        per_lane: slots of a global step that one lane fills.
        workers: names, the same on every client, since the assignment depends on them.
        depth: steps in work at a time, the finished ones that nobody took yet included; at least 1.
        max_slots: of one request; at least 1.
        suspect_after_s: silence after which what a worker owes is asked from others, too.
    """

    def __init__(
        self,
        steps: Iterator[tuple[int, int]],
        slots: range,
        per_lane: int,
        workers: Sequence[str],
        *,
        depth: int,
        max_slots: int,
        suspect_after_s: float = SUSPECT_AFTER_S,
    ) -> None:
        self._steps = steps
        self._slots = slots
        self._per_lane = per_lane
        self._lanes = sorted({slot // per_lane for slot in slots})
        self._workers = {name: _Worker() for name in workers}
        self._depth = depth
        self._max_slots = max_slots
        self._suspect_after_s = suspect_after_s
        #: Pieces of each open step, oldest step first.
        self._open: dict[Step, list[Piece]] = {}
        #: Pieces of each open step that are not written yet.
        self._missing: dict[Step, int] = {}
        self._failures: dict[Step, FeederError] = {}
        self._delayed: list[Piece] = []
        self._owner: dict[int, str] = {}
        #: How the owners cut a step; empty: not known yet.
        self._cuts: list[tuple[int, ...]] = []
        self._next_number = 0
        self._next_id = 1
        self._hedges = 0
        self._exhausted = False
        #: Workers of which nothing is known yet, and until when they are waited for, from the first poll on.
        self._unknown = set(workers)
        self._gather_until_s: float | None = None

    # Events.

    def opened(self, worker: str, max_outstanding: int, now: float) -> None:
        """A connection to `worker` is ready for requests."""
        known = self._workers[worker]
        known.state, known.max_outstanding, known.heard_s = "live", max(1, max_outstanding), now
        known.silent = False
        self._unknown.discard(worker)
        self._deal(now)

    def lost(self, worker: str, now: float) -> None:
        """The connection ended, or could not be made; nothing more comes on it."""
        known = self._workers[worker]
        self._unknown.discard(worker)
        if known.state == "down":
            return
        if known.state != "suspect" and not known.silent:  # those were counted when it became so
            known.failovers += sum(not piece.written for piece in known.owed.values())
        known.state = "down"
        for request, piece in known.owed.items():
            del piece.asked[request]
        known.owed.clear()
        self._deal(now)

    def draining(self, worker: str, now: float) -> None:
        """The worker answers what it owes and takes no more requests."""
        if self._workers[worker].state != "down":
            self._workers[worker].state = "draining"
            self._deal(now)

    def delivered(self, worker: str, request: int, now: float) -> Piece | None:
        """All of an answer is in the batch: the piece that it completes, or None if another was first."""
        piece = self._answered(worker, request, now)
        if piece is None or piece.written:
            return None
        piece.written = True
        known = self._workers[worker]
        known.chunks += 1
        known.images += len(piece.slots)
        self._missing[piece.step] -= 1
        return piece

    def failed(self, worker: str, request: int, error: FeederError, now: float, *, final: bool) -> None:
        """The worker answers that it cannot make the piece; `final` if no other could either."""
        piece = self._answered(worker, request, now)
        if piece is not None and not piece.written:
            self._refused(worker, piece, error, now, final=final)

    def take(self) -> Step | None:
        """The oldest step, if it is complete; the window then moves on."""
        step = self.ready
        if step is not None:
            del self._open[step], self._missing[step]
        return step

    def poll(self, now: float) -> list[Request]:
        """The requests to send now."""
        if self._gathering(now):
            return []
        self._suspect(now)
        due = [piece for piece in self._delayed if piece.not_before_s <= now]
        if due:
            self._delayed = [piece for piece in self._delayed if piece.not_before_s > now]
            for piece in due:
                self._route(piece, now, first=True)
        self._admit(now)
        requests = []
        for name, worker in self._workers.items():
            while worker.queue and len(worker.owed) < worker.max_outstanding:
                piece = worker.queue.popleft()
                if piece.written:
                    continue
                if not worker.owed:
                    worker.heard_s = now
                worker.owed[self._next_id] = piece
                piece.asked[self._next_id] = name
                requests.append(Request(name, self._next_id, piece.step, piece.slots))
                self._next_id += 1
        return requests

    # What the caller may ask.

    def expects(self, worker: str, request: int) -> Piece | None:
        """What an answer of `worker` to this request is still wanted for."""
        piece = self._workers[worker].owed.get(request)
        return None if piece is None or piece.written else piece

    @property
    def ready(self) -> Step | None:
        """The oldest step, if it is complete."""
        step = next(iter(self._open), None)
        return None if step is None or self._missing[step] or step in self._failures else step

    @property
    def failure(self) -> FeederError | None:
        """Why the oldest step cannot be completed."""
        step = next(iter(self._open), None)
        return None if step is None else self._failures.get(step)

    @property
    def ended(self) -> bool:
        """Every step was taken."""
        return self._exhausted and not self._open

    @property
    def live(self) -> list[str]:
        """Workers that take requests, sorted."""
        return sorted(name for name, worker in self._workers.items() if worker.state == "live")

    def wake_s(self, now: float) -> float | None:
        """When, after a poll at `now`, another has something to do although nothing happened; None: never."""
        times = [piece.not_before_s for piece in self._delayed]
        if self._unknown and self._gather_until_s is not None:
            times.append(self._gather_until_s)
        live = [worker for worker in self._workers.values() if worker.state == "live"]
        if len(live) > 1:
            for worker in live:
                if worker.owed:
                    times += [worker.heard_s + self._suspect_after_s, worker.late_s(self._suspect_after_s)]
        times += [
            worker.heard_s + self._suspect_after_s
            for worker in self._workers.values()
            if self._may_fall_silent(worker)
        ]
        return min((time for time in times if time > now), default=None)

    def view(self, worker: str) -> WorkerView:
        """Counts and state of one worker."""
        known = self._workers[worker]
        return WorkerView(
            known.state, len(known.owed), known.chunks, known.images, known.failovers, known.hedges
        )

    # Decisions.

    def _answered(self, worker: str, request: int, now: float) -> Piece | None:
        known = self._workers[worker]
        known.silent = False
        piece = known.owed.pop(request, None)
        if piece is not None:
            del piece.asked[request]
            known.note_silence(now)
        else:
            known.heard_s = now
        if known.state == "suspect":
            known.state = "live"
            self._deal(now)
        return piece

    def _refused(self, worker: str, piece: Piece, error: FeederError, now: float, *, final: bool) -> None:
        piece.error = error
        piece.refused_by.add(worker)
        if final:
            self._failures.setdefault(piece.step, error)
            return
        self._workers[worker].failovers += 1
        if not self._expected(piece):
            self._route(piece, now, first=True)

    def _gathering(self, now: float) -> bool:
        if self._gather_until_s is None:
            self._gather_until_s = now + GATHER_S
        if now >= self._gather_until_s:
            self._unknown.clear()
        return bool(self._unknown)

    def _suspect(self, now: float) -> None:
        for name in self.live:
            worker = self._workers[name]
            if not worker.owed or len(self.live) == 1:
                continue
            owed = sum(not piece.written for piece in worker.owed.values())
            if now - worker.heard_s < self._suspect_after_s:
                if not self._may_hedge(name, owed, now):
                    continue
                worker.hedges += owed
                self._hedges += owed
            worker.state = "suspect"
            worker.failovers += owed
            self._deal(now)
        for worker in self._workers.values():
            if self._may_fall_silent(worker) and now - worker.heard_s >= self._suspect_after_s:
                worker.silent = True
                worker.failovers += sum(not piece.written for piece in worker.owed.values())
                self._deal(now)

    def _may_fall_silent(self, worker: _Worker) -> bool:
        """Whether a worker drains and is waited for, although there is another to ask."""
        return worker.state == "draining" and not worker.silent and bool(worker.owed and self.live)

    def _may_hedge(self, name: str, pieces: int, now: float) -> bool:
        """Whether `name` is later than usual, alone in this, and asking for its pieces twice is not too
        much. Where all are late at once, it is the consumer that was asleep."""
        if now < self._workers[name].late_s(self._suspect_after_s):
            return False
        if self._hedges + pieces > HEDGE_SHARE * self._next_id:
            return False
        others = [self._workers[other] for other in self.live if other != name]
        return any(not other.owed or now < other.late_s(self._suspect_after_s) for other in others)

    def _expected(self, piece: Piece) -> bool:
        """Whether an answer is on its way from a worker that can be relied on."""
        asked = (self._workers[name] for name in piece.asked.values())
        return any(worker.state in ("live", "draining") and not worker.silent for worker in asked)

    def _deal(self, now: float) -> None:
        """Deals all pieces that nobody is making to the workers of now; called when that set changed."""
        if not self.live:
            for worker in self._workers.values():  # a silent worker is better than none
                if worker.state == "suspect":
                    worker.state, worker.heard_s = "live", now
        live = self.live
        self._owner = assign(self._lanes, live) if live else {}
        self._cuts = []
        for worker in self._workers.values():
            worker.queue.clear()
        self._delayed = [piece for piece in self._delayed if piece.not_before_s > now]
        for pieces in self._open.values():
            for piece in pieces:
                if not piece.written and piece.not_before_s <= now and not self._expected(piece):
                    self._route(piece, now, first=False)

    def _route(self, piece: Piece, now: float, *, first: bool) -> None:
        """Queues a piece at the worker whose turn it is, or puts it off if all have failed."""
        live = self.live
        if not live or piece.step in self._failures:
            return
        if piece.refused_by.issuperset(live):
            piece.rounds += 1
            if piece.rounds >= ROUNDS and piece.error is not None:
                self._failures.setdefault(piece.step, piece.error)
                return
            piece.refused_by.clear()
            piece.not_before_s = now + RETRY_S * 2 ** (piece.rounds - 1)
            self._delayed.append(piece)
            return
        worker = self._owner[piece.lane]
        if worker in piece.refused_by:
            worker = next(name for name in next_in_line(piece.lane, live) if name not in piece.refused_by)
        queue = self._workers[worker].queue
        if first:
            queue.appendleft(piece)
        else:
            queue.append(piece)

    def _admit(self, now: float) -> None:
        """Opens steps while there is room, once there is somebody to ask."""
        while self._owner and not self._exhausted and len(self._open) < self._depth:
            place = next(self._steps, None)
            if place is None:
                self._exhausted = True
                return
            step = Step(self._next_number, *place)
            self._next_number += 1
            pieces = self._open[step] = self._cut(step)
            self._missing[step] = len(pieces)
            for piece in pieces:
                self._route(piece, now, first=False)

    def _cut(self, step: Step) -> list[Piece]:
        if not self._cuts:
            shares = slots_by_worker(self._slots, self._per_lane, self._owner)
            self._cuts = [slots for _, slots in chunks(shares, self._max_slots)]
        return [Piece(step, slots, slots[0] // self._per_lane) for slots in self._cuts]
