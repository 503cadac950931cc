"""The request protocol without sockets, threads and clock: the client's engine and the workers' scheduler,
streams and arenas are real, and hypothesis chooses what happens next.

Messages pass through the codec and wait in a list for each direction of each connection. A worker writes into
the memory that the engine shares, in two moments: it begins, and it is done. So what comes late, twice, or
after the connection has ended meets what the engine has done meanwhile.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from feeder.client import engine as engine_module
from feeder.client import sharing
from feeder.client.batch import Landing
from feeder.client.engine import Engine
from feeder.client.workers import DatasetInfo, WorkerInfo
from feeder.order import Ledger, Order, Position
from feeder.spec import StreamSpec
from feeder.wire.address import Address
from feeder.wire.codec import (
    ChunkFrame,
    encode_placed,
    encode_reply,
    encode_request,
    parse_reply,
    parse_request,
)
from feeder.wire.messages import (
    Chunk,
    ChunkRequest,
    ClientReport,
    Draining,
    Failed,
    FailureKind,
    Open,
    Opened,
    SlotStatus,
)
from feeder.worker.arenas import Arena, Target
from feeder.worker.scheduler import Job, Scheduler
from feeder.worker.stream import Answer, Stream

RECORDS, CONSUMERS, BATCH, SIZE = 61, 2, 6, 4
SPEC = StreamSpec("data", CONSUMERS * BATCH, CONSUMERS * BATCH // 2, image_size=SIZE)
ORDER = Order(SPEC, RECORDS)
STEPS, DEPTH = 30, 2
LIMIT = 4
"""Requests that a worker takes at a time."""
SLOTS = ORDER.consumer_slots(1, CONSUMERS)
FIRST = [Address("tcp", "10.0.0.1", port) for port in (1, 2)]
LATER = [Address("tcp", "10.0.0.2", port) for port in (1,)]
HOSTS = [str(address) for address in FIRST + LATER]
hosts = st.sampled_from(HOSTS)


def info(name: str) -> WorkerInfo:
    return WorkerInfo(
        name, "0", name, "none", "p", False, {"data": DatasetInfo("data", RECORDS, "f")}, "/side"
    )


def records_of(request: ChunkRequest) -> Any:
    return ORDER.records(request.epoch, request.taken, np.array(request.slots))


class FakeLink:
    """What the engine sees of a link; its requests go into the world's list."""

    def __init__(
        self,
        address: Address,
        opening: Open,
        events: Engine,
        clock: Any,
        compression: str = "none",
        missed: bool = False,
        spans: Any = None,
        credentials: Any = None,
        connections: int = 1,
    ) -> None:
        self.name = str(address)
        self.error = self.refused_since_s = None
        self.duplicate, self.reconnects, self.land_s = False, 0, 0.0
        self.requests: deque[bytes] = deque()
        self.stopped = False

    def start(self) -> None:
        pass

    def stop(self) -> None:
        self.stopped = True

    def join(self, timeout_s: float) -> None:
        pass

    def ask(self, requests: Iterable[ChunkRequest]) -> None:
        self.requests.extend(map(encode_request, requests))


class FakeHandover:
    """Between an engine's arena and a worker's: `done` is that worker's word that it writes no more."""

    def __init__(self, arena: Any) -> None:
        self.token = b"token"
        self.done = False
        self.cancelled = False
        self.worker = Arena(arena.fd, arena.offer, self._is_done)

    def _is_done(self) -> None:
        self.done = True

    def cancel(self) -> None:
        self.cancelled = True  # the worker hears of it when it likes

    def ended(self, timeout_s: float = 0.0) -> bool:
        return self.done

    def close(self) -> None:
        self.cancelled = True


