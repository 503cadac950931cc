"""Which chunk is asked from which worker: events in, requests out; no thread, no socket, no clock.

A session works on a window of consecutive steps, as many as the client has room for. Each step is cut into
pieces, and a piece is asked from the worker that the order assigns its lane to, never more at a time than the
worker allows. What a worker fails to deliver is asked from the next in line. Pieces are pure, so whoever
answers first is right:

    wanted --delivered--> written

The caller tells what happened (`opened`, `lost`, `delivered`, ...), then sends what `poll` returns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple, TypeAlias

from feeder.client.known import Piece, Step, Worker, WorkerState, WorkerView
from feeder.errors import FeederError
from feeder.order import assign, chunks, next_in_line, slots_by_worker

__all__ = ["Piece", "Rebalance", "Request", "Session", "Step", "WorkerState", "WorkerView"]

Rebalance: TypeAlias = Literal["now", "epoch"]

ROUNDS = 3
"""How often each live worker is asked for a piece before its failure is the stream's."""

RETRY_S = 0.2
"""Wait before all workers are asked a second time; doubled before the third."""

SUSPECT_AFTER_S = 10.0
"""A worker that owes and was silent for so long is no longer waited for. Pitfall P11 asks for 10 s; reads
from cold remote storage are retried by the worker for about as long."""

HEDGE_SHARE = 0.05
"""What is asked twice because a worker is later than usual stays within 5 % of all requests."""

GATHER_S = 0.5
"""At the start nothing is asked before each worker was reached or failed to be, or this time is over:
otherwise the one that answers first would be asked for the whole first window."""


class Request(NamedTuple):
    """An instruction: ask `worker` for `slots` of `step`, under the number `id`."""

    worker: str
    id: int
    step: Step
    slots: tuple[int, ...]


