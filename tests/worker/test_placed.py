"""A worker that writes into its client's memory gives what it would have sent."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
import pytest

from feeder.client.arena import Arena, Handover, hand_over
from feeder.errors import ServiceError
from feeder.wire.messages import Chunk, ChunkRequest, Failed, FailureKind, Opened, SlotStatus

SIDE = 32
IMAGE = SIDE * SIDE * 3
BUFFER = 3 * 4096 * 3  # 12 images
DEADLINE_S = 20.0

Make = Callable[..., Any]


@pytest.fixture
def arena() -> Arena:
    return Arena(BUFFER, 1)


@pytest.fixture
def handover(worker: Any, arena: Arena) -> Iterator[Handover]:
    made = hand_over(arena, worker.describe().side_socket)
    yield made
    made.close()


def opened(feed: Any) -> Opened:
    reply = feed.reply()
    assert isinstance(reply, Opened)
    return reply


def ask(feed: Any, number: int, slots: tuple[int, ...], destination: tuple[int, int] | None = None) -> Any:
    feed.send(ChunkRequest(number, 0, 0, slots, destination))
    return feed.reply()


@pytest.mark.parametrize("slots", [(0, 1, 2, 3, 4, 5, 6, 7), (2, 3, 7), (5,)])
@pytest.mark.parametrize("dataset", [{}, {"dataset": "bad"}, {"dataset": "bad", "remainder": "pad"}])
def test_the_same_pixels_in_place(
    channel: grpc.Channel,
    open_feed: Make,
    arena: Arena,
    handover: Handover,
    slots: tuple[int, ...],
    dataset: dict[str, str],
) -> None:
    feed = open_feed(channel, {"arena": handover.token}, **dataset)
    assert opened(feed).arena
    batch = arena.array(1, (12, SIDE, SIDE, 3))
    batch[:] = 77
    for step in range(3):
        feed.send(ChunkRequest(1, 0, 2 * step, slots))
        sent = feed.reply()
        feed.send(ChunkRequest(2, 0, 2 * step, slots, (1, (2 + slots[0]) * IMAGE)))
        placed = feed.reply()
        assert isinstance(sent, Chunk)
        assert isinstance(placed, Chunk)
        assert (sent.placed, placed.placed, placed.pixel_bytes) == (False, True, 0)
        for field in ("records", "labels", "status"):
            assert (getattr(sent, field) == getattr(placed, field)).all()
        assert sent.bad == placed.bad
        pixels = np.frombuffer(sent.pixels, np.uint8).reshape(-1, SIDE, SIDE, 3)
        places = [2 + slot for slot in slots]
        assert (batch[places] == pixels).all()
        assert (batch[[place for place in range(12) if place not in places]] == 77).all()


def test_a_bad_record_and_its_substitute(
    channel: grpc.Channel, open_feed: Make, arena: Arena, handover: Handover
) -> None:
    feed = open_feed(channel, {"arena": handover.token}, dataset="bad")
    opened(feed)
    statuses = set()
    for step in range(3):
        feed.send(ChunkRequest(step, 0, 2 * step, tuple(range(8)), (0, 0)))
        reply = feed.reply()
        statuses |= set(reply.status.tolist())
    assert SlotStatus.SUBSTITUTE in statuses


@pytest.mark.parametrize(
    ("destination", "slots"),
    [((9, 0), (0,)), ((0, BUFFER - IMAGE + 1), (0,)), ((0, 2**64 - 1), (0,)), ((4, BUFFER - IMAGE), (0, 1))],
)
def test_places_beyond_the_arena_are_refused_by_name(
    worker: Any,
    channel: grpc.Channel,
    open_feed: Make,
    handover: Handover,
    destination: tuple[int, int],
    slots: tuple[int, ...],
) -> None:
    feed = open_feed(channel, {"arena": handover.token})
    opened(feed)
    reply = ask(feed, 3, slots, destination)
    assert isinstance(reply, Failed)
    assert (reply.id, reply.kind) == (3, FailureKind.INVALID)
    assert f"bytes at {destination[1]} of buffer {destination[0]}; the arena has 5 buffers" in reply.message
    assert isinstance(ask(feed, 4, (0,), (0, 0)), Chunk)
    assert worker.process.poll() is None


@pytest.mark.parametrize("token", [b"", b"unknown", b"x" * 256])
def test_without_an_arena_a_place_is_ignored(channel: grpc.Channel, open_feed: Make, token: bytes) -> None:
    feed = open_feed(channel, {"arena": token})
    assert not opened(feed).arena
    reply = ask(feed, 1, (0, 1), (7, 123))
    assert isinstance(reply, Chunk)
    assert (reply.placed, reply.pixel_bytes) == (False, 2 * IMAGE)


def test_an_arena_that_ended_is_answered_with_pixels(
    channel: grpc.Channel, open_feed: Make, handover: Handover
) -> None:
    feed = open_feed(channel, {"arena": handover.token})
    assert opened(feed).arena
    handover.cancel()
    assert handover.ended(DEADLINE_S)
    reply = ask(feed, 1, (0, 1), (0, 0))
    assert isinstance(reply, Chunk)
    assert (reply.placed, reply.pixel_bytes) == (False, 2 * IMAGE)


def test_the_end_of_the_call_ends_the_arena(
    worker: Any, channel: grpc.Channel, open_feed: Make, handover: Handover
) -> None:
    feed = open_feed(channel, {"arena": handover.token})
    opened(feed)
    assert not handover.ended()
    feed.close()
    assert handover.ended(DEADLINE_S)


def test_nothing_is_left_of_arenas(worker: Any, channel: grpc.Channel, open_feed: Make, arena: Arena) -> None:
    process = psutil.Process(worker.process.pid)
    path = worker.describe().side_socket

    def mapped() -> int:
        return Path(f"/proc/{process.pid}/maps").read_text().count("feeder-arena")

    def use(*, claimed: bool) -> None:
        handover = hand_over(arena, path)
        if claimed:
            with open_feed(channel, {"arena": handover.token}) as feed:
                opened(feed)
                assert ask(feed, 1, tuple(range(8)), (2, 0)).placed
                assert mapped() == 1
        handover.cancel()
        assert handover.ended(DEADLINE_S)
        handover.close()
        until(lambda: mapped() == 0)

    until(lambda: mapped() == 0)  # those of the tests before
    use(claimed=True)  # gRPC takes what it keeps
    fds = process.num_fds()
    for claimed in (True, False, True, False):
        use(claimed=claimed)
    until(lambda: process.num_fds() <= fds)


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_same_host_can_be_switched_off(start_worker: Make, arena: Arena) -> None:
    worker = start_worker("--arena-bytes", "0")
    assert worker.describe().side_socket == ""
    worker = start_worker("--arena-bytes", "64kB")
    with pytest.raises(ServiceError, match="--arena-bytes is 64000"):
        hand_over(arena, worker.describe().side_socket)


def test_a_folder_for_the_socket_that_cannot_be_used(start_worker: Make, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    worker = None
    try:
        worker = start_worker("--arena-dir", str(tmp_path / "file"))
        assert worker.ready_line == ""
        assert worker.wait()[0] == 2
        assert any("--arena-dir" in line for line in worker.log)
    finally:
        if worker is not None:
            worker.kill()
