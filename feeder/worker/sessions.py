"""Who is being served: counts streams, and knows the named jobs."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import grpc

from feeder.errors import Closed, ConfigError
from feeder.spec import StreamSpec
from feeder.wire.messages import Open
from feeder.wire.status import Refusal

__all__ = ["SessionRegistry", "Ticket"]


@dataclass(slots=True, eq=False)
class Ticket:
    """A stream's right to be served; `job` once it has claimed one."""

    number: int
    opening: Open | None = None


@dataclass(slots=True)
class _Job:
    spec: StreamSpec
    fingerprint: str
    consumer_count: int
    # By consumer: the session that lives, and its streams here; one that reconnects has two for a while.
    sessions: dict[int, tuple[str, int]] = field(default_factory=dict)


class SessionRegistry:
    """All live streams of a worker; safe to use from any thread."""

    def __init__(self, max_streams: int) -> None:
        self.max_streams = max_streams
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._tickets: set[Ticket] = set()
        self._jobs: dict[str, _Job] = {}
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

    def drain(self) -> None:
        """Refuses streams from now on."""
        with self._lock:
            self._draining = True

    def enter(self) -> Ticket:
        """Admits a stream.

        Raises:
            Refusal: the worker is draining, or serves as many streams as it may.
        """
        with self._lock:
            if self._draining:
                raise Refusal(grpc.StatusCode.UNAVAILABLE, "this worker is draining and takes no new streams")
            if len(self._tickets) >= self.max_streams:
                raise Refusal(
                    grpc.StatusCode.RESOURCE_EXHAUSTED,
                    f"stream {len(self._tickets) + 1} refused: --max-streams is {self.max_streams}",
                )
            self._served += 1
            ticket = Ticket(self._served)
            self._tickets.add(ticket)
            return ticket

    def claim(self, ticket: Ticket, opening: Open) -> None:
        """Takes the place of a consumer in a named job; does nothing for a stream without job.

        Raises:
            Refusal: another live session has this place.
            ConfigError: the job runs with other settings.
            Closed: the stream ended meanwhile, so that nobody would give the place back.
        """
        with self._lock:
            if ticket not in self._tickets:
                raise Closed("the call ended before the stream was open")
            if not opening.job:
                return
            job = self._jobs.get(opening.job)
            if job is None:
                job = _Job(opening.spec, opening.fingerprint, opening.consumer_count)
            else:
                _check_same(job, opening)
            session, streams = job.sessions.get(opening.consumer_index, (opening.session, 0))
            if session != opening.session:
                raise Refusal(
                    grpc.StatusCode.ALREADY_EXISTS,
                    f"job {opening.job!r} has a live session of consumer {opening.consumer_index} already; "
                    f"give each consumer its own consumer_index, or close the other session first",
                )
            job.sessions[opening.consumer_index] = (session, streams + 1)
            self._jobs[opening.job] = job
            ticket.opening = opening

    def leave(self, ticket: Ticket) -> None:
        """The stream ended; does nothing the second time."""
        with self._lock:
            if ticket not in self._tickets:
                return
            self._tickets.remove(ticket)
            opening = ticket.opening
            if opening is not None:
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