class Connection:
    """One Feed call, as its worker has it."""

    numbers = itertools.count()

    def __init__(self, handover: FakeHandover | None) -> None:
        self.scheduler = Scheduler(1 << 20, 1 << 20, LIMIT)
        self.arena = None if handover is None else handover.worker
        self.stream = Stream(next(self.numbers))
        self.answers: deque[bytes] = deque()
        self.working: list[tuple[Job, Target | None]] = []
        self.draining = self.cut = self.ended = False
        self.landing: Landing | None = None  # the client's: a chunk of which a part has come
        self.chunk: Any = None
        self.scheduler.open(self.stream.number, SPEC.image_bytes)

    def begin(self) -> None:
        job = self.scheduler.take()
        if job is not None:
            target = None
            if self.arena is not None and job.request.destination is not None:
                self.arena.check(job.request, SPEC.image_bytes)
                target = self.arena.begin(job.request, SPEC.image_shape)
            self.working.append((job, target))

    def finish(self, place: int, *, fails: bool) -> None:
        job, target = self.working.pop(place)
        request = job.request
        records = records_of(request)
        status, labels = np.full(len(records), SlotStatus.OWN, np.uint8), (records % 7).astype(np.int32)
        if fails:
            data = encode_reply(Failed(request.id, FailureKind.STORAGE, "disk"))
        elif target is not None:
            places = slice(None) if target.places is None else target.places
            target.out[places] = (records + 1).reshape(-1, 1, 1, 1)
            data = encode_placed(request.id, records, labels, status, ())
        else:
            frame = ChunkFrame(request.id, len(records), SPEC.image_bytes)
            message = np.empty(frame.size, np.uint8)
            frame.fill(message, records, labels, status)
            message[frame.pixels_at :] = np.repeat(records + 1, SPEC.image_bytes)
            data = message.tobytes()
        if target is not None:
            assert self.arena is not None
            self.arena.written()
        self.stream.put(Answer(data, job, len(records)))

    def send(self) -> None:
        """What the thread that sends would do, as far as it does not wait."""
        owes = self.scheduler.owed(self.stream.number) > 0
        if self.stream._answers or (self.draining and not owes):
            answer = self.stream.next(lambda: owes)
            if answer is None:
                self.cut = True
                return
            if answer.job is not None:
                self.scheduler.answered(answer.job)
                self.scheduler.sent(answer.job)
            self.stream.sent()
            self.answers.append(answer.data)

    def end(self) -> None:
        """The worker finds that the call is over."""
        self.ended = True
        self.stream.close()
        self.scheduler.close(self.stream.number)
        if self.arena is not None:
            self.arena.end()


