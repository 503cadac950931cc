"""Jobs, limits and the life of a client, against real workers."""

from __future__ import annotations

import asyncio
import gc
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

import feeder
from feeder.client import trouble
from feeder.errors import ConfigError, Refused
from feeder.wire import channel

SMALL: dict[str, Any] = {"batch_size": 12, "image_size": 32}
EXIT_S = 5.0

RunClient = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def both(pair: Any) -> feeder.Client:
    return feeder.connect([worker.address for worker in pair])


@pytest.fixture
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trouble, "REFUSAL_GRACE_S", 0.3)


@pytest.mark.usefixtures("short_grace")
def test_two_consumers_with_one_index_are_noticed(both: feeder.Client) -> None:
    # Pitfall P08: an index left at its default gives double data.
    def consumer(index: int) -> feeder.Stream:
        return both.stream("data", **SMALL, consumer_index=index, consumer_count=2, job="train")

    with consumer(0) as first:
        next(first)
        with (
            consumer(0) as second,
            pytest.raises(Refused, match=r"live session of consumer 0 .* own consumer_index"),
        ):
            for _ in second:
                pass
        with consumer(1) as other:
            next(other)
        next(first)


@pytest.mark.usefixtures("short_grace")
def test_one_job_with_two_configurations_is_noticed(both: feeder.Client) -> None:
    # Pitfall P10.
    with both.stream("data", **SMALL, consumer_count=2, job="train") as first:
        next(first)
        other = both.stream(
            "data", batch_size=6, image_size=32, consumer_index=1, consumer_count=2, job="train"
        )
        with other, pytest.raises(ConfigError, match="global_batch: 24, 12"):
            next(other)


def test_a_job_can_be_taken_up_at_once_after_close(both: feeder.Client) -> None:
    for _ in range(5):
        with both.stream("data", **SMALL, job="again") as stream:
            next(stream)
    with both.stream("data", **SMALL, job="again") as stream:
        next(stream)
        stream.load_state_dict(stream.state_dict())
        next(stream)


@pytest.mark.usefixtures("short_grace")
def test_one_stream_too_many_is_refused_by_name(shards: Path, start_worker: Any) -> None:
    worker = start_worker(shards, "--max-streams", "1")
    client = feeder.connect(worker.address)
    with client.stream("data", **SMALL) as first:
        next(first)
        with client.stream("data", **SMALL) as second, pytest.raises(Refused, match="--max-streams is 1"):
            next(second)
        next(first)


