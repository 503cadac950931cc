"""Workers that come while a stream runs, behind a name, or a function, whose addresses change."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import feeder
from feeder.errors import ConfigError, WorkerUnavailable

NAME = "workers.feeder.test"
ARGUMENTS: dict[str, Any] = {"batch_size": 12, "image_size": 32, "seed": 9, "epochs": 6}
BATCHES, STEPS = 60, 10
ROOM = 2 * 12 * 32 * 32 * 3
DEADLINE_S = 60.0


def until_is(stream: feeder.Stream, address: str, state: str) -> None:
    """Waits until a worker is in this state, known to the stream at all."""
    until(lambda: address in (workers := stream.stats().workers) and workers[address].state == state)


def until(condition: Callable[[], Any]) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


class Names:
    """What the name stands for; every other name is looked up as ever."""

    def __init__(self) -> None:
        self.hosts: list[str] = []
        self.asked = 0
        self._look_up = socket.getaddrinfo

    def getaddrinfo(self, host: Any, port: Any, *arguments: Any, **settings: Any) -> Any:
        if host != NAME:
            return self._look_up(host, port, *arguments, **settings)
        self.asked += 1
        if not self.hosts:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [answer for host in self.hosts for answer in self._look_up(host, port, *arguments, **settings)]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    made = Names()
    monkeypatch.setattr(socket, "getaddrinfo", made.getaddrinfo)
    return made


class Fleet:
    """Workers that listen on one port of several addresses of this host; the first one stays."""

    def __init__(self, shards: Path, start_worker: Any, names: Names, first: Any) -> None:
        self.names = names
        self.workers: dict[str, Any] = {}
        self._start = lambda listen: start_worker(shards, listen=listen)
        self.port = int(first.address.rpartition(":")[2])
        names.hosts.append("127.0.0.1")

    def add(self, host: str) -> str:
        """A worker that is there, and has the name."""
        self.workers[host] = self._start(f"{host}:{self.port}")
        if host not in self.names.hosts:
            self.names.hosts.append(host)
        return f"{host}:{self.port}"

    def remove(self, host: str) -> None:
        self.names.hosts.remove(host)
        self.workers.pop(host).kill()

    def stream(self, **arguments: Any) -> feeder.Stream:
        client = feeder.connect(f"dns:{NAME}:{self.port}", resolve_s=0.05)
        return client.stream(
            "data", **ARGUMENTS, prefetch_bytes=ROOM, stall_timeout_s=DEADLINE_S, **arguments
        )


@pytest.fixture(scope="module")
def first(shards: Path, start_worker_once: Any) -> Any:
    return start_worker_once(shards)


@pytest.fixture
def fleet(shards: Path, start_worker: Any, names: Names, first: Any) -> Fleet:
    return Fleet(shards, start_worker, names, first)


@pytest.fixture
def undisturbed(first: Any, digest_batches: Any) -> list[str]:
    with feeder.connect(first.address).stream("data", **ARGUMENTS) as stream:
        digests: list[str] = digest_batches(stream)
    return digests


def take(stream: feeder.Stream, count: int) -> list[feeder.Batch]:
    return [next(stream) for _ in range(count)]


def check_whole(
    stream: feeder.Stream, batches: list[feeder.Batch], undisturbed: list[str], digest_batches: Any
) -> None:
    assert digest_batches(batches) == undisturbed
    totals = stream.ledger().totals
    assert (totals.delivered, totals.lost, totals.repeated) == (totals.expected, 0, 0)


def test_a_worker_that_joins_takes_its_part_at_once(
    fleet: Fleet, undisturbed: list[str], digest_batches: Any
) -> None:
    with fleet.stream() as stream:
        batches = take(stream, 3)
        address = fleet.add("127.0.0.2")
        until_is(stream, address, "live")
        batches += take(stream, 5)
        assert stream.stats().workers[address].images > 0
        batches += list(stream)
        check_whole(stream, batches, undisturbed, digest_batches)


@pytest.mark.parametrize("remainder", ["drop", "wrap"])
def test_a_worker_that_joins_takes_its_part_with_the_next_epoch(fleet: Fleet, remainder: Any) -> None:
    with fleet.stream(rebalance="epoch", remainder=remainder) as stream:
        take(stream, 3)
        address = fleet.add("127.0.0.2")
        until_is(stream, address, "joining")
        take(stream, STEPS - 3 - 2)  # two more are prefetched
        assert stream.stats().workers[address].images == 0
        take(stream, STEPS)
        assert stream.stats().workers[address].state == "live"
        assert stream.stats().workers[address].images > 0


def test_where_no_other_is_left_it_takes_its_part_at_once(
    fleet: Fleet, undisturbed: list[str], digest_batches: Any
) -> None:
    fleet.add("127.0.0.2")
    fleet.names.hosts.remove("127.0.0.1")
    with fleet.stream(rebalance="epoch") as stream:
        batches = take(stream, 3)
        address = fleet.add("127.0.0.3")
        until_is(stream, address, "joining")
        fleet.remove("127.0.0.2")
        batches += take(stream, 5)
        assert stream.stats().workers[address].images > 0
        batches += list(stream)
        check_whole(stream, batches, undisturbed, digest_batches)


def test_a_worker_that_left_is_forgotten_and_used_again_when_it_comes_back(
    fleet: Fleet, undisturbed: list[str], digest_batches: Any
) -> None:
    address = fleet.add("127.0.0.2")
    with fleet.stream() as stream:
        batches = take(stream, 5)
        fleet.remove("127.0.0.2")
        until(lambda: address not in stream.stats().workers)
        batches += take(stream, 5)
        fleet.add("127.0.0.2")
        until_is(stream, address, "live")
        batches += list(stream)
        assert stream.stats().workers[address].images > 0
        check_whole(stream, batches, undisturbed, digest_batches)


def test_a_worker_that_lives_on_without_its_name_is_kept(fleet: Fleet) -> None:
    address = fleet.add("127.0.0.2")
    with fleet.stream() as stream:
        take(stream, 2)
        until_is(stream, address, "live")
        fleet.names.hosts.remove("127.0.0.2")
        asked = fleet.names.asked
        until(lambda: fleet.names.asked > asked + 2)
        assert stream.stats().workers[address].state == "live"
        assert len(list(stream)) == BATCHES - 2


def test_a_stream_that_is_dropped_looks_nothing_up_any_more(fleet: Fleet) -> None:
    stream = fleet.stream()
    next(stream)
    assert "feeder-names" in {thread.name for thread in threading.enumerate()}
    del stream
    until(lambda: "feeder-names" not in {thread.name for thread in threading.enumerate()})


def test_names_that_do_not_resolve_for_a_while_change_nothing(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    with fleet.stream() as stream:
        take(stream, 2)
        hosts, fleet.names.hosts = fleet.names.hosts, []
        asked = fleet.names.asked
        until(lambda: fleet.names.asked > asked + 2)
        fleet.names.hosts = hosts
        assert len(list(stream)) == BATCHES - 2
    assert caplog.text.count("the workers of before are kept") == 1


def test_a_name_that_stands_for_nothing_is_an_error(names: Names) -> None:
    with pytest.raises(WorkerUnavailable, match="does not resolve"):
        feeder.connect(f"dns:{NAME}:5", timeout_s=0.5)
    assert names.asked > 1


def test_connect_waits_for_a_name_that_stands_for_nothing_yet(first: Any, names: Names) -> None:
    def host_comes() -> None:
        until(lambda: names.asked > 1)
        names.hosts.append("127.0.0.1")

    thread = threading.Thread(target=host_comes)
    thread.start()
    assert feeder.connect(f"dns:{NAME}:{first.address.rpartition(':')[2]}", timeout_s=DEADLINE_S).workers
    thread.join()


def test_a_function_names_a_worker_that_joins(
    fleet: Fleet, first: Any, undisturbed: list[str], digest_batches: Any
) -> None:
    places = [first.address]
    client = feeder.connect(lambda: places, resolve_s=0.05)
    with client.stream("data", **ARGUMENTS, prefetch_bytes=ROOM, stall_timeout_s=DEADLINE_S) as stream:
        batches = take(stream, 3)
        address = fleet.add("127.0.0.2")
        places.append(address)
        until_is(stream, address, "live")
        batches += take(stream, 5)
        assert stream.stats().workers[address].images > 0
        batches += list(stream)
        check_whole(stream, batches, undisturbed, digest_batches)


@pytest.mark.parametrize("answer", [ZeroDivisionError(), [], 5, ["no address"]], ids=repr)
def test_a_function_that_fails_for_a_while_changes_nothing(
    first: Any, caplog: pytest.LogCaptureFixture, answer: Any
) -> None:
    answers: list[Any] = []

    def places() -> Any:
        answers.append(None)
        if len(answers) in (2, 3):
            if isinstance(answer, Exception):
                raise answer
            return answer
        return first.address

    client = feeder.connect(places, resolve_s=0.05)
    with client.stream("data", **ARGUMENTS, prefetch_bytes=ROOM) as stream:
        take(stream, 2)
        until(lambda: len(answers) > 4)
        assert len(list(stream)) == BATCHES - 2
    assert caplog.text.count("the workers of before are kept") == 1


def test_a_function_that_fails_at_the_start_is_an_error() -> None:
    with pytest.raises(WorkerUnavailable, match=r"failed: ZeroDivisionError\('division by zero'\)"):
        feeder.connect(lambda: str(1 / 0), timeout_s=0.5)
    with pytest.raises(WorkerUnavailable, match="names none now"):
        feeder.connect(lambda: [], timeout_s=0.5)
    with pytest.raises(ConfigError, match="target must be a text or a list of texts, got 5"):
        feeder.connect(lambda: 5)  # type: ignore[arg-type,return-value]


def test_what_is_no_way_to_rebalance_is_refused(pair: Any) -> None:
    with pytest.raises(ConfigError, match="rebalance 'later' is unknown; use 'now' or 'epoch'"):
        feeder.connect(pair[0].address).stream("data", batch_size=4, rebalance="later")  # type: ignore[arg-type]
