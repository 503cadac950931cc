"""Turns and credit: lists of events, no thread and no clock."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeder.errors import ConfigError
from feeder.wire.messages import ChunkRequest
from feeder.worker.scheduler import Job, Scheduler


def request(number: int, slots: int = 1) -> ChunkRequest:
    return ChunkRequest(number, 0, 0, tuple(range(slots)))


def scheduler(budget: int = 10**9, share: int = 10**9, outstanding: int = 10**6) -> Scheduler:
    return Scheduler(budget, share, outstanding)


def taken(state: Scheduler) -> list[tuple[int, int]]:
    """(stream, request) of all jobs that are there to take."""
    jobs = []
    while (job := state.take()) is not None:
        jobs.append((job.stream, job.request.id))
    return jobs


def test_streams_take_turns() -> None:
    state = scheduler()
    for stream in (1, 2, 3):
        state.open(stream, 10)
    for number in range(3):
        state.ask(1, request(number))
    state.ask(2, request(0))
    state.ask(3, request(0))
    state.ask(3, request(1))
    assert taken(state) == [(1, 0), (2, 0), (3, 0), (1, 1), (3, 1), (1, 2)]
    assert state.take() is None


def test_streams_may_leave_their_turns_to_others_for_a_while() -> None:
    state = scheduler()
    for stream in (1, 2):
        state.open(stream, 10)
        state.ask(stream, request(0))
    assert (job := state.take({1})) is not None
    assert job.stream == 2
    assert state.take({1}) is None
    assert state.waiting
    assert taken(state) == [(1, 0)]


def test_a_stream_that_does_not_fetch_stops_at_its_share_and_others_go_on() -> None:
    state = scheduler(share=25)
    state.open(1, 10)
    state.open(2, 10)
    for number in range(4):
        state.ask(1, request(number))
    first, second = state.take(), state.take()
    assert first is not None
    assert second is not None
    assert state.take() is None  # 20 of 25 bytes, and 10 more would not fit
    state.ask(2, request(0))
    assert taken(state) == [(2, 0)]
    state.sent(first)
    assert taken(state) == [(1, 2)]


def test_the_budget_is_shared_by_the_streams_that_are_open() -> None:
    state = scheduler(budget=40)
    state.open(1, 10)
    for number in range(8):
        state.ask(1, request(number))
    assert taken(state) == [(1, 0), (1, 1), (1, 2), (1, 3)]
    state.open(2, 10)
    for number in range(8):
        state.ask(2, request(number))
    assert taken(state) == [(2, 0), (2, 1)]
    state.close(1)
    assert taken(state) == [(2, 2), (2, 3)]


def test_one_chunk_always_fits() -> None:
    state = scheduler(budget=5, share=5)
    state.open(1, 10)
    state.ask(1, request(0, slots=4))
    state.ask(1, request(1))
    job = state.take()
    assert job is not None
    assert job.nbytes == 40
    assert state.take() is None
    state.sent(job)
    assert taken(state) == [(1, 1)]


def test_one_request_too_many() -> None:
    state = scheduler(outstanding=2)
    state.open(1, 10)
    state.ask(1, request(0))
    state.ask(1, request(1))
    with pytest.raises(ConfigError, match="chunk request 7 is one too many: 2 are unanswered"):
        state.ask(1, request(7))
    job = state.take()
    assert job is not None
    with pytest.raises(ConfigError):
        state.ask(1, request(7))  # taken is not answered
    state.answered(job)
    state.ask(1, request(7))
    assert state.owed(1) == 2


def test_credit_comes_back_before_the_bytes_do() -> None:
    state = scheduler(budget=10, share=10, outstanding=1)
    state.open(1, 10)
    state.ask(1, request(0))
    job = state.take()
    assert job is not None
    state.answered(job)
    state.ask(1, request(1))
    assert state.take() is None
    state.sent(job)
    assert taken(state) == [(1, 1)]


def test_a_stream_that_ends_is_forgotten() -> None:
    state = scheduler()
    state.open(1, 10)
    state.open(2, 10)
    state.ask(1, request(0))
    state.ask(1, request(1))
    state.ask(2, request(0))
    job = state.take()
    assert job == Job(1, request(0), 10)
    state.close(1)
    state.close(1)
    state.answered(job)
    state.sent(job)
    assert taken(state) == [(2, 0)]
    assert state.owed(1) == 0


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["open", "close", "ask", "take", "sent"]), st.integers(0, 3), st.integers(1, 3)
        ),
        max_size=80,
    )
)
def test_any_events_keep_the_bounds(events: list[tuple[str, int, int]]) -> None:
    """Each request is taken once and in order; bytes stay within the budget plus one chunk a stream."""
    state = scheduler(budget=60, share=30, outstanding=5)
    asked: dict[int, list[int]] = {}
    in_works: list[Job] = []
    number = 0
    for event, stream, size in events:
        if event == "open" and stream not in asked:
            state.open(stream, 10)
            asked[stream] = []
        elif event == "close" and stream in asked:
            state.close(stream)
            del asked[stream]
            in_works = [job for job in in_works if job.stream != stream]
        elif event == "ask" and stream in asked:
            number += 1
            try:
                state.ask(stream, request(number, size))
            except ConfigError:
                assert state.owed(stream) == 5
            else:
                asked[stream].append(number)
        elif event == "take":
            job = state.take()
            if job is not None:
                assert job.request.id == asked[job.stream].pop(0)
                in_works.append(job)
            for open_stream in asked:
                mine = [job.nbytes for job in in_works if job.stream == open_stream]
                assert sum(mine) <= 30 or len(mine) == 1
        elif event == "sent" and in_works:
            job = in_works.pop(0)
            state.answered(job)
            state.sent(job)
        for open_stream, pending in asked.items():
            owed = len(pending) + sum(job.stream == open_stream for job in in_works)
            assert state.owed(open_stream) == owed <= 5
