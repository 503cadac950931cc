"""Three workers and two consumers under random faults: every global step is as if nothing had been."""

from __future__ import annotations

import json
import os
import random
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from fault_proxy import Proxy

import feeder

WORKERS, CONSUMERS = 3, 2
BATCH = 8
EPOCHS = 4
STEPS = 28
ARGUMENTS: dict[str, Any] = {"image_size": 32, "seed": 5, "epochs": EPOCHS}
BATCH_BYTES = BATCH * 32 * 32 * 3
SUSPECT_AFTER_S = 0.5
DEADLINE_S = 90.0

FAULTS = ("kill", "stop", "drain", "cut", "slow", "freeze", "kill consumer", "resume consumer")
SCHEDULES = 200
SHORT = range(0, SCHEDULES, 10)


@dataclass(frozen=True)
class Fault:
    """Comes when the first consumer has got `step` batches.

    Attributes:
        victim: number of a worker or a consumer.
        span_s: how long it lasts.
        back: how many steps before its last one a killed consumer saved its position.
    """

    step: int
    kind: str
    victim: int
    span_s: float
    back: int


@dataclass(frozen=True)
class Schedule:
    seed: int
    transport: str
    faults: tuple[Fault, ...]

    @classmethod
    def of(cls, seed: int) -> Schedule:
        draw = random.Random(f"schedule {seed}")
        faults = []
        for step in sorted(draw.sample(range(1, STEPS), draw.randint(2, 5))):
            kind = draw.choice(FAULTS)
            # No more than two processes are started again in one schedule: that is what takes time.
            if kind in ("kill", "drain") and sum(fault.kind in ("kill", "drain") for fault in faults) == 2:
                kind = "stop"
            victim = draw.randrange(CONSUMERS if "consumer" in kind else WORKERS)
            faults.append(Fault(step, kind, victim, draw.uniform(0.05, 0.8), draw.randint(0, 3)))
        return cls(seed, draw.choice(("auto", "grpc")), tuple(faults))


class Seat:
    """One of the three workers, behind a proxy: the process changes, the addresses stay."""

    def __init__(self, start: Callable[..., Any], shards: Path) -> None:
        self._start = lambda listen: start(shards, "--drain-s", "20", listen=listen)
        self.worker = self._start("127.0.0.1:0")
        self.proxy = Proxy(self.worker.address)
        self.trouble: list[str] = []
        self.frozen = False
        self._coming: threading.Thread | None = None

    @property
    def up(self) -> bool:
        return self._coming is None or not self._coming.is_alive()

    def kill(self) -> None:
        self.worker.kill()
        self._replace(lambda: None)

    def drain(self) -> None:
        old = self.worker
        old.signal(signal.SIGTERM)

        def wait() -> None:
            code = old.wait(40)
            if code and not self.frozen:
                self.trouble.append(f"a drained worker ended with {code}: {old.log.read_text()}")
            old.kill()

        self._replace(wait)

    def wait_up(self) -> None:
        if self._coming is not None:
            self._coming.join(DEADLINE_S)
            assert not self._coming.is_alive()
        assert not self.trouble, self.trouble
        self.frozen = False

    def close(self) -> None:
        self.proxy.close()

    def _replace(self, wait: Callable[[], None]) -> None:
        def come() -> None:
            try:
                wait()
                self.worker = self._start(self.worker.address)
            except Exception as error:  # noqa: BLE001  # the test reports it
                self.trouble.append(repr(error))

        self._coming = threading.Thread(target=come, name="starting a worker")
        self._coming.start()


