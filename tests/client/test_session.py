"""The session as lists of events, and under every order of events that hypothesis finds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from feeder.client.known import HEDGE_FACTOR
from feeder.client.session import (
    GATHER_S,
    HEDGE_SHARE,
    RETRY_S,
    ROUNDS,
    Request,
    Session,
    Step,
)
from feeder.errors import BadRecord, StorageError
from feeder.order import assign


def places(count: int, per_lane: int = 1) -> Iterator[tuple[int, int]]:
    return ((0, number * per_lane) for number in range(count))


def make(
    workers: list[str], *, steps: int = 10, slots: range = range(8), depth: int = 2, max_slots: int = 4
) -> Session:
    return Session(places(steps), slots, 1, workers, depth=depth, max_slots=max_slots)


def deliver(session: Session, request: Request, now: float = 0.0) -> bool:
    return session.delivered(request.worker, request.id, now) is not None


def covered(requests: list[Request], step: int) -> list[int]:
    return sorted(slot for request in requests if request.step.number == step for slot in request.slots)


def test_asks_nothing_before_a_worker_is_there() -> None:
    session = make(["a"])
    assert session.poll(0.0) == []
    session.lost("a", 0.1)
    assert session.poll(0.1) == []
    assert session.wake_s(0.1) is None


def test_at_the_start_all_workers_are_waited_for_a_moment() -> None:
    session = make(["a", "b", "c"])
    session.opened("a", 100, 0.0)
    assert session.poll(0.0) == []
    session.lost("b", 0.1)
    assert session.poll(0.1) == []
    assert session.wake_s(0.1) == GATHER_S
    assert session.poll(GATHER_S) != []
    assert session.wake_s(GATHER_S) is None


def test_at_the_start_the_last_worker_to_be_reached_ends_the_wait() -> None:
    session = make(["a", "b"])
    session.opened("a", 100, 0.0)
    assert session.poll(0.0) == []
    session.opened("b", 100, 0.1)
    assert {request.worker for request in session.poll(0.1)} == {"a", "b"}


def test_a_window_of_steps_is_asked_for_and_moves_with_take() -> None:
    session = make(["a"], steps=3)
    session.opened("a", 100, 0.0)
    requests = session.poll(0.0)
    assert [request.step.number for request in requests] == [0, 0, 1, 1]
    assert covered(requests, 0) == covered(requests, 1) == list(range(8))
    assert session.poll(0.0) == []
    assert session.take() is None
    for request in requests:
        assert deliver(session, request)
    assert session.poll(0.0) == []  # two finished steps fill the window
    assert session.take() == Step(0, 0, 0)
    more = session.poll(0.0)
    assert [request.step for request in more] == [Step(2, 0, 2)] * 2
    for request in more:
        deliver(session, request)
    assert [session.take(), session.take(), session.take()] == [Step(1, 0, 1), Step(2, 0, 2), None]
    session.poll(0.0)
    assert session.ended


def test_steps_are_taken_in_order_whatever_comes_first() -> None:
    session = make(["a"])
    session.opened("a", 100, 0.0)
    requests = session.poll(0.0)
    for request in reversed(requests[1:]):
        deliver(session, request)
    assert session.take() is None
    deliver(session, requests[0])
    assert session.take() == Step(0, 0, 0)


def test_each_worker_has_requests_of_its_own_size() -> None:
    session = make(["a", "b"], max_slots=2, slots=range(64), depth=1)
    session.opened("a", 100, 0.0, max_slots=5)
    session.opened("b", 100, 0.0)
    requests = session.poll(0.0)
    sizes = {name: {len(one.slots) for one in requests if one.worker == name} for name in ("a", "b")}
    assert max(sizes["a"]) in (4, 5)
    assert max(sizes["b"]) == 2
    session.lost("a", 0.1)  # what is cut already stays as it is
    requests += session.poll(0.1)
    assert sorted({slot for one in requests if one.worker == "b" for slot in one.slots}) == list(range(64))


def test_no_more_is_outstanding_than_the_worker_allows() -> None:
    session = make(["a"], max_slots=1)
    session.opened("a", 3, 0.0)
    requests = session.poll(0.0)
    assert len(requests) == 3
    deliver(session, requests[0])
    assert len(session.poll(0.0)) == 1
    assert session.view("a").outstanding == 3


def test_lanes_go_to_the_workers_that_the_order_assigns() -> None:
    session = make(["a", "b"])
    session.opened("a", 100, 0.0)
    session.opened("b", 100, 0.0)
    owner = assign(range(8), ["a", "b"])
    for request in session.poll(0.0):
        assert {owner[slot] for slot in request.slots} == {request.worker}


def test_what_a_lost_worker_owed_is_asked_of_the_other() -> None:
    session = make(["a", "b"])
    session.opened("a", 100, 0.0)
    session.opened("b", 100, 0.0)
    requests = session.poll(0.0)
    owed = sorted((request.step, request.slots) for request in requests if request.worker == "a")
    session.lost("a", 1.0)
    again = session.poll(1.0)
    assert sorted((request.step, request.slots) for request in again) == owed
    assert {request.worker for request in again} == {"b"}
    assert session.view("a").failovers == len(owed)


def test_a_lost_worker_that_comes_back_is_asked_again() -> None:
    session = make(["a"])
    session.opened("a", 100, 0.0)
    first = session.poll(0.0)
    session.lost("a", 0.0)
    assert session.poll(0.0) == []
    session.opened("a", 100, 1.0)
    again = session.poll(1.0)
    assert [request.slots for request in again] == [request.slots for request in first]
    assert not {request.id for request in again} & {request.id for request in first}
    assert not deliver(session, first[0])  # an answer on the old connection is not one any more


def test_a_draining_worker_answers_what_it_owes_and_gets_nothing_new() -> None:
    session = make(["a", "b"], steps=4, max_slots=1, slots=range(4))
    session.opened("a", 1, 0.0)
    session.opened("b", 100, 0.0)
    requests = session.poll(0.0)
    session.draining("a", 0.0)
    assert {request.worker for request in session.poll(0.0)} == {"b"}
    mine = [request for request in requests if request.worker == "a"]
    assert len(mine) == 1
    assert deliver(session, mine[0])
    assert session.poll(0.0) == []
    session.lost("a", 0.0)
    assert session.view("a").failovers == 0


def test_a_draining_worker_that_falls_silent_is_not_waited_for() -> None:
    session = make(["a", "b"], depth=1)
    session.opened("a", 100, 0.0)
    session.opened("b", 100, 0.0)
    requests = session.poll(0.0)
    late = [request for request in requests if request.worker == "a"]
    session.draining("a", 1.0)
    for request in requests:
        if request.worker == "b":
            deliver(session, request, 9.0)
    assert session.poll(9.0) == []
    assert session.wake_s(9.0) == 10.0
    again = session.poll(10.0)
    assert {request.worker for request in again} == {"b"}
    assert {slot for request in again for slot in request.slots} == {
        slot for request in late for slot in request.slots
    }
    assert session.view("a").state == "draining"
    for request in again:
        assert deliver(session, request, 11.0)
    assert session.take() is not None
    assert not deliver(session, late[0], 12.0)
    assert {request.worker for request in session.poll(12.0)} == {"b"}
    session.lost("a", 13.0)
    assert session.view("a").failovers == len(late)


def test_a_silent_worker_is_not_waited_for_and_a_late_answer_is_dropped() -> None:
    session = make(["a", "b"], depth=1)
    session.opened("a", 100, 0.0)
    session.opened("b", 100, 0.0)
    requests = session.poll(0.0)
    late = [request for request in requests if request.worker == "a"]
    for request in requests:
        if request.worker == "b":
            deliver(session, request, 9.0)
    assert session.wake_s(9.0) == 10.0
    again = session.poll(10.0)
    assert session.view("a").state == "suspect"
    assert {request.worker for request in again} == {"b"}
    for request in again:
        assert deliver(session, request, 11.0)
    assert session.take() == Step(0, 0, 0)
    assert {request.worker for request in session.poll(11.0)} == {"b"}  # the suspect gets nothing new
    for request in late:
        assert not deliver(session, request, 12.0)
    assert session.view("a").state == "live"


def test_a_late_answer_of_a_suspect_counts_if_it_is_first() -> None:
    session = make(["a", "b"], depth=1)
    session.opened("a", 100, 0.0)
    session.opened("b", 100, 0.0)
    requests = session.poll(0.0)
    for request in requests:
        if request.worker == "b":
            deliver(session, request, 9.0)
    again = session.poll(10.0)
    for request in requests:
        if request.worker == "a":
            assert deliver(session, request, 10.5)
    assert session.take() == Step(0, 0, 0)
    for request in again:
        assert not deliver(session, request, 11.0)


def serve(session: Session, steps: int, now: float, silence_s: float = 0.1) -> tuple[float, list[Request]]:
    """Lets all workers answer at a steady pace, until they owe one more step; what they owe, and when."""
    for _ in range(steps):
        requests = session.poll(now)
        now += silence_s
        for request in requests:
            deliver(session, request, now)
        assert session.take() is not None
    return now, session.poll(now)


def test_a_worker_that_is_later_than_usual_is_passed_by() -> None:
    session = make(["a", "b"], steps=100, depth=1)
    session.opened("a", 100, 0.0)
    session.opened("b", 100, 0.0)
    now, owed = serve(session, 99, 0.0)
    for request in owed:
        if request.worker == "b":
            deliver(session, request, now + 0.1)
    late = now + HEDGE_FACTOR * 0.1
    assert session.wake_s(now + 0.1) == pytest.approx(late)
    assert session.poll(late - 0.01) == []
    again = session.poll(late + 0.01)
    assert {request.worker for request in again} == {"b"}
    assert covered(again, 99) == covered([request for request in owed if request.worker == "a"], 99)
    view = session.view("a")
    assert (view.state, view.hedges, view.failovers) == ("suspect", len(again), len(again))


def test_little_is_asked_twice() -> None:
    session = make(["a", "b"], steps=1000, depth=1)
    session.opened("a", 100, 0.0)
    session.opened("b", 100, 0.0)
    now, asked, twice = 0.0, 0, 0
    for number in range(1000):
        first = session.poll(now)
        now += 0.1
        for request in first:
            if request.worker == "b" or number < 100:
                deliver(session, request, now)
        again = session.poll(now + 0.25)  # from the 100th step on, "a" is always late
        for request in (*again, *first):
            deliver(session, request, now + 0.25)
        now += 0.3
        asked, twice = asked + len(first) + len(again), twice + len(again)
        assert session.take() is not None
    assert 0 < twice == session.view("a").hedges <= HEDGE_SHARE * asked


def test_where_all_are_late_nobody_is_passed_by() -> None:
    session = make(["a", "b"], steps=100, depth=1)
    session.opened("a", 100, 0.0)
    session.opened("b", 100, 0.0)
    now, _ = serve(session, 99, 0.0)
    assert session.poll(now + 5.0) == []
    assert session.live == ["a", "b"]
    assert session.wake_s(now + 5.0) == now + 10.0


def test_a_worker_whose_habits_are_unknown_has_time() -> None:
    session = make(["a", "b"], steps=100, depth=1)
    session.opened("a", 100, 0.0)
    session.opened("b", 100, 0.0)
    now, owed = serve(session, 5, 0.0)
    for request in owed:
        if request.worker == "b":
            deliver(session, request, now + 0.1)
    assert session.poll(now + 9.0) == []


def test_the_only_worker_is_never_suspect() -> None:
    session = make(["a"])
    session.opened("a", 100, 0.0)
    session.poll(0.0)
    assert session.poll(1000.0) == []
    assert session.view("a").state == "live"


def test_when_all_others_are_lost_a_suspect_is_trusted_again() -> None:
    session = make(["a", "b"], depth=1)
    session.opened("a", 100, 0.0)
    session.opened("b", 100, 0.0)
    requests = session.poll(0.0)
    for request in requests:
        if request.worker == "b":
            deliver(session, request, 9.0)
    session.poll(10.0)
    session.lost("b", 11.0)
    assert session.view("a").state == "live"
    assert session.poll(11.0) == []  # it still owes exactly what is missing


def test_a_failed_piece_goes_to_the_next_in_line() -> None:
    session = make(["a", "b"], depth=1)
    session.opened("a", 100, 0.0)
    session.opened("b", 100, 0.0)
    request = session.poll(0.0)[0]
    session.failed(request.worker, request.id, StorageError("disk"), 0.0, final=False)
    (again,) = session.poll(0.0)
    assert again.slots == request.slots
    assert again.worker != request.worker
    assert session.failure is None


def test_a_piece_that_all_workers_fail_is_tried_in_rounds_and_then_is_the_streams_error() -> None:
    session = make(["a"], slots=range(4), depth=1)
    session.opened("a", 100, 0.0)
    error = StorageError("disk")
    now, asked = 0.0, 0
    while session.failure is None:
        requests = session.poll(now)
        if not requests:
            wake = session.wake_s(now)
            assert wake is not None
            assert wake - now >= RETRY_S - 1e-9
            now = wake
            continue
        asked += 1
        session.failed("a", requests[0].id, error, now, final=False)
    assert asked == ROUNDS
    assert session.failure is error
    assert session.take() is None


def test_a_final_failure_comes_in_its_turn() -> None:
    session = make(["a"], slots=range(4))
    session.opened("a", 100, 0.0)
    first, second = session.poll(0.0)
    error = BadRecord("shard", 3, "empty")
    session.failed("a", second.id, error, 0.0, final=True)
    assert session.failure is None
    deliver(session, first)
    assert session.take() == Step(0, 0, 0)
    assert session.failure is error
    assert session.take() is None


def test_a_rejected_answer_is_asked_again_elsewhere() -> None:
    session = make(["a", "b"], depth=1)
    session.opened("a", 100, 0.0)
    session.opened("b", 100, 0.0)
    request = session.poll(0.0)[0]
    assert session.expects(request.worker, request.id) is not None
    session.failed(request.worker, request.id, StorageError("short"), 0.0, final=False)
    (again,) = session.poll(0.0)
    assert (again.slots, again.worker != request.worker) == (request.slots, True)


def test_a_worker_that_joins_takes_its_share_of_what_was_not_asked_yet() -> None:
    session = make(["a", "b"], slots=range(32), max_slots=1)
    session.opened("a", 1, 0.0)
    session.lost("b", 0.0)
    session.poll(0.0)
    session.opened("b", 100, 0.0)
    assert len([request for request in session.poll(0.0) if request.worker == "b"]) >= 16


def test_the_worker_beside_makes_all_where_each_consumer_has_one() -> None:
    session = Session(places(4), range(8), 1, ["a", "b"], depth=4, max_slots=4, consumers=2)
    session.opened("a", 100, 0.0)
    session.opened("b", 100, 0.0, beside=True)
    requests = session.poll(0.0)
    assert {request.worker for request in requests} == {"b"}
    assert session.view("b").beside
    session.lost("b", 1.0)
    assert {request.worker for request in session.poll(1.0)} == {"a"}


def epochs(*counts: int) -> Iterator[tuple[int, int]]:
    return ((epoch, step) for epoch, count in enumerate(counts) for step in range(count))


def waits_for_epochs(steps: Iterator[tuple[int, int]], **arguments: int) -> Session:
    session = Session(steps, range(8), 1, ["a", "b"], depth=1, max_slots=1, rebalance="epoch", **arguments)
    session.opened("a", 100, 0.0)
    session.lost("b", 0.0)
    return session


def answer_all(session: Session, now: float) -> list[str]:
    """Has one step made; by whom."""
    requests = session.poll(now)
    for request in requests:
        deliver(session, request, now)
    assert session.take() is not None
    return sorted({request.worker for request in requests})


def test_a_worker_that_joins_waits_for_the_next_epoch() -> None:
    session = waits_for_epochs(epochs(3, 2))
    assert answer_all(session, 0.0) == ["a"]
    session.opened("b", 100, 0.0)
    assert session.view("b").state == "joining"
    assert [answer_all(session, 0.0) for _ in range(4)] == [["a"], ["a"], ["a", "b"], ["a", "b"]]
    assert session.view("b").state == "live"
    session.lost("b", 1.0)
    session.joined("c")
    session.left("c")


def test_where_passes_are_one_endless_epoch_it_waits_for_the_next_pass() -> None:
    session = waits_for_epochs(epochs(6), pass_samples=4)
    assert answer_all(session, 0.0) == ["a"]
    session.opened("b", 100, 0.0)
    assert [answer_all(session, 0.0) for _ in range(4)] == [["a"]] * 3 + [["a", "b"]]


def test_a_worker_that_comes_back_waits_for_no_epoch() -> None:
    session = waits_for_epochs(epochs(9))
    session.opened("b", 100, 0.0)
    assert answer_all(session, 0.0) == ["a", "b"]
    session.lost("b", 1.0)
    assert answer_all(session, 1.0) == ["a"]
    session.opened("b", 100, 2.0)
    assert answer_all(session, 2.0) == ["a", "b"]


def test_a_worker_that_joins_waits_for_nothing_if_it_is_the_only_one() -> None:
    session = waits_for_epochs(epochs(9))
    assert answer_all(session, 0.0) == ["a"]
    session.opened("b", 100, 0.0)
    owed = session.poll(0.0)
    session.lost("a", 1.0)
    assert session.view("b").state == "live"
    again = session.poll(1.0)
    assert {request.worker for request in again} == {"b"}
    assert covered(again, 1) == covered(owed, 1)


def test_a_worker_that_joins_and_drains_before_its_epoch_gets_nothing() -> None:
    session = waits_for_epochs(epochs(2, 2))
    assert answer_all(session, 0.0) == ["a"]
    session.opened("b", 100, 0.0)
    session.draining("b", 0.0)
    assert [answer_all(session, 0.0) for _ in range(3)] == [["a"]] * 3


WORKERS = ["a", "b", "c"]


class Feeding(RuleBasedStateMachine):
    """Workers come, go, drain, fall silent, fail and answer in any order; each batch is complete exactly
    once."""

    STEPS = 12
    DEPTH = 3
    SLOTS = range(4, 10)

    def __init__(self) -> None:
        super().__init__()
        self.session = Session(
            places(self.STEPS, 2), self.SLOTS, 2, WORKERS, depth=self.DEPTH, max_slots=2, suspect_after_s=5.0
        )
        self.now = 0.0
        self.limits = dict.fromkeys(WORKERS, 0)
        self.owed: dict[str, dict[int, Request]] = {name: {} for name in WORKERS}
        self.written: dict[int, list[int]] = {}
        self.taken = 0

    def poll(self) -> None:
        for request in self.session.poll(self.now):
            assert self.session.view(request.worker).state == "live"
            assert request.step.number < self.taken + self.DEPTH
            assert request.step == Step(request.step.number, 0, 2 * request.step.number)
            self.owed[request.worker][request.id] = request

    @rule(name=st.sampled_from(WORKERS), limit=st.integers(1, 4))
    def open(self, name: str, limit: int) -> None:
        if self.session.view(name).state == "down":
            self.limits[name] = limit
            self.session.opened(name, limit, self.now)
        self.poll()

    @rule(name=st.sampled_from(WORKERS))
    def lose(self, name: str) -> None:
        self.session.lost(name, self.now)
        self.owed[name].clear()
        self.poll()

    @rule(name=st.sampled_from(WORKERS))
    def drain(self, name: str) -> None:
        self.session.draining(name, self.now)
        self.poll()

    @rule(seconds=st.sampled_from([0.1, 1.0, 6.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.poll()
        wake = self.session.wake_s(self.now)
        assert wake is None or wake > self.now

    @rule(name=st.sampled_from(WORKERS), data=st.data(), fails=st.booleans())
    def answer(self, name: str, data: st.DataObject, fails: bool) -> None:
        if not self.owed[name]:
            return
        request = self.owed[name].pop(data.draw(st.sampled_from(sorted(self.owed[name]))))
        if fails and data.draw(st.integers(0, 3)) == 0:
            self.session.failed(name, request.id, StorageError("disk"), self.now, final=False)
        else:
            self.deliver(name, request)
        self.poll()

    def deliver(self, name: str, request: Request) -> None:
        expected = self.session.expects(name, request.id)
        piece = self.session.delivered(name, request.id, self.now)
        assert piece is expected
        if piece is not None:
            assert piece.step.number >= self.taken
            self.written.setdefault(piece.step.number, []).extend(piece.slots)

    @rule()
    def take(self) -> None:
        step = self.session.take()
        if step is not None:
            assert step.number == self.taken
            assert sorted(self.written.pop(step.number)) == list(self.SLOTS)
            self.taken += 1
        self.poll()

    @invariant()
    def bounded(self) -> None:
        for name in WORKERS:
            assert self.session.view(name).outstanding == len(self.owed[name]) <= max(1, self.limits[name])
        for slots in self.written.values():
            assert len(slots) == len(set(slots))

    def teardown(self) -> None:
        """With all workers well again, the stream comes to its end, or to a failure that all of them had a
        part in."""
        for name in WORKERS:
            self.lose(name)
        for name in WORKERS:
            self.open(name, 4)
        for _ in range(1000):
            for name in WORKERS:
                for number in list(self.owed[name]):
                    self.deliver(name, self.owed[name].pop(number))
            self.poll()
            self.take()
            self.now += 0.1
            if self.session.ended:
                assert self.taken == self.STEPS
                return
            if self.session.failure is not None:
                return
        pytest.fail("the stream did not end")


TestFeeding = Feeding.TestCase
TestFeeding.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