class Session:
    """The state of one stream's requests.

    Args:
        steps: (epoch, taken) of each step to come; ends where the stream ends.
        slots: this consumer's slots of every global step.
        per_lane: slots of a global step that one lane fills.
        workers: names, the same on every client, since the assignment depends on them.
        depth: steps in work at a time, the finished ones that nobody took yet included; at least 1.
        max_slots: of one request, unless `opened` says otherwise of a worker; at least 1.
        suspect_after_s: silence after which what a worker owes is asked from others, too.
        consumers: that the workers feed; it decides how much those beside this one take.
        rebalance: when a worker that is new takes its lanes: at once, or with the next epoch.
        pass_samples: of one lane in a pass over the data, where all passes are one endless epoch.
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
        consumers: int = 1,
        rebalance: Rebalance = "now",
        pass_samples: int | None = None,
    ) -> None:
        self._steps = steps
        self._slots = slots
        self._per_lane = per_lane
        self._lanes = sorted({slot // per_lane for slot in slots})
        self._workers = {name: Worker() for name in workers}
        self._depth = depth
        self._max_slots = max_slots
        self._suspect_after_s = suspect_after_s
        self._consumers = consumers
        self._rebalance = rebalance
        self._pass_samples = pass_samples
        #: The pass that the newest step belongs to; None before the first.
        self._pass: int | None = None
        #: Workers that had their lanes once: they get them back whenever they come.
        self._members: set[str] = set()
        #: Pieces of each open step, oldest step first.
        self._open: dict[Step, list[Piece]] = {}
        #: How many pieces of each open step are not written yet, oldest step first.
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

    def joined(self, worker: str) -> None:
        """There is one worker more, of which nothing is known yet."""
        self._workers[worker] = Worker()

    def left(self, worker: str) -> None:
        """A worker that is down will not come again."""
        self._unknown.discard(worker)
        del self._workers[worker]

    def opened(
        self,
        worker: str,
        max_outstanding: int,
        now: float,
        *,
        beside: bool = False,
        max_slots: int | None = None,
    ) -> None:
        """A connection to `worker`, which may be on this host, is ready for requests, each of at most
        `max_slots` slots."""
        known = self._workers[worker]
        waits = self._rebalance == "epoch" and self._pass is not None and worker not in self._members
        known.state = "joining" if waits else "live"
        known.max_outstanding, known.heard_s = max(1, max_outstanding), now
        known.max_slots = max_slots or self._max_slots
        known.silent, known.beside = False, beside
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

    def take(self, number: int | None = None) -> Step | None:
        """The oldest step, if it is complete, and none that comes behind step `number` - 1; the window then
        moves on."""
        step = self.ready
        if step is None or (number is not None and step.number >= number):
            return None
        del self._open[step], self._missing[step]
        return step

    def poll(self, now: float) -> list[Request]:
        """The requests to send now."""
        if self._unknown and self._gathering(now):
            return []
        if len(self._workers) > 1:  # else there is nobody else to ask
            self._suspect(now)
        if self._delayed:
            due = [piece for piece in self._delayed if piece.not_before_s <= now]
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
        for step, missing in self._missing.items():
            return None if missing or step in self._failures else step
        return None

    @property
    def complete(self) -> int:
        """Steps in work whose pieces are all there."""
        return sum(not missing for missing in self._missing.values())

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

    @property
    def queued(self) -> bool:
        """Whether a worker that answers may be asked for more at once; else only a poll tells."""
        if len(self._workers) > 1 or self._delayed:
            return True
        return any(worker.queue for worker in self._workers.values())

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
            known.state,
            len(known.owed),
            known.chunks,
            known.images,
            known.failovers,
            known.hedges,
            known.beside,
            known.late_s(self._suspect_after_s) - known.heard_s,
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
        live = self.live
        for name in live if len(live) > 1 else ():
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

    def _may_fall_silent(self, worker: Worker) -> bool:
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
            self._let_join()
        if not self.live:
            for worker in self._workers.values():  # a silent worker is better than none
                if worker.state == "suspect":
                    worker.state, worker.heard_s = "live", now
        live = self.live
        self._members.update(live)
        beside = [name for name in live if self._workers[name].beside]
        self._owner = assign(self._lanes, live, beside, self._consumers) if live else {}
        self._cuts = []
        for worker in self._workers.values():
            worker.queue.clear()
        self._delayed = [piece for piece in self._delayed if piece.not_before_s > now]
        for pieces in self._open.values():
            for piece in pieces:
                if not piece.written and piece.not_before_s <= now and not self._expected(piece):
                    self._route(piece, now, first=False)

    def _let_join(self) -> None:
        for worker in self._workers.values():
            if worker.state == "joining":
                worker.state = "live"

    def _begin_pass(self, step: Step, now: float) -> None:
        """Workers that waited for an epoch to begin take their lanes, if `step` begins one."""
        number = step.epoch if self._pass_samples is None else step.taken // self._pass_samples
        if number != self._pass:
            self._pass = number
            if any(worker.state == "joining" for worker in self._workers.values()):
                self._let_join()
                self._deal(now)

    def _route(self, piece: Piece, now: float, *, first: bool) -> None:
        """Queues a piece at the worker whose turn it is, or puts it off if all have failed."""
        if not self._owner or piece.step in self._failures:
            return
        worker = self._owner[piece.lane]
        if piece.refused_by:
            live = self.live
            if piece.refused_by.issuperset(live):
                piece.rounds += 1
                if piece.rounds >= ROUNDS and piece.error is not None:
                    self._failures.setdefault(piece.step, piece.error)
                    return
                piece.refused_by.clear()
                piece.not_before_s = now + RETRY_S * 2 ** (piece.rounds - 1)
                self._delayed.append(piece)
                return
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
            self._begin_pass(step, now)
            pieces = self._open[step] = self._cut(step)
            self._missing[step] = len(pieces)
            for piece in pieces:
                self._route(piece, now, first=False)

    def _cut(self, step: Step) -> list[Piece]:
        if not self._cuts:
            shares = slots_by_worker(self._slots, self._per_lane, self._owner)
            most = {name: self._workers[name].max_slots for name in shares}
            self._cuts = [slots for _, slots in chunks(shares, most)]
        return [Piece(step, slots, slots[0] // self._per_lane) for slots in self._cuts]