class Protocol(RuleBasedStateMachine):
    """Each batch is complete, right, and stays so; each comes once."""

    @initialize(
        rebalance=st.sampled_from(["now", "epoch"]), transport=st.sampled_from(["auto", "auto", "grpc"])
    )
    def begin(self, rebalance: Any, transport: Any) -> None:
        self.now = 0.0
        self.patches = ExitStack()
        for module, name, value in (
            (engine_module, "Link", FakeLink),
            (engine_module, "time", SimpleNamespace(monotonic=lambda: self.now)),
            (engine_module, "SUSPECT_AFTER_S", 5.0),
            (sharing, "hand_over", lambda arena, path: FakeHandover(arena)),
        ):
            self.patches.enter_context(mock.patch.object(module, name, value))
        self.engine = Engine(
            ORDER,
            Position(0, 0, SPEC, RECORDS, "f"),
            STEPS,
            Open("s", SPEC, "f", "p", 1, CONSUMERS),
            FIRST,
            info(HOSTS[0]),
            missing=(),
            depth=DEPTH,
            transport=transport,
            compression="none",
            connections=2,
            stall_timeout_s=1e6,
            rebalance=rebalance,
        )
        self.engine._started = True
        self.engine._threads.update(self.engine.links)
        self.ledger = Ledger(ORDER, 1, CONSUMERS)
        self.named = list(FIRST)
        self.connections: dict[str, Connection] = {}
        self.old: list[Connection] = []  # calls that are over, while their workers may not know
        self.leaving: list[str] = []
        self.held: list[tuple[Any, Any]] = []
        self.taken = 0
        self.reported = ClientReport()
        for name in map(str, FIRST):
            self.connect(name, knows=True)

    # The links.

    @rule(name=hosts, knows=st.sampled_from([True, True, False]))
    def connect(self, name: str, knows: bool) -> None:
        if name not in self.engine.links or name in self.connections:
            return
        self.engine.links[name].requests.clear()
        token = self.engine.offer(name, info(name))
        handover = self.engine._sharing._handovers[name] if token else None
        if handover is not None and not knows:  # it forgot the arena meanwhile
            handover.worker.end()
            handover = None
        self.connections[name] = Connection(handover)
        self.engine.opened(name, Opened(name, LIMIT, handover is not None))

    @rule(name=hosts)
    def lose(self, name: str) -> None:
        connection = self.connections.get(name)
        if connection is None:
            return
        if connection.landing is not None:
            self.engine.given_up(connection.landing)
        self.old.append(self.connections.pop(name))
        self.engine.lost(name)

    @rule(
        data=st.data(),
        later=st.sets(st.sampled_from(LATER)),
        first=st.sets(st.sampled_from(FIRST), min_size=1),
    )
    def look_up(self, data: st.DataObject, later: set[Address], first: set[Address]) -> None:
        before = set(self.engine.links)
        self.engine._found(sorted(first | later))
        self.leaving += before - set(self.engine.links)

    @precondition(lambda self: self.leaving)
    @rule()
    def gone(self) -> None:
        self.engine.gone(self.leaving.pop())

    @rule(name=hosts, half=st.booleans())
    def arrive(self, name: str, half: bool) -> None:
        connection = self.connections.get(name)
        if connection is None:
            return
        if connection.landing is not None:
            self.land(name)
        elif connection.answers:
            reply = parse_reply(connection.answers.popleft())
            if not isinstance(reply, Chunk):
                assert isinstance(reply, Failed | Draining)
                self.engine.replied(name, reply)
            elif reply.placed:
                self.engine.placed(name, reply)
            else:
                connection.landing, connection.chunk = self.engine.arriving(name, reply), reply
                if connection.landing is not None and not half:
                    self.land(name)
        elif connection.cut:
            self.lose(name)

    def land(self, name: str) -> None:
        connection = self.connections[name]
        chunk, landing = connection.chunk, connection.landing
        assert landing is not None
        here = chunk.pixels
        for place in landing.places:
            place[:], here = here[: len(place)], here[len(place) :]
        connection.landing = None
        self.engine.landed(name, chunk, landing)

    # The workers.

    @rule(name=hosts)
    def receive(self, name: str) -> None:
        connection = self.connections.get(name)
        if connection is None or connection.cut:
            return
        requests = self.engine.links[name].requests
        if requests:
            request = parse_request(requests.popleft())
            assert isinstance(request, ChunkRequest)
            connection.scheduler.ask(connection.stream.number, request)

    @rule(name=hosts)
    def start_work(self, name: str) -> None:
        if name in self.connections:
            self.connections[name].begin()

    @rule(name=hosts, data=st.data(), fails=st.integers(0, 9))
    def finish_work(self, name: str, data: st.DataObject, fails: int) -> None:
        connection = self.connections.get(name)
        if connection is None:
            return
        if connection.working:
            place = data.draw(st.integers(0, len(connection.working) - 1))
            connection.finish(place, fails=fails == 0)

    @rule(name=hosts)
    def send(self, name: str) -> None:
        if name in self.connections:
            self.connections[name].send()

    @rule(name=hosts)
    def all_of_it(self, name: str) -> None:
        """A worker that is well."""
        for _ in range(LIMIT):
            if name not in self.connections:
                return
            for action in (self.receive, self.start_work):
                action(name)
            connection = self.connections[name]
            if connection.working:
                connection.finish(0, fails=False)
            connection.send()
            self.arrive(name, half=False)

    @rule(asleep=st.one_of(st.none(), hosts), rounds=st.integers(1, 6), keep=st.booleans())
    def go_on(self, asleep: str | None, rounds: int, keep: bool) -> None:
        """All but one are well for a while, and the consumer takes what comes."""
        for _ in range(rounds):
            for name in HOSTS:
                if name != asleep:
                    self.all_of_it(name)
            self.take(keep=keep)
            del self.held[3:]

    @rule(name=hosts)
    def drain(self, name: str) -> None:
        connection = self.connections.get(name)
        if connection is None:
            return
        if not connection.draining:
            connection.draining = True
            connection.stream.put(Answer(encode_reply(Draining())))
            connection.stream.finish()

    @precondition(lambda self: self.old)
    @rule(data=st.data(), writes=st.booleans())
    def late(self, data: st.DataObject, writes: bool) -> None:
        """A worker whose call is over works on, or finds that out."""
        connection = self.old[data.draw(st.integers(0, len(self.old) - 1))]
        if connection.working and writes:
            connection.finish(0, fails=False)
        elif not connection.ended:
            connection.end()
        elif not connection.working:
            self.old.remove(connection)

    # The consumer.

    @rule(seconds=st.sampled_from([0.1, 0.6, 6.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.engine.release(self.taken)

    @rule(keep=st.booleans())
    def take(self, keep: bool) -> None:
        if self.engine._session.ready is None:
            return
        assembly = self.engine.take(self.taken)
        assert assembly is not None
        epoch, step = divmod(self.taken, ORDER.steps_per_epoch)
        taken = step * SPEC.per_lane
        expected = ORDER.records(epoch, taken, np.array(SLOTS))
        assert (assembly.records == expected).all()
        assert (assembly.images == (expected + 1).reshape(-1, 1, 1, 1)).all()
        assert (assembly.labels == expected % 7).all()
        self.ledger.account(epoch, taken, np.array(SLOTS), assembly.records, assembly.status)
        if keep:
            assembly.images[:] = 255 - assembly.images  # it is the consumer's own
            self.held.append((assembly.images, 254 - expected))
        del assembly
        self.taken += 1
        self.engine.release(self.taken)

    @precondition(lambda self: self.held)
    @rule()
    def drop(self) -> None:
        self.held.pop(0)

    @invariant()
    def batches_stay_as_they_are(self) -> None:
        for images, expected in self.held if hasattr(self, "held") else ():
            assert (images == expected.reshape(-1, 1, 1, 1)).all()

    @invariant()
    def reports_are_sums(self) -> None:
        """None shrinks, also when workers leave, and the slots are those of the batches that were taken."""
        if not hasattr(self, "taken"):
            return
        before, self.reported = self.reported, self.engine.report()
        now = self.reported
        assert (now.steps, now.images) == (self.taken, self.taken * len(SLOTS))
        assert (now.masked, now.substituted) == (0, 0)
        assert before.hedges <= now.hedges
        assert before.hedges + before.retries <= now.hedges + now.retries
        assert before.bytes_copied <= now.bytes_copied
        assert now.retries >= 0
        assert now.ready <= now.prefetch == DEPTH
        assert now.workers <= len(self.engine.links)

    def teardown(self) -> None:
        """With all workers well again the stream ends, unless all of them had failed to make a piece."""
        if not hasattr(self, "taken"):
            if hasattr(self, "patches"):
                self.patches.close()
            return
        try:
            self.recover()
        finally:
            self.held.clear()
            self.engine.close()
            for connection in (*self.old, *self.connections.values()):
                while connection.working:
                    connection.finish(0, fails=False)
                connection.end()
            self.patches.close()

    def recover(self) -> None:
        for _ in range(400):
            while self.leaving:
                self.gone()
            self.engine._found(FIRST)
            while self.old:
                connection = self.old.pop()
                while connection.working:
                    connection.finish(0, fails=False)
                connection.end()
            for name in self.engine.links:
                if name not in self.connections:
                    self.connect(name, knows=True)
                self.all_of_it(name)
            self.take(keep=False)
            self.wait(0.1)
            if self.engine._session.failure is not None:
                return
            if self.engine._session.ended:
                break
        assert self.taken == STEPS
        self.ledger.finish_epoch(self.ledger.epoch)
        assert (self.ledger.totals.lost, self.ledger.totals.repeated) == (0, 0)
        for connection in self.connections.values():  # what was asked twice may not have been answered yet
            connection.end()
        for name in list(self.connections):
            self.old.append(self.connections.pop(name))
            self.engine.lost(name)
        while self.old:
            connection = self.old.pop()
            while connection.working:
                connection.finish(0, fails=False)
        assert self.engine.retired == 0


def test_a_worker_that_leaves_for_good_while_it_may_write_gives_the_buffer_back() -> None:
    state = Protocol()
    state.begin(rebalance="now", transport="auto")
    one, other = HOSTS[0], str(LATER[0])
    state.all_of_it(one)
    state.look_up(data=None, first={FIRST[0]}, later={LATER[0]})
    state.all_of_it(one)
    state.connect(other, knows=True)
    state.go_on(asleep=None, rounds=1, keep=False)
    state.receive(other)
    state.lose(other)
    state.look_up(data=None, first={FIRST[0]}, later=set())
    state.gone()
    state.teardown()  # sees that no buffer is retired in the end


TestProtocol = Protocol.TestCase
TestProtocol.settings = settings(max_examples=40, stateful_step_count=60, deadline=None)


@pytest.mark.soak
def test_many_more_orders_of_events() -> None:
    run_state_machine_as_test(
        Protocol, settings=settings(max_examples=2000, stateful_step_count=100, deadline=None)
    )