def test_a_long_pause_does_not_break_the_stream(both: feeder.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    # Pitfall P15: keepalive pings faster than the server allows end in "too_many_pings".
    options = dict(channel.CLIENT_OPTIONS) | {"grpc.keepalive_time_ms": 1000}
    monkeypatch.setattr(channel, "CLIENT_OPTIONS", tuple(options.items()))
    with both.stream("data", **SMALL) as stream:
        next(stream)
        time.sleep(5)
        for _ in range(80):  # beyond what was ready
            next(stream)
        for worker in stream.stats().workers.values():
            assert (worker.state, worker.reconnects, worker.failovers) == ("live", 0, 0)


def test_a_client_that_does_not_read_asks_for_no_more_than_it_has_room_for(both: feeder.Client) -> None:
    with both.stream("data", **SMALL, prefetch_bytes=3 * 12 * 32 * 32 * 3) as stream:
        next(stream)
        ready = 4 * 12  # the batch that was taken and three more
        while sum(worker.images for worker in stream.stats().workers.values()) < ready:
            time.sleep(0.01)
        time.sleep(0.5)
        workers = stream.stats().workers.values()
        assert sum(worker.images for worker in workers) == ready
        assert sum(worker.outstanding for worker in workers) == 0


def test_abandoned_iterators_leave_nothing(both: feeder.Client) -> None:
    # Pitfall P29.
    process = psutil.Process()
    before = threading.active_count()

    def abandon(times: int) -> tuple[int, int, int]:
        gc.disable()  # a collection may be far away
        for _ in range(times):
            next(iter(both.stream("data", **SMALL)))
        gc.enable()
        deadline = time.monotonic() + EXIT_S
        while threading.active_count() > before:  # gRPC's threads of closed channels take a moment, too
            assert time.monotonic() < deadline, threading.enumerate()
            time.sleep(0.01)
        return process.num_threads(), process.num_fds(), process.memory_info().rss

    threads, fds, rss = abandon(20)
    threads_after, _, rss_after = abandon(200)
    assert threads_after <= threads + 16  # gRPC's pool of native threads breathes
    assert rss_after <= rss + (48 << 20)
    deadline = time.monotonic() + EXIT_S
    while process.num_fds() > fds + 8:  # so do the sockets of its closed channels
        assert time.monotonic() < deadline, process.num_fds()
        time.sleep(0.01)


QUIET = """
import sys, feeder
stream = feeder.connect(sys.argv[1]).stream("data", batch_size=12, image_size=32)
for number, batch in enumerate(stream):
    if number == 2:
        break
last = batch
print("done", last.images.sum() > 0)
"""


@pytest.mark.parametrize("ending", ["", "stream.close()\n", "del stream\n"])
def test_nothing_is_printed_at_a_normal_exit(pair: Any, run_client: RunClient, ending: str) -> None:
    # Pitfall P26.
    client = run_client(QUIET + ending, ",".join(worker.address for worker in pair))
    out, err = client.communicate(timeout=60)
    assert (client.returncode, out.strip(), err) == (0, "done True", "")


RAISES = """
import sys, feeder, time
stream = feeder.connect(sys.argv[1]).stream("data", batch_size=12, image_size=32)
for number, batch in enumerate(stream):
    if number == 2:
        print("ready", flush=True)
        sys.stdin.readline()
        raise RuntimeError("the training step failed")
"""


@pytest.mark.parametrize("alive", [True, False])
def test_an_exception_in_the_loop_ends_the_process(
    shards: Path, start_worker: Any, run_client: RunClient, alive: bool
) -> None:
    # Pitfall P13.
    worker = start_worker(shards)
    client = run_client(RAISES, worker.address)
    assert client.stdout is not None
    assert client.stdout.readline() == "ready\n"
    if not alive:
        worker.kill()
    _, err = client.communicate("\n", timeout=EXIT_S)
    assert client.returncode == 1
    assert err.rstrip().endswith("RuntimeError: the training step failed")


WAITS = """
import signal, sys, feeder
signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background has it ignored
stream = feeder.connect(sys.argv[1]).stream("data", batch_size=12, image_size=32)
try:
    for number, batch in enumerate(stream):
        if number == 2:
            print("ready", flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.parametrize("stopped", [False, True])
def test_ctrl_c_ends_the_process(
    shards: Path, start_worker: Any, run_client: RunClient, stopped: bool
) -> None:
    worker = start_worker(shards)
    client = run_client(WAITS, worker.address)
    assert client.stdout is not None
    assert client.stdout.readline() == "ready\n"
    if stopped:  # the consumer then waits for a worker that says nothing
        worker.signal(signal.SIGSTOP)
        time.sleep(1)
    client.send_signal(signal.SIGINT)
    out, err = client.communicate(timeout=EXIT_S)
    assert (client.returncode, out, err) == (0, "interrupted\n", "")


PAUSED = """
import sys, feeder
settings = {"batch_size": 12, "image_size": 32, "prefetch_bytes": 1, "stall_timeout_s": 3}
stream = feeder.connect(sys.argv[1]).stream("data", **settings)
next(stream)
print("ready", flush=True)
sys.stdin.readline()
for _ in range(20):  # more than is ready: what it asks for comes once the worker goes on
    next(stream)
print("well", flush=True)
"""


def test_a_consumer_that_was_stopped_does_not_blame_its_workers(
    shards: Path, start_worker: Any, run_client: RunClient
) -> None:
    worker = start_worker(shards)
    client = run_client(PAUSED, worker.address)
    assert client.stdout is not None
    assert client.stdin is not None
    assert client.stdout.readline() == "ready\n"
    worker.signal(signal.SIGSTOP)
    client.stdin.write("\n")
    client.stdin.flush()
    time.sleep(0.7)  # it waits for the worker by now
    client.send_signal(signal.SIGSTOP)
    time.sleep(4)
    client.send_signal(signal.SIGCONT)
    time.sleep(1)
    worker.signal(signal.SIGCONT)
    out, err = client.communicate(timeout=EXIT_S)
    assert (client.returncode, out, err) == (0, "well\n", "")


FORKS = """
import os, sys, time, warnings, feeder
from feeder.errors import Closed
warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 on warns of any fork with threads
client = feeder.connect(sys.argv[1])
stream = client.stream("data", batch_size=12, image_size=32)
next(stream)
child = os.fork()
if child == 0:
    begun = time.monotonic()
    for use in (lambda: next(stream), lambda: client.stream("data", batch_size=12)):
        try:
            use()
        except Closed as error:
            print(error, flush=True)
    stream.close()
    print("in time:", time.monotonic() - begun < 2, flush=True)
    os._exit(0)
os.waitpid(child, 0)
next(stream)  # what the child did took nothing from the parent
stream.close()
"""


def test_a_forked_child_gets_a_clear_error_and_the_parent_goes_on(pair: Any, run_client: RunClient) -> None:
    # Pitfall P14.
    client = run_client(FORKS, pair[0].address)
    out, _ = client.communicate(timeout=60)
    assert client.returncode == 0
    assert "cannot be used after fork" in out
    assert "call feeder.connect in the child" in out
    assert out.rstrip().endswith("in time: True")


def test_streams_are_read_inside_running_event_loops_of_several_threads(
    both: feeder.Client, digest_batches: Callable[..., list[str]], capfd: pytest.CaptureFixture[str]
) -> None:
    # Pitfall P18: a notebook is a running loop, too.
    async def read(found: list[list[str]]) -> None:
        with both.stream("data", **SMALL, epochs=1) as stream:
            found.append(digest_batches(stream))

    found: list[list[str]] = []
    threads = [threading.Thread(target=lambda: asyncio.run(read(found))) for _ in range(2)]
    for thread in threads:
        thread.start()
    asyncio.run(read(found))
    for thread in threads:
        thread.join()
    assert found == [found[0]] * 3
    assert capfd.readouterr() == ("", "")
