"""Who is being served: counts streams, and knows the named jobs."""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass, field

import grpc

from feeder.errors import Closed, ConfigError
from feeder.spec import StreamSpec
from feeder.wire.messages import Open
from feeder.wire.status import Refusal

__all__ = ["UNSAID_CALLS", "SessionRegistry", "Ticket", "job_of"]

UNSAID_CALLS = 8
"""Beyond one a stream: calls that have not said yet what they are. One that joins a stream is none, and must
be heard also where there are as many as there may be."""


def job_of(opening: Open) -> str:
    """What a stream belongs to: its job, or its session where it names none."""
    return f"job {opening.job!r}" if opening.job else f"session {opening.session!r}"


@dataclass(slots=True, eq=False)
class Ticket:
    """A stream's right to be served.

    Attributes:
        opening: once it has claimed its place in a job.
        peer: who calls.
        opened_s: when it claimed its place, by the monotonic clock.
    """

    number: int
    opening: Open | None = None
    peer: str = ""
    opened_s: float = 0.0


@dataclass(slots=True)
class _Job:
    spec: StreamSpec
    fingerprint: str
    consumer_count: int
    # By consumer: the session that lives, and its streams here; one that reconnects has two for a while.
    sessions: dict[int, tuple[str, int]] = field(default_factory=dict)


class SessionRegistry:
    """All live streams of a worker; safe to use from any thread.

    Args:
        max_streams: at a time.
        max_streams_per_job: of them, those of one job; None: as many. A session without job counts as one.
    """

    def __init__(self, max_streams: int, max_streams_per_job: int | None = None) -> None:
        self.max_streams = max_streams
        self._per_job = max_streams_per_job
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._tickets: set[Ticket] = set()
        self._jobs: dict[str, _Job] = {}
        self._streams: Counter[str] = Counter()  # of each job
        self._draining = False
        self._served = 0

    @property
    def live(self) -> int:
        """Streams that are being served."""
        with self._lock:
            return len(self._tickets)

    @property
    def draining(self) -> bool:
        """Whether new streams are refused because the worker wants to go."""
        with self._lock:
            return self._draining

    def tickets(self) -> list[Ticket]:
        """Of the streams that have claimed their places, oldest first."""
        with self._lock:
            claimed = [ticket for ticket in self._tickets if ticket.opening is not None]
        return sorted(claimed, key=lambda ticket: ticket.number)

    def drain(self) -> None:
        """Refuses streams from now on."""
        with self._lock:
            self._draining = True

    def enter(self) -> Ticket:
        """Admits a call, which may become a stream.

        Raises:
            Refusal: the worker is draining, or has as many calls as it may.
        """
        with self._lock:
            if self._draining:
                raise Refusal(grpc.StatusCode.UNAVAILABLE, "this worker is draining and takes no new streams")
            if len(self._tickets) >= self.max_streams + UNSAID_CALLS:
                raise self._too_many(len(self._tickets))
            self._served += 1
            ticket = Ticket(self._served)
            self._tickets.add(ticket)
            return ticket

    def claim(self, ticket: Ticket, opening: Open, peer: str = "") -> None:
        """Takes the place of a stream in its job, and that of a consumer where the job has a name.

        Raises:
            Refusal: another live session has this place, or the worker or the job as many streams as it may.
            ConfigError: the job runs with other settings.
            Closed: the stream ended meanwhile, so that nobody would give the place back.
        """
        with self._lock:
            if ticket not in self._tickets:
                raise Closed("the call ended before the stream was open")
            if (streams := self._streams.total()) >= self.max_streams:
                raise self._too_many(streams)
            name = job_of(opening)
            if opening.job:
                self._check_place(opening)
            if self._per_job is not None and self._streams[name] >= self._per_job:
                raise Refusal(
                    grpc.StatusCode.RESOURCE_EXHAUSTED,
                    f"stream {self._streams[name] + 1} of {name} refused: --max-streams-per-job is "
                    f"{self._per_job}",
                )
            self._streams[name] += 1
            if opening.job:
                job = self._jobs.setdefault(
                    opening.job, _Job(opening.spec, opening.fingerprint, opening.consumer_count)
                )
                _, before = job.sessions.get(opening.consumer_index, ("", 0))
                job.sessions[opening.consumer_index] = (opening.session, before + 1)
            ticket.opening, ticket.peer, ticket.opened_s = opening, peer, time.monotonic()

    def _too_many(self, streams: int) -> Refusal:
        return Refusal(
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            f"stream {streams + 1} refused: --max-streams is {self.max_streams}",
        )

    def _check_place(self, opening: Open) -> None:
        job = self._jobs.get(opening.job)
        if job is None:
            return
        _check_same(job, opening)
        session, _ = job.sessions.get(opening.consumer_index, (opening.session, 0))
        if session != opening.session:
            raise Refusal(
                grpc.StatusCode.ALREADY_EXISTS,
                f"job {opening.job!r} has a live session of consumer {opening.consumer_index} already; "
                f"give each consumer its own consumer_index, or close the other session first",
            )

    def leave(self, ticket: Ticket) -> None:
        """The stream ended; does nothing the second time."""
        with self._lock:
            if ticket not in self._tickets:
                return
            self._tickets.remove(ticket)
            opening = ticket.opening
            if opening is not None:
                name = job_of(opening)
                self._streams[name] -= 1
                if not self._streams[name]:
                    del self._streams[name]
            if opening is not None and opening.job:
                job = self._jobs[opening.job]
                session, streams = job.sessions[opening.consumer_index]
                if streams > 1:
                    job.sessions[opening.consumer_index] = (session, streams - 1)
                else:
                    del job.sessions[opening.consumer_index]
                    if not job.sessions:
                        del self._jobs[opening.job]
            if not self._tickets:
                self._idle.notify_all()

    def wait_idle(self, timeout_s: float) -> bool:
        """Waits until no stream is left; returns whether that came true."""
        with self._lock:
            return self._idle.wait_for(lambda: not self._tickets, timeout_s)


def _check_same(job: _Job, opening: Open) -> None:
    differences = job.spec.differences(opening.spec)
    if job.consumer_count != opening.consumer_count:
        differences.append(f"consumer_count: {job.consumer_count}, {opening.consumer_count}")
    if job.fingerprint != opening.fingerprint:
        differences.append(f"data: {job.fingerprint[:12]}, {opening.fingerprint[:12]}")
    if differences:
        raise ConfigError(
            f"job {opening.job!r} runs with other settings (there, here): {'; '.join(differences)}; use "
            f"another job name, or the same settings in all consumers"
        )
