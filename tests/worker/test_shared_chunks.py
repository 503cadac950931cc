"""What is kept for whom: lists of events, no thread and no clock."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeder.batch import MadeChunk
from feeder.spec import StreamSpec
from feeder.wire.messages import ChunkRequest
from feeder.worker.scheduler import Job
from feeder.worker.shared_chunks import OVERHEAD_BYTES, MadeOnce, Share, SharedChunks

SPEC = StreamSpec(dataset="d", global_batch=8, lanes=4)
ALL = range(8)
PIXELS = 10
NBYTES = PIXELS + OVERHEAD_BYTES
"""What is kept of a chunk."""


def job(stream: int, step: int, slots: tuple[int, ...] = (0, 1)) -> Job:
    return Job(stream, ChunkRequest(step, 0, 2 * step, slots), PIXELS)


def chunk() -> MadeOnce:
    empty = np.zeros(0, np.int64)
    return MadeOnce(
        MadeChunk(empty, empty.astype(np.int32), empty.astype(np.uint8), ()), np.zeros(PIXELS, np.uint8)
    )


def shared(*streams: int, budget: int = 100 * NBYTES) -> SharedChunks:
    state = SharedChunks(budget)
    for stream in streams:
        state.open(stream, SPEC, ALL)
    return state


def make(state: SharedChunks, stream: int, step: int) -> list[int]:
    """A stream's chunk is made at once; returns the streams that it is copied for."""
    turn, share = state.begin(job(stream, step))
    assert turn == "make"
    if share is None:
        return []
    return [other.stream for other in state.made(share, chunk())]


def turn_of(state: SharedChunks, stream: int, step: int) -> str:
    return state.begin(job(stream, step))[0]


def test_one_stream_alone_shares_nothing() -> None:
    state = shared(1)
    for step in range(3):
        assert state.begin(job(1, step)) == ("make", None)
    assert state.nbytes == 0


def test_what_another_is_to_come_to_is_kept_until_it_has_it() -> None:
    state = shared(1, 2, 3)
    assert make(state, 1, 0) == [1]
    assert state.nbytes == NBYTES
    assert turn_of(state, 2, 0) == "copy"
    assert state.nbytes == NBYTES
    assert turn_of(state, 3, 0) == "copy"
    assert state.nbytes == 0


def test_who_asks_while_it_is_made_waits_for_it() -> None:
    state = shared(1, 2)
    turn, share = state.begin(job(1, 0))
    assert turn == "make"
    assert state.begin(job(2, 0)) == ("wait", share)
    assert share is not None
    assert state.made(share, chunk()) == [job(1, 0), job(2, 0)]
    assert state.nbytes == 0  # nobody else is to come


def test_streams_of_another_spec_or_of_other_slots_share_nothing() -> None:
    state = SharedChunks(100 * NBYTES)
    state.open(1, SPEC, range(4))
    state.open(2, SPEC, range(4, 8))
    state.open(3, StreamSpec(dataset="d", global_batch=8, lanes=4, seed=1), ALL)
    assert state.begin(job(1, 0)) == ("make", None)
    state.open(4, SPEC, ALL)
    turn, share = state.begin(job(1, 1))
    assert turn == "make"
    assert share is not None
    assert share.wanting == {4}


def test_who_is_ahead_keeps_nothing_for_those_behind_it_made_and_gets_nothing_kept() -> None:
    state = shared(1, 2)
    make(state, 1, 5)  # now 2 may come to it, who has not begun
    assert state.nbytes == NBYTES
    assert state.begin(job(2, 2)) == ("make", None)  # 1 is past it
    assert turn_of(state, 2, 5) == "copy"
    assert state.nbytes == 0


def test_the_oldest_go_where_there_is_no_room_and_then_nothing_is_kept_for_who_missed_them() -> None:
    state = shared(1, 2, budget=3 * NBYTES)
    assert turn_of(state, 2, 0) == "make"
    for step in range(1, 5):
        assert make(state, 1, step) == [1]
    assert state.nbytes == 3 * NBYTES  # 1 was dropped
    assert state.begin(job(1, 5)) == ("make", None)
    assert turn_of(state, 2, 1) == "make"
    assert [turn_of(state, 2, step) for step in (2, 3, 4)] == ["copy"] * 3
    assert make(state, 1, 6) == [1]  # 2 is past what it missed
    assert state.nbytes == NBYTES


