"""What runs behind a stream: the links' threads, and the session and the batches that they share.

Nothing here knows the Stream, so that one which is dropped without close can be collected and its threads
end.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Collection, Sequence
from queue import Empty, SimpleQueue

from feeder.client.batch import Assembly, Landing
from feeder.client.compression import Choice
from feeder.client.known import places
from feeder.client.link import Link, Spans
from feeder.client.making import Making
from feeder.client.names import Watch
from feeder.client.report import Pace, Part
from feeder.client.session import SUSPECT_AFTER_S, Rebalance, Session, WorkerView
from feeder.client.sharing import Sharing, Transport, chunk_slots
from feeder.client.trouble import failure, named, refusal, silence
from feeder.client.workers import WorkerInfo, check_agreement
from feeder.errors import Closed, FeederError, ProtocolError, ServiceError, WorkerUnavailable
from feeder.order import Order, Position
from feeder.wire.address import Address
from feeder.wire.credentials import Credentials
from feeder.wire.messages import Chunk, ChunkRequest, ClientReport, Draining, Failed, Open, Opened

__all__ = ["Engine"]

log = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 5.0

GLANCE_S = 0.1
"""A consumer waits so long before it looks whether a worker is late: most batches come sooner."""

STOPPED_S = 1.0
"""A consumer that wakes so late was stopped itself: its workers were not silent in that time."""


class Engine:
    """Feeds one consumer from a position on.

    Args:
        missing: workers that were named already as ones that do not answer.
        beside: workers that are on this host; those that take this process's memory are, too.
        watched: looks up what the names of workers stand for; None: they have no names.
        spans: makes what is told of each chunk's way from a worker, by its name; None: nobody is.

    Attributes:
        links: one a worker, by its address; a new dict whenever one comes or goes.
        pace: how the consumer fares.
        making: the batches, and what their bytes cost.
        sound: False where a KeyboardInterrupt came while the consumer changed what it shares with the links:
            a request may be lost, so begin again with another engine.
    """

    def __init__(
        self,
        order: Order,
        start: Position,
        steps: int | None,
        opening: Open,
        addresses: Sequence[Address],
        reference: WorkerInfo,
        *,
        missing: Collection[str],
        depth: int,
        transport: Transport,
        compression: Choice,
        connections: int,
        stall_timeout_s: float,
        beside: Collection[str] = (),
        rebalance: Rebalance = "now",
        watched: tuple[Callable[[], list[Address]], float] | None = None,
        spans: Callable[[str], Spans] | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        spec = order.spec
        self.pace = Pace()
        self.sound = True
        self._depth = depth
        self._compression: Choice = compression
        self._connections = connections
        self._credentials = credentials
        self._spans = spans
        self._opening = opening
        self.links = {str(address): self._link(address, str(address) in missing) for address in addresses}
        self._pid = os.getpid()
        self._spec = spec
        self._reference = reference
        self._slots = order.consumer_slots(opening.consumer_index, opening.consumer_count)
        self._stall_timeout_s = stall_timeout_s
        self._session = Session(
            places(order, start, steps),
            self._slots,
            spec.per_lane,
            list(self.links),
            depth=depth,
            suspect_after_s=min(SUSPECT_AFTER_S, stall_timeout_s / 2),  # others get their turn before it
            max_slots=chunk_slots(spec.image_bytes),
            consumers=opening.consumer_count,
            rebalance=rebalance,
            pass_samples=max(1, order.lane_length(0)) if spec.remainder == "wrap" else None,
        )
        self._beside = beside
        self._watch = None if watched is None else Watch(*watched, self._found)
        self._lock = threading.Lock()
        shape = (len(self._slots), *spec.image_shape)
        self._sharing = Sharing(transport, shape, depth, self._lock)
        self.making = Making(self._slots, spec.image_bytes, self._sharing)
        #: Holds something when a batch is ready, or a worker's state changed. No Condition: its wait is
        #: Python, and a KeyboardInterrupt within would leave the lock as nobody expects it.
        self._changed: SimpleQueue[None] = SimpleQueue()
        self._progress_s = time.monotonic()
        self._fault: FeederError | None = None
        self._closed = False
        self._threads: set[str] = set()  # of links, that have not ended
        self._leaving: dict[str, Link] = {}  # of workers that left; stopped, and their threads not ended
        self._started = False

    # For the consumer.

    def take(self, number: int) -> Assembly | None:
        """Batch `number` from the start, the first is 0, waited for; None after the last one.

        It stays until it is released: where a KeyboardInterrupt comes before the caller has noted the batch,
        asking again gives the same. Batches before `number` count as released.

        Raises:
            Closed: `close` was called, before or meanwhile.
            FeederError: what keeps the batch from coming; asking again is allowed.
        """
        begun = time.monotonic()
        self.pace.waits(begun)
        with self._lock:
            if not self._started and not self._closed:
                self.sound, self._started = False, True
                _running.add(self)
                for link in self.links.values():
                    self._start(link)
                if self._watch is not None:
                    self._watch.start()
                self.sound = True
            comes = not (self._closed or self._session.ready or self._session.ended)
        try:
            if comes:
                with contextlib.suppress(Empty):
                    self._changed.get(timeout=GLANCE_S)
            while True:
                with self._lock:
                    now, step = time.monotonic(), self._session.ready
                    if step is None or step.number < number:
                        self._move(number, now)
                        step = self._session.ready
                    if not self._closed and step is not None:
                        return self._ready(number)
                    if not self._closed and self._session.ended:
                        return None
                    patience_s = self._patience(now, begun)
                with contextlib.suppress(Empty):
                    self._changed.get(timeout=patience_s)
                if time.monotonic() > now + patience_s + STOPPED_S:
                    begun = time.monotonic()
        finally:
            self.pace.works(time.monotonic())

    def release(self, number: int) -> None:
        """Makes room: no batch before `number` will be asked for again."""
        with self._lock:
            self._move(number, time.monotonic())

    def _ready(self, number: int) -> Assembly:
        assembly = self.making.ready(number)
        self.pace.takes(number, assembly.status)
        return assembly

    def _patience(self, now: float, begun: float) -> float:
        """Seconds after which the consumer looks again although nothing changed.

        Raises:
            FeederError: waiting on makes no sense.
        """
        if self._closed:
            raise Closed("the stream was closed; make a new one with start= its position to go on")
        stalled_s = max(begun, self._progress_s) + self._stall_timeout_s
        trouble = self._fault or self._session.failure or refusal(self.links, now)
        if trouble is None and now >= stalled_s:
            trouble = silence(self._spec.dataset, self._stall_timeout_s, self.links, self._session)
        if trouble is not None:
            raise named(trouble, self._opening.session)
        wake_s = self._session.wake_s(now)
        return max(0.0, min(stalled_s, stalled_s if wake_s is None else wake_s) - now)

    def workers(self) -> dict[str, tuple[Link, WorkerView]]:
        """Each worker's link, and what the session knows of it; together, since workers come and go."""
        with self._lock:
            return {name: (link, self._session.view(name)) for name, link in self.links.items()}

    @property
    def transports(self) -> dict[str, str]:
        """How each worker that was connected gives its pixels: "shm" or "grpc"."""
        with self._lock:
            return dict(self._sharing.transports)

    @property
    def retired(self) -> int:
        """Buffers that wait for a worker to leave them alone."""
        with self._lock:
            return self._sharing.retired()

    @property
    def closed(self) -> bool:
        """Whether `stop` or `close` was called."""
        return self._closed

    def stop(self) -> None:
        """Lets all threads end soon. Takes no lock and waits for nothing: a garbage collection may call it,
        on any thread, inside any of our locks."""
        if os.getpid() != self._pid:
            return  # after fork: threads, sockets and their locks are the parent's
        self._closed = True
        if self._watch is not None:
            self._watch.stop()
        for link in self.links.values():
            link.stop()

    def close(self) -> None:
        """Ends all threads and connections; waits at most 5 s."""
        if os.getpid() != self._pid:
            return
        self.stop()
        deadline = time.monotonic() + CLOSE_TIMEOUT_S
        with self._lock:
            self._wake()
        for link in (*self.links.values(), *self._leaving.values()):
            link.join(deadline - time.monotonic())
        if self._watch is not None:  # last, since a look-up that hangs would take the links' time
            self._watch.join(deadline - time.monotonic())
        with self._lock:
            self.making.clear()
            self._sharing.close_all()
        _running.discard(self)

    # For the links.

    def check(self, name: str, info: WorkerInfo) -> None:
        """Raises if the worker at `name` serves anything else than the stream began with."""
        check_agreement(self._spec.dataset, self._reference, info)

    def offer(self, name: str, info: WorkerInfo) -> bytes:
        """What Open tells a worker of the arena that it was given; empty: none.

        Raises:
            Refused: the transport is "shm", and it does not take it.
        """
        return self._sharing.offer(name, info)

    def opened(self, name: str, opened: Opened) -> None:
        """A worker takes requests.

        Raises:
            Refused: the transport is "shm", and it did not take the arena.
        """
        with self._lock:
            if name in self._leaving:
                raise WorkerUnavailable(f"worker {name} left")
            self._sharing.opened(name, taken=opened.arena)
            now = time.monotonic()
            placed = self._sharing.transports[name] == "shm"
            self._session.opened(
                name,
                opened.max_outstanding,
                now,
                beside=placed or name in self._beside,
                max_slots=chunk_slots(self._spec.image_bytes, placed=placed),
            )
            self._send(now)
            self._wake()

    def lost(self, name: str) -> None:
        """A connection ended, or was not made."""
        with self._lock:
            now = time.monotonic()
            self._session.lost(name, now)
            self._sharing.lost(name)
            self._send(now)
            self._wake()

    def gone(self, name: str) -> None:
        """A link's thread ends."""
        with self._lock:
            self._sharing.lost(name)
            self._threads.discard(name)
            if self._closed and not self._threads:
                # Of a stream that was dropped without close: a collection of the cycles here may be far away.
                self.making.clear()
                self._sharing.close_all()
            if name in self._leaving:
                self.pace.left(self._part(self._leaving.pop(name)))
                self._session.left(name)
            elif not self._closed:
                self._fault = ServiceError(
                    f"the thread that talked to worker {name} died of a fault in feeder; see its traceback"
                )
                self._wake()

    def report(self) -> ClientReport:
        """How the consumer fares."""
        with self._lock:
            return self.pace.report(
                time.monotonic(),
                map(self._part, (*self.links.values(), *self._leaving.values())),
                ready=self._session.complete,
                prefetch=self._depth,
                bytes_copied=self.making.copied_bytes,
            )

    def replied(self, name: str, reply: Failed | Draining) -> None:
        """A worker's answer that is no chunk."""
        with self._lock:
            now = time.monotonic()
            if isinstance(reply, Draining):
                log.info("worker %s drains", name)
                self._session.draining(name, now)
            else:
                self._sharing.confirmed(name, reply.id)
                error, final = failure(name, reply)
                self._session.failed(name, reply.id, error, now, final=final)
                self._wake()
            self._send(now)

    def arriving(self, name: str, chunk: Chunk) -> Landing | None:
        """Where the pixels of a chunk go that begins to arrive; None where nobody wants them any more. Each
        landing must be ended, by `landed` or by `given_up`.

        Raises:
            ProtocolError: it is not what was asked for.
        """
        with self._lock:
            self._sharing.confirmed(name, chunk.id)
            piece = None if self._closed else self._session.expects(name, chunk.id)
            try:
                landing = self.making.arriving(name, chunk, piece)
            except ProtocolError as error:
                self._fail(name, chunk, error)
                raise
            if landing is None:
                now = time.monotonic()
                self._session.delivered(name, chunk.id, now)
                self._send(now)
            return landing

    def landed(self, name: str, chunk: Chunk, landing: Landing) -> None:
        """All pixels of a chunk are in their places."""
        with self._lock:
            now = self._progress_s = time.monotonic()
            self.making.landed(chunk, self._session.expects(name, chunk.id), landing)
            ready = self._delivered(name, chunk, now)
        if ready:
            self._wake()

    def placed(self, name: str, chunk: Chunk) -> None:
        """A worker wrote a chunk where it was asked to.

        Raises:
            ProtocolError: it was not asked to, or it is not what was asked for.
        """
        with self._lock:
            now = self._progress_s = time.monotonic()
            piece = self._session.expects(name, chunk.id)
            write = self._sharing.confirmed(name, chunk.id)
            if piece is not None and not self._closed:
                try:
                    self.making.placed(name, chunk, piece, write)
                except ProtocolError as error:
                    self._fail(name, chunk, error)
                    raise
            ready = self._delivered(name, chunk, now)
        if ready:
            self._wake()

    def given_up(self, landing: Landing) -> None:
        """The rest of a chunk will not come."""
        with self._lock:
            self.making.given_up(landing)

    def spoiled(self, name: str, chunk: Chunk, error: ProtocolError) -> None:
        """A chunk came whose pixels are none: as if the worker had failed to make it."""
        with self._lock:
            self._sharing.confirmed(name, chunk.id)
            self._fail(name, chunk, error)
            self._wake()

    # For the watch.

    def _found(self, addresses: list[Address]) -> None:
        """What the names of workers stand for now: new ones are dialled, and those that are down and have no
        name any more are forgotten."""
        names = {str(address) for address in addresses}
        with self._lock:
            links = dict(self.links)
            for address in addresses:
                name = str(address)
                if name in links or name in self._leaving or self._closed:
                    continue
                log.info("worker %s is new", name)
                link = links[name] = self._link(address)
                self._session.joined(name)
                self._start(link)
            for name in links.keys() - names:
                if self._session.view(name).state == "down":
                    log.info("worker %s is gone, and has no name any more", name)
                    link = self._leaving[name] = links.pop(name)
                    link.stop()
            self.links = links
        if self._closed:  # by `stop`, which takes no lock and may have missed one
            self.stop()

    def _link(self, address: Address, missed: bool = False) -> Link:
        return Link(
            address,
            self._opening,
            self,
            time.monotonic,
            self._compression,
            missed,
            self._spans,
            self._credentials,
            self._connections,
        )

    # With the lock held.

    def _start(self, link: Link) -> None:
        self._threads.add(link.name)
        link.start()

    def _part(self, link: Link) -> Part:
        return Part(link.land_s, self._session.view(link.name))

    def _fail(self, name: str, chunk: Chunk, error: ProtocolError) -> None:
        """A chunk is not what was asked for: its worker failed, and others are asked."""
        now = time.monotonic()
        self._session.failed(name, chunk.id, error, now, final=False)
        self._send(now)

    def _delivered(self, name: str, chunk: Chunk, now: float) -> bool:
        """Returns whether the consumer is to be woken, which only waits for the lock where that is held."""
        self._session.delivered(name, chunk.id, now)
        if self._session.queued:
            self._send(now)
        return self._session.ready is not None

    def _wake(self) -> None:
        if self._changed.empty():
            self._changed.put(None)

    def _move(self, number: int, now: float) -> None:
        """Drops what comes before a batch, and asks for what there is room for then."""
        self.sound = False
        while (step := self._session.take(number)) is not None:
            self.making.drop(step.number)
        self._send(now)
        self.sound = True

    def _send(self, now: float) -> None:
        if self._closed:
            return
        asked: dict[str, list[ChunkRequest]] = {}
        for request in self._session.poll(now):
            step, place = request.step, self.making.destination(request)
            asked.setdefault(request.worker, []).append(
                ChunkRequest(request.id, step.epoch, step.taken, request.slots, place)
            )
        for name, requests in asked.items():
            self.links[name].ask(requests)


_running: weakref.WeakSet[Engine] = weakref.WeakSet()


@atexit.register
def _close_running() -> None:
    """Before the interpreter takes away what the threads stand on."""
    engines = list(_running)
    for engine in engines:
        engine.stop()
    for engine in engines:
        engine.close()