class Nursery:
    """The process that consumers are forked from."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        path = Path(__file__).with_name("fault_consumer.py")
        root = str(Path(feeder.__file__).resolve().parent.parent)
        self._process = subprocess.Popen(
            [sys.executable, str(path), str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env={**os.environ, "PYTHONPATH": root},
        )
        theirs.close()

    def start(self, orders: dict[str, Any]) -> tuple[int, socket.socket]:
        ours, theirs = socket.socketpair()
        socket.send_fds(self._control, [json.dumps(orders).encode()], [theirs.fileno()])
        theirs.close()
        return int(self._control.recv(64)), ours

    def close(self) -> None:
        self._control.close()
        assert self._process.wait(10) == 0


@dataclass
class Consumer:
    """One consumer's lives, one after another."""

    nursery: Nursery
    orders: dict[str, Any]
    digests: list[str] = field(default_factory=list)
    #: Where a stream goes on after that many batches.
    states: list[Any] = field(default_factory=lambda: [None])
    granted: int = 0
    accounts: list[dict[str, Any]] = field(default_factory=list)
    left: dict[str, Any] | None = None
    _text: bytes = b""

    def start(self) -> None:
        self.pid, self.conversation = self.nursery.start({**self.orders, "start": self.states[-1]})

    def grant(self, steps: int) -> None:
        """Lets it take batches up to this number; one more is the end."""
        if steps > self.granted:
            self.conversation.sendall(b"n" * (steps - self.granted))
            self.granted = steps

    def resume(self) -> None:
        self.conversation.sendall(b"r")

    def kill(self, back: int) -> None:
        os.kill(self.pid, signal.SIGKILL)
        while self.hear():  # what it said before counts
            pass
        self.conversation.close()
        saved = max(0, len(self.digests) - back)
        del self.digests[saved:], self.states[saved + 1 :]
        self.granted = saved
        self.start()

    def hear(self) -> bool:
        """Takes what it says; whether it lives."""
        try:
            data = self.conversation.recv(1 << 16)
        except ConnectionResetError:  # it was killed with orders unread: what it said comes after this
            data = self.conversation.recv(1 << 16)
        *lines, self._text = (self._text + data).split(b"\n")
        for line in lines:
            said = json.loads(line)
            if "digest" in said:
                self.digests.append(said["digest"])
                self.states.append(said["state"])
            elif "account" in said:
                self.accounts.append(said["account"])
            else:
                self.left = said
        if not data:
            self._text = b""
        return bool(data)


class Run:
    """One schedule, from the first batch to the last."""

    def __init__(self, schedule: Schedule, seats: list[Seat], nursery: Nursery) -> None:
        self._seats = seats
        self._later: list[tuple[float, Callable[[], None]]] = []
        self._schedule = schedule
        frozen = any(fault.kind == "freeze" for fault in schedule.faults)
        self.consumers = [
            Consumer(
                nursery,
                {
                    "target": [seat.proxy.address for seat in seats],
                    "suspect_after_s": SUSPECT_AFTER_S,
                    "arguments": {
                        **ARGUMENTS,
                        "batch_size": BATCH,
                        "consumer_index": index,
                        "consumer_count": CONSUMERS,
                        "prefetch_bytes": 3 * BATCH_BYTES,
                        "transport": schedule.transport,
                        # A worker may not know for half a minute that a session behind a silent link is dead.
                        "job": None if frozen else f"schedule {schedule.seed}",
                        "stall_timeout_s": DEADLINE_S,
                    },
                },
            )
            for index in range(CONSUMERS)
        ]

    def run(self) -> None:
        for consumer in self.consumers:
            consumer.start()
        for fault in self._schedule.faults:
            self._advance(fault.step, any)
            self._fire(fault)
        self._advance(STEPS + 1, all)
        while self._later:
            self._tick(0.05)

    def _advance(self, step: int, enough: Callable[[Iterator[bool]], bool]) -> None:
        deadline_s = time.monotonic() + DEADLINE_S
        while True:
            for consumer in self.consumers:
                consumer.grant(step)
            if enough(
                len(consumer.digests) >= min(step, STEPS) and (step <= STEPS or consumer.left is not None)
                for consumer in self.consumers
            ):
                return
            self._tick(0.05)
            assert time.monotonic() < deadline_s, (self._schedule, self.consumers)

    def _tick(self, timeout_s: float) -> None:
        with selectors.DefaultSelector() as selector:
            for consumer in self.consumers:
                if consumer.left is None:
                    selector.register(consumer.conversation, selectors.EVENT_READ, consumer)
            for key, _ in selector.select(timeout_s):
                assert key.data.hear() or key.data.left is not None, "a consumer died"
        now = time.monotonic()
        due = [action for at, action in self._later if at <= now]
        self._later = [(at, action) for at, action in self._later if at > now]
        for action in due:
            action()

    def _in(self, span_s: float, action: Callable[[], None]) -> None:
        self._later.append((time.monotonic() + span_s, action))

    def _fire(self, fault: Fault) -> None:
        if fault.kind == "kill consumer":
            if self.consumers[fault.victim].left is None:
                self.consumers[fault.victim].kill(fault.back)
            return
        if fault.kind == "resume consumer":
            self.consumers[fault.victim].resume()
            return
        seat = self._seats[fault.victim]
        if fault.kind == "cut":
            seat.proxy.cut()
        elif fault.kind == "freeze":
            seat.frozen = True
            seat.proxy.freeze()
        elif fault.kind == "slow":
            seat.proxy.slow(0.005)
            self._in(fault.span_s, lambda: seat.proxy.slow(0.0))
        elif not seat.up:
            return  # it is just being started
        elif fault.kind == "kill":
            seat.kill()
        elif fault.kind == "drain":
            seat.drain()
        else:
            worker = seat.worker
            worker.signal(signal.SIGSTOP)
            self._in(fault.span_s, lambda: worker.signal(signal.SIGCONT))

    def close(self) -> None:
        for _, action in self._later:
            action()
        for consumer in self.consumers:
            consumer.conversation.close()  # ends one that lives yet
        for seat in self._seats:
            seat.proxy.cut()


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    made = Nursery()
    yield made
    made.close()