def test_who_never_comes_costs_those_that_keep_pace_nothing() -> None:
    state = shared(1, 2, 3, budget=2 * NBYTES)
    assert turn_of(state, 3, 0) == "make"
    for step in range(1, 50):
        assert make(state, 1, step) == [1]
        assert turn_of(state, 2, step) == "copy"
        assert state.nbytes <= 2 * NBYTES


def test_a_chunk_larger_than_the_budget_is_not_shared() -> None:
    state = shared(1, 2, budget=NBYTES - 1)
    assert state.begin(job(1, 0)) == ("make", None)
    off = shared(1, 2, budget=0)
    assert off.begin(job(1, 0)) == ("make", None)


def test_what_is_kept_for_one_that_ends_is_dropped() -> None:
    state = shared(1, 2, 3)
    make(state, 1, 0)
    state.close(3)
    assert state.nbytes == NBYTES
    state.close(2)
    state.close(2)
    assert state.nbytes == 0
    assert state.begin(job(1, 1)) == ("make", None)
    assert state.begin(job(2, 1)) == ("make", None)  # its request was under way when it ended


def test_a_chunk_in_the_making_is_made_for_those_that_wait_although_who_asked_first_is_gone() -> None:
    state = shared(1, 2)
    _, share = state.begin(job(1, 0))
    assert share is not None
    assert turn_of(state, 2, 0) == "wait"
    state.close(1)
    assert not state.abandon(share)
    assert [other.stream for other in state.made(share, chunk())] == [1, 2]
    assert not state.abandon(share)  # it is there


def test_a_chunk_that_nobody_waits_for_is_not_waited_for() -> None:
    state = shared(1, 2, 3)
    _, share = state.begin(job(1, 0))
    assert share is not None
    state.close(1)
    assert state.abandon(share)
    turn, other = state.begin(job(2, 0))
    assert turn == "make"
    assert other is not share
    assert state.abandon(share)
    assert turn_of(state, 3, 0) == "wait"


def test_a_chunk_that_fails_fails_for_those_that_wait_and_is_tried_anew() -> None:
    state = shared(1, 2, 3)
    _, share = state.begin(job(1, 0))
    assert share is not None
    assert turn_of(state, 2, 0) == "wait"
    assert state.failed(share) == [job(1, 0), job(2, 0)]
    assert state.failed(share) == []
    assert turn_of(state, 3, 0) == "make"


def test_another_budget_holds_at_once() -> None:
    state = shared(1, 2)
    for step in range(4):
        make(state, 1, step)
    assert state.nbytes == 4 * NBYTES
    state.resize(2 * NBYTES)
    assert state.nbytes == 2 * NBYTES
    assert [turn_of(state, 2, step) for step in range(4)] == ["make", "make", "copy", "copy"]
    state.resize(0)
    assert state.begin(job(1, 4)) == ("make", None)
    state.resize(NBYTES)
    make(state, 1, 5)
    assert turn_of(state, 2, 5) == "copy"


@pytest.mark.parametrize("budget", [0, NBYTES, 4 * NBYTES])
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["open", "close", "begin", "made", "failed", "resize"]),
            st.integers(0, 3),
            st.integers(0, 5),
        ),
        max_size=120,
    )
)
def test_any_events_keep_the_bound_and_answer_each_job_once(
    budget: int, events: list[tuple[str, int, int]]
) -> None:
    state = SharedChunks(budget)
    live: set[int] = set()
    making: list[Share] = []
    waiting: list[Job] = []
    for event, stream, step in events:
        if event == "open" and stream not in live:
            state.open(stream, SPEC, ALL)
            live.add(stream)
        elif event == "close":
            state.close(stream)
            live.discard(stream)
        elif event == "begin" and stream in live:
            asked = job(stream, step)
            turn, share = state.begin(asked)
            if turn == "make" and share is not None:
                making.append(share)
                waiting.append(asked)
            elif turn == "wait":
                assert share in making
                waiting.append(asked)
            elif turn == "copy":
                assert share is not None
                assert share.chunk is not None
        elif event in ("made", "failed") and making:
            share = making.pop(0)
            for answered in state.made(share, chunk()) if event == "made" else state.failed(share):
                waiting.remove(answered)
        elif event == "resize":
            budget = step * NBYTES
            state.resize(budget)
        assert state.nbytes <= budget
    while making:
        for answered in state.failed(making.pop()):
            waiting.remove(answered)
    assert waiting == []
    for stream in range(4):
        state.close(stream)
    assert state.nbytes == 0
    assert not state._groups
