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
        state.open(stream, 10, "job")
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
        state.open(stream, 10, f"job {stream}")
        state.ask(stream, request(0))
    assert (job := state.take({1})) is not None
    assert job.stream == 2
    assert state.take({1}) is None
    assert state.waiting
    assert taken(state) == [(1, 0)]


def test_a_stream_that_does_not_fetch_stops_at_its_share_and_others_go_on() -> None:
    state = scheduler(share=25)
    state.open(1, 10, "job 1")
    state.open(2, 10, "job 2")
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
    state.open(1, 10, "job 1")
    for number in range(8):
        state.ask(1, request(number))
    assert taken(state) == [(1, 0), (1, 1), (1, 2), (1, 3)]
    state.open(2, 10, "job 2")
    for number in range(8):
        state.ask(2, request(number))
    assert taken(state) == [(2, 0), (2, 1)]
    state.close(1)
    assert taken(state) == [(2, 2), (2, 3)]


def test_one_chunk_always_fits() -> None:
    state = scheduler(budget=5, share=5)
    state.open(1, 10, "job 1")
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
    state.open(1, 10, "job 1")
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
    state.open(1, 10, "job 1")
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
    state.open(1, 10, "job 1")
    state.open(2, 10, "job 2")
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
            state.open(stream, 10, f"job {stream}")
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


def given_to_jobs(state: Scheduler, jobs: dict[int, str], images: int) -> dict[str, int]:
    """What jobs got of so many images, where each answer is sent at once and its stream asks again."""
    given = dict.fromkeys(jobs.values(), 0)
    while sum(given.values()) < images:
        job = state.take()
        assert job is not None
        given[jobs[job.stream]] += len(job.request.slots)
        state.answered(job)
        state.sent(job)
        state.ask(job.stream, job.request)
    return given


def test_a_job_of_many_streams_gets_no_more_than_a_job_of_one() -> None:
    state = scheduler()
    jobs = dict.fromkeys(range(8), "eight") | {8: "one"}
    for stream, job in jobs.items():
        state.open(stream, 10, job)
        for _ in range(3):
            state.ask(stream, request(0, slots=4))
    assert given_to_jobs(state, jobs, 800) == {"eight": 400, "one": 400}


def test_large_chunks_get_no_more_images_than_small_ones() -> None:
    state = scheduler()
    jobs = {1: "large", 2: "small", 3: "small too"}
    for stream, slots in ((1, 32), (2, 2), (3, 8)):
        state.open(stream, 10, jobs[stream])
        for _ in range(2):
            state.ask(stream, request(0, slots))
    given = given_to_jobs(state, jobs, 9600)
    assert max(given.values()) - min(given.values()) <= 32


def test_a_rest_earns_nothing() -> None:
    state = scheduler(share=20)
    jobs = {1: "busy", 2: "idle", 3: "stuck"}
    for stream, job in jobs.items():
        state.open(stream, 10, job)
    for stream in (1, 3):
        for _ in range(6):
            state.ask(stream, request(0))
    stuck = [state.take() for _ in range(4)]
    assert [job.stream for job in stuck if job is not None] == [1, 3, 1, 3]
    for job in stuck:
        if job is not None and job.stream == 1:
            state.answered(job)
            state.sent(job)
    given_to_jobs(state, jobs, 100)  # for stream 1 alone: 3 is at its share, 2 asks for nothing
    for job in stuck:
        if job is not None and job.stream == 3:
            state.answered(job)
            state.sent(job)
            state.ask(3, request(0))
    for _ in range(6):
        state.ask(2, request(0))
    given = given_to_jobs(state, jobs, 30)
    assert max(given.values()) - min(given.values()) <= 1


def test_turns_of_streams_that_end_pass_to_the_others() -> None:
    state = scheduler()
    for stream, job in ((1, "a"), (2, "a"), (3, "b")):
        state.open(stream, 10, job)
        state.ask(stream, request(stream))
        state.ask(stream, request(stream))
    state.close(1)
    assert taken(state) == [(2, 2), (3, 3), (2, 2), (3, 3)]
    state.ask(2, request(5))
    state.close(2)
    assert not state.waiting
    state.open(4, 10, "a")
    state.ask(4, request(6))
    assert taken(state) == [(4, 6)]