@pytest.fixture(scope="module")
def seats(shards: Path, start_worker_once: Callable[..., Any]) -> Iterator[list[Seat]]:
    made = [Seat(start_worker_once, shards) for _ in range(WORKERS)]
    yield made
    for seat in made:
        seat.close()


@pytest.fixture(autouse=True)
def _no_leaks(seats: list[Seat], nursery: Nursery) -> Iterator[None]:
    """In place of the guard of other tests: here workers are started again, and stay for the next one."""
    threads, children = set(threading.enumerate()), set(psutil.Process().children(recursive=True))
    yield
    deadline_s = time.monotonic() + DEADLINE_S
    for seat in seats:
        seat.wait_up()
    here = {seat.worker.process.pid for seat in seats}
    while left := {
        child
        for child in set(psutil.Process().children(recursive=True)) - children
        if child.pid not in here and child.is_running() and child.status() != psutil.STATUS_ZOMBIE
    }:
        assert time.monotonic() < deadline_s, left
        time.sleep(0.02)
    assert set(threading.enumerate()) <= threads
    for seat in seats:
        while left_there := sockets_of(seat.worker):
            assert time.monotonic() < deadline_s, left_there
            time.sleep(0.02)


@pytest.fixture(scope="module")
def undisturbed(shards: Path, seats: list[Seat], digest_batches: Any) -> list[list[str]]:
    """Of each consumer, from a single one that takes whole global batches."""
    parts: list[list[feeder.Batch]] = [[] for _ in range(CONSUMERS)]
    with feeder.connect(seats[0].worker.address).stream(
        "data", batch_size=BATCH * CONSUMERS, transport="grpc", **ARGUMENTS
    ) as stream:
        for batch in stream:
            for index, part in enumerate(parts):
                own = slice(index * BATCH, (index + 1) * BATCH)
                part.append(
                    feeder.Batch(batch.images[own], batch.labels[own], batch.mask[own], batch.position)
                )
    return [digest_batches(part) for part in parts]


def sockets_of(worker: Any) -> list[Any]:
    """TCP connections of a worker, and memory of consumers that it has mapped."""
    process = psutil.Process(worker.process.pid)
    connections = [one for one in process.net_connections("tcp") if one.status == psutil.CONN_ESTABLISHED]
    return connections + [one.path for one in process.memory_maps() if "feeder-arena" in one.path]


felt: Counter[str] = Counter()


@pytest.mark.parametrize(
    "seed",
    [
        *SHORT,
        *(pytest.param(seed, id=f"soak-{seed}", marks=pytest.mark.soak) for seed in range(SCHEDULES)),
    ],
)
def test_each_global_step_is_as_if_nothing_had_been(
    seed: int, seats: list[Seat], nursery: Nursery, undisturbed: list[list[str]]
) -> None:
    run = Run(Schedule.of(seed), seats, nursery)
    try:
        run.run()
    finally:
        run.close()
    for consumer, expected in zip(run.consumers, undisturbed, strict=True):
        assert consumer.digests == expected
        for life in consumer.accounts:
            assert (life["lost"], life["repeated"]) == (0, 0)
            assert life["delivered"] == life["images"]
            felt.update(life)
        assert consumer.left == {"threads": [], "held": 0}


def test_the_faults_were_felt(nursery: Nursery) -> None:
    # Of whatever schedules ran before it.
    if not felt:
        pytest.skip("no schedule ran")
    assert min(felt["failovers"], felt["reconnects"], felt["placed"]) > 0, felt
