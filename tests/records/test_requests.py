"""Calls are retried, bounded in number and time, and nothing is left of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError

import pytest

from feeder.errors import Closed, StorageError
from feeder.records.requests import Permanent, Policy, Requests

QUICK = Policy(attempt_s=30.0, total_s=30.0, base_s=0.001, cap_s=0.002)


@pytest.fixture
def requests() -> Iterator[Requests]:
    with Requests(QUICK, parallel=4) as pool:
        yield pool


class Flaky:
    """Fails some times, then gives a value."""

    def __init__(self, failures: int, error: Exception) -> None:
        self.left = failures
        self.error = error

    def __call__(self) -> str:
        if self.left:
            self.left -= 1
            raise self.error
        return "value"


def test_a_call_that_fails_is_tried_again_and_counted(requests: Requests) -> None:
    assert requests.submit(Flaky(3, OSError("busy")), "x", 10).result(30) == "value"
    counters = requests.counters
    assert (counters.requests, counters.retries, counters.bytes) == (4, 3, 10)


def test_what_cannot_get_better_is_not_tried_again(requests: Requests) -> None:
    with pytest.raises(StorageError, match=r"^x: no such thing$"):
        requests.submit(Flaky(1, Permanent("no such thing")), "x").result(30)
    assert requests.counters.requests == 1


def test_what_a_store_says_may_be_permanent() -> None:
    def describe(error: OSError) -> str:
        raise Permanent(f"{error} for good")

    with Requests(QUICK, describe=describe) as pool, pytest.raises(StorageError, match="x: gone for good"):
        pool.submit(Flaky(1, OSError("gone")), "x").result(30)


def test_errors_of_ours_and_faults_come_as_they_are(requests: Requests) -> None:
    for error in (StorageError("other object"), ZeroDivisionError("a fault")):
        with pytest.raises(type(error), match=str(error)):
            requests.submit(Flaky(1, error), "x").result(30)
    assert requests.counters.retries == 0


def test_trying_again_ends_with_the_deadline_and_says_how_often() -> None:
    with Requests(Policy(total_s=0.2, base_s=0.001, cap_s=0.01)) as pool:
        with pytest.raises(
            StorageError, match=r"^s3://b/k: cannot read: busy \(\d+ attempts in \d+\.\d s\): is the store up"
        ):
            pool.submit(Flaky(10**9, OSError("busy")), "s3://b/k").result(30)
        assert pool.counters.retries > 1


def test_a_call_that_hangs_is_given_up_and_its_place_is_taken() -> None:
    hang = threading.Event()
    calls = []

    def call() -> str:
        calls.append(threading.current_thread())
        if len(calls) == 1:
            hang.wait(60)
            return "too late"
        return "second"

    with Requests(Policy(attempt_s=0.2, total_s=30, base_s=0.001), parallel=1) as pool:
        assert pool.submit(call, "x").result(30) == "second"
        assert calls[0] is not calls[1]
        hang.set()
    calls[0].join(30)


def test_no_answer_at_all_is_an_error_by_the_deadline() -> None:
    hang = threading.Event()
    with Requests(Policy(attempt_s=0.1, total_s=0.4, base_s=0.001), parallel=2) as pool:
        with pytest.raises(StorageError, match="x: cannot read: no answer within the deadline"):
            pool.submit(lambda: hang.wait(60), "x").result(30)
        hang.set()


def test_what_waits_behind_a_call_that_hangs_for_good_is_called() -> None:
    hang = threading.Event()
    with Requests(Policy(attempt_s=0.2, total_s=0.2, base_s=0.001), parallel=1) as pool:
        first = pool.submit(lambda: hang.wait(60), "x")
        assert pool.submit(lambda: "value", "y").result(30) == "value"
        with pytest.raises(StorageError, match="x: cannot read: no answer within the deadline"):
            first.result(30)
        hang.set()


def test_no_more_than_so_many_at_a_time(requests: Requests) -> None:
    lock = threading.Lock()
    now, most = 0, 0

    def call() -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.002)
        with lock:
            now -= 1

    for future in [requests.submit(call, "x") for _ in range(40)]:
        future.result(30)
    assert 1 <= most <= 4


def test_close_fails_what_waits_and_refuses_what_comes() -> None:
    go = threading.Event()
    pool = Requests(QUICK, parallel=1)
    started = threading.Event()
    first = pool.submit(lambda: (started.set(), go.wait(60))[1], "x")
    assert started.wait(30)
    later = [pool.submit(lambda: None, "x") for _ in range(3)]
    cancelled = pool.submit(lambda: None, "x")
    assert cancelled.cancel()
    threading.Timer(0.05, go.set).start()
    pool.close()
    assert first.result(30)
    for future in later:
        with pytest.raises(Closed):
            future.result(30)
    with pytest.raises(CancelledError):
        cancelled.result(30)
    with pytest.raises(Closed):
        pool.submit(lambda: None, "x")


def test_close_ends_what_pauses_between_attempts() -> None:
    tried = threading.Event()

    def call() -> None:
        tried.set()
        raise OSError("busy")

    pool = Requests(Policy(base_s=1000.0, cap_s=1000.0, total_s=1e6))
    future = pool.submit(call, "x")
    assert tried.wait(30)
    pool.close()
    with pytest.raises(Closed):
        future.result(30)
