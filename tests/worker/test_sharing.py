"""Streams of one spec on a real worker: a chunk is made once, and the same for all."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from feeder.client.arena import Arena, Handover, hand_over
from feeder.wire.messages import Chunk, ChunkRequest, Failed, FailureKind, Opened
from feeder.worker.shared_chunks import OVERHEAD_BYTES

SIDE = 32
STEP_BYTES = 8 * SIDE * SIDE * 3 + OVERHEAD_BYTES
"""Of a step that is kept."""

STEPS = 3
"""Of an epoch: 24 records in batches of 8, of which each of the 4 lanes gives 2."""

DEADLINE_S = 30.0

KEPT = 2 * STEPS * STEP_BYTES

WORKER_FLAGS = ("--share-bytes", str(KEPT))

Make = Callable[..., Any]


class Asking:
    """A stream that asks for whole steps, one after another."""

    def __init__(self, feed: Any) -> None:
        self.feed = feed
        assert isinstance(feed.reply(), Opened)
        self.step = 0

    def ask(self, steps: int = 1) -> None:
        for _ in range(steps):
            epoch, step = divmod(self.step, STEPS)
            self.feed.ask(self.step, range(8), epoch, 2 * step)
            self.step += 1

    def chunks(self, count: int) -> list[Chunk]:
        """The answers to so many requests, by their order."""
        replies = sorted((self.feed.reply() for _ in range(count)), key=lambda reply: reply.id)
        assert all(isinstance(reply, Chunk) for reply in replies), replies
        return replies

    def get(self, steps: int = 1) -> list[Chunk]:
        self.ask(steps)
        return self.chunks(steps)


def assert_same(these: list[Chunk], those: list[Chunk]) -> None:
    assert len(these) == len(those)
    for one, other in zip(these, those, strict=True):
        assert one.id == other.id
        for field in ("records", "labels", "status"):
            assert (getattr(one, field) == getattr(other, field)).all()
        assert one.bad == other.bad
        assert bytes(one.pixels) == bytes(other.pixels)


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def counted(worker: Any) -> tuple[int, int, int, int]:
    """(images, those shared, bytes read from shards, bytes kept)."""
    reply = worker.describe()
    counters = reply.counters
    return counters.images, counters.images_shared, counters.bytes_read, reply.kept_bytes


@pytest.fixture
def alone(channel: grpc.Channel, open_feed: Make) -> list[Chunk]:
    """What a stream gets that shares nothing."""
    with open_feed(channel) as feed:
        return Asking(feed).get(2 * STEPS)


def test_a_stream_alone_keeps_nothing(worker: Any, channel: grpc.Channel, open_feed: Make) -> None:
    before = counted(worker)
    Asking(open_feed(channel)).get(2 * STEPS)
    after = counted(worker)
    assert after[1] == before[1]
    assert after[3] == 0


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("dataset", ["train", "bad"])
def test_two_streams_have_each_chunk_made_once(
    worker: Any, channel: grpc.Channel, open_feed: Make, at_once: bool, dataset: str
) -> None:
    with open_feed(channel, dataset=dataset) as feed:
        alone = Asking(feed).get(2 * STEPS)
    first, second = (Asking(open_feed(channel, {"session": name}, dataset=dataset)) for name in "ab")
    before = counted(worker)
    got: tuple[list[Chunk], list[Chunk]] = ([], [])
    if at_once:
        first.ask(2 * STEPS)
        second.ask(2 * STEPS)
        for mine, stream in zip(got, (first, second), strict=True):
            mine += stream.chunks(2 * STEPS)
    else:
        for ahead, behind in ((0, 1), (1, 0)):
            for _ in range(STEPS):
                for number in (ahead, behind):
                    got[number].extend((first, second)[number].get())
    assert_same(got[0], alone)
    assert_same(got[1], alone)
    second.feed.half_close()
    assert second.feed.replies() == []  # what was sent is counted
    first.feed.half_close()
    assert first.feed.replies() == []
    images, shared, _, kept = (now - then for now, then in zip(counted(worker), before, strict=True))
    assert images == 2 * shared == 2 * 2 * STEPS * 8
    assert kept == 0


def test_what_is_shared_is_not_read_again(
    worker: Any, channel: grpc.Channel, open_feed: Make, alone: list[Chunk]
) -> None:
    ahead, behind = (Asking(open_feed(channel, {"session": name})) for name in "ab")
    assert_same(ahead.get(4), alone[:4])
    assert worker.describe().kept_bytes == 4 * STEP_BYTES
    read = worker.describe().counters.bytes_read
    assert_same(behind.get(4), alone[:4])
    assert worker.describe().counters.bytes_read == read
    assert worker.describe().kept_bytes == 0


def test_one_far_behind_gets_what_it_would_have_got_and_what_is_kept_is_bounded(
    worker: Any, channel: grpc.Channel, open_feed: Make, alone: list[Chunk]
) -> None:
    ahead, behind = (Asking(open_feed(channel, {"session": name})) for name in "ab")
    assert_same(behind.get(1), alone[:1])
    for step in range(10 * STEPS):
        chunk = ahead.get()
        if step < len(alone):
            assert_same(chunk, alone[step : step + 1])
        assert worker.describe().kept_bytes <= KEPT
    assert_same(behind.get(2 * STEPS - 1), alone[1:])


def test_where_one_ends_the_other_goes_on_without_it(
    worker: Any, channel: grpc.Channel, open_feed: Make, alone: list[Chunk]
) -> None:
    ahead, behind = (Asking(open_feed(channel, {"session": name})) for name in "ab")
    got = ahead.get(2)
    assert worker.describe().kept_bytes == 2 * STEP_BYTES
    behind.ask(2 * STEPS)  # in the works as it ends
    behind.feed.close()
    until(lambda: worker.describe().live_streams == 1)
    got += ahead.get(2 * STEPS - 2)
    assert_same(got, alone)
    until(lambda: worker.describe().kept_bytes == 0)


def test_one_asks_the_network_the_other_has_it_written_into_its_memory(
    worker: Any, channel: grpc.Channel, open_feed: Make, alone: list[Chunk]
) -> None:
    arena = Arena(-(-STEP_BYTES // 4096) * 4096, 2)
    handover: Handover = hand_over(arena, worker.describe().side_socket)
    try:
        placed = open_feed(channel, {"session": "a", "arena": handover.token})
        assert placed.reply().arena
        sent = Asking(open_feed(channel, {"session": "b"}))
        batch = arena.array(1, (8, SIDE, SIDE, 3))
        before = worker.describe().counters.images_shared
        for step in range(STEPS):
            batch[:] = 0
            placed_first = step % 2 == 0
            if not placed_first:
                assert_same(sent.get(), alone[step : step + 1])
            placed.send(ChunkRequest(step, 0, 2 * step, tuple(range(8)), (1, 0)))
            assert placed.reply().placed
            assert batch.tobytes() == bytes(alone[step].pixels)
            if placed_first:
                batch[:] = 0  # what a client does to its memory is nobody else's business
                assert_same(sent.get(), alone[step : step + 1])
        sent.feed.half_close()
        assert sent.feed.replies() == []
        until(lambda: worker.describe().counters.images_shared == before + STEPS * 8)
    finally:
        handover.close()


def test_a_chunk_that_cannot_be_made_fails_for_all(
    worker: Any, channel: grpc.Channel, open_feed: Make
) -> None:
    feeds = [open_feed(channel, {"session": name}, dataset="bad", on_bad="fail") for name in "abc"]
    for feed in feeds:
        assert isinstance(feed.reply(), Opened)
    for feed in feeds:
        for step in range(STEPS):
            feed.ask(step, range(8), 0, 2 * step)
    outcomes = []
    for feed in feeds:
        replies = sorted((feed.reply() for _ in range(STEPS)), key=lambda reply: reply.id)
        outcomes.append(
            [(reply.id, reply.kind, reply.message) for reply in replies if isinstance(reply, Failed)]
        )
    assert outcomes[0] == outcomes[1] == outcomes[2]
    assert [kind for _, kind, _ in outcomes[0]] == [FailureKind.BAD_RECORD]


def test_requests_that_are_wrong_fail_alone(worker: Any, channel: grpc.Channel, open_feed: Make) -> None:
    first, second = (Asking(open_feed(channel, {"session": name})) for name in "ab")
    for stream in (first, second):
        stream.feed.ask(7, [3, 1], 0, 0)
        assert stream.feed.reply().kind is FailureKind.INVALID
        stream.feed.ask(8, range(8), 0, 1)  # no step begins there
        assert stream.feed.reply().kind is FailureKind.INVALID
    assert_same(first.get(), second.get())


def test_sharing_can_be_switched_off(start_worker: Make, open_feed: Make) -> None:
    worker = start_worker("--share-bytes", "0")
    with worker.channel() as channel:
        first, second = (Asking(open_feed(channel, {"session": name})) for name in "ab")
        assert_same(first.get(STEPS), second.get(STEPS))
        assert worker.describe().counters.images_shared == 0
        for stream in (first, second):
            stream.feed.close()


def test_a_job_has_no_more_streams_than_it_may(start_worker: Make, open_feed: Make) -> None:
    worker = start_worker("--max-streams-per-job", "2")
    with worker.channel() as channel:
        job = {"job": "j", "consumer_count": 4}
        feeds = [
            open_feed(channel, job | {"session": str(index), "consumer_index": index}) for index in range(3)
        ]
        for feed in feeds[:2]:
            assert isinstance(feed.reply(), Opened)
        with pytest.raises(grpc.RpcError) as caught:
            feeds[2].reply()
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED  # type: ignore[attr-defined]
        assert "stream 3 of job 'j' refused: --max-streams-per-job is 2" in str(caught.value)
        other = open_feed(channel, {"session": "other"})
        assert isinstance(other.reply(), Opened)
        for feed in (*feeds, other):
            feed.close()
