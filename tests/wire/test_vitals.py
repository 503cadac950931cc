"""What two answers to Describe say together: rates, shares, tails, and which is the limit."""

from __future__ import annotations

import math
from typing import Any

import pytest

from feeder.wire.v1 import feeder_pb2 as pb
from feeder.wire.vitals import between

BOUNDS_S = [0.01, 0.1, 1.0]


def reply(
    uptime_s: float = 10.0,
    worker: str = "w",
    stages: dict[str, tuple[float, list[int]]] | None = None,
    streams: list[pb.StreamInfo] | None = None,
    **counters: Any,
) -> pb.DescribeReply:
    return pb.DescribeReply(
        worker_id=worker,
        uptime_s=uptime_s,
        counters=pb.Counters(**counters),
        datasets=[pb.DatasetInfo(name="d", records=100)],
        stages=[
            pb.StageInfo(name=name, chunks=sum(counts), total_s=total_s, bounds_s=BOUNDS_S, buckets=counts)
            for name, (total_s, counts) in (stages or {}).items()
        ],
        streams=streams or [],
        live_streams=len(streams or []),
    )


def stream(wait_s: float | None = None, step_s: float = 0.0, index: int = 0, **values: Any) -> pb.StreamInfo:
    values.setdefault("consumer_count", 2)
    made = pb.StreamInfo(session="s", consumer_index=index, **values)
    made.spec.MergeFrom(pb.Spec(dataset="d", global_batch=20, lanes=10, remainder="drop"))
    if wait_s is not None:
        made.report.MergeFrom(pb.ClientReport(wait_s=wait_s, step_s=step_s))
    return made


def test_rates_are_of_the_time_between() -> None:
    seen = between(
        reply(10, images=100, bytes_sent=1000, decode_s=1, idle_s=9),
        reply(14, images=300, bytes_sent=9000, decode_s=4, idle_s=10),
    )
    assert (seen.seconds, seen.images_s, seen.sent_s) == (4, 50, 2000)
    assert seen.busy == pytest.approx(0.75)


def test_a_worker_that_was_restarted_counts_from_its_start() -> None:
    seen = between(reply(1000, "old", images=10_000), reply(5, "new", images=50))
    assert (seen.seconds, seen.images_s) == (5, 10)


def test_stages_are_of_the_chunks_between() -> None:
    before = reply(stages={"read": (1.0, [100, 0, 0, 0]), "make": (0, [0, 0, 0, 0])})
    now = reply(12, stages={"read": (3.0, [100, 19, 1, 0]), "make": (0, [0, 0, 0, 0])})
    read, made = between(before, now).stages
    assert (read.chunks, read.mean_s, read.tail_s) == (20, pytest.approx(0.1), 0.1)
    assert (made.chunks, made.mean_s, made.tail_s) == (0, None, None)
    now.stages[0].buckets[:] = [100, 10, 0, 10]
    assert between(before, now).stages[0].tail_s == math.inf


def test_consumers_have_lanes_and_a_place_in_the_epoch() -> None:
    before = reply(streams=[stream(1.0, 1.0, 1, taken=2, images=40)])
    now = reply(12, streams=[stream(2.0, 4.0, 1, taken=4, images=80), stream(index=0)])
    first, second = between(before, now).consumers
    assert (first.lanes, first.waiting) == (range(5), None)
    assert (second.lanes, second.waiting, second.images_s) == (range(5, 10), 0.25, 20)
    assert (second.step, second.steps, second.done) == (2, 5, 0.4)


SLOW_READ = {"read": (9.0, [0, 0, 9, 0]), "make": (1.0, [0, 9, 0, 0])}
SLOW_SEND = {"send": (9.0, [0, 0, 9, 0]), "make": (1.0, [0, 9, 0, 0])}
LONG_QUEUE = {"queue": (90.0, [0, 0, 0, 9]), "make": (1.0, [0, 9, 0, 0])}
SHORT_QUEUE = {"queue": (0.01, [9, 0, 0, 0]), "make": (1.0, [0, 9, 0, 0])}


@pytest.mark.parametrize(
    ("which", "images", "busy", "streams", "stages"),
    [
        ("nobody", 0, 0, [], {}),
        ("asleep", 0, 0, [stream()], {}),
        ("stuck", 0, 0, [stream(owed=3)], {}),
        ("trainers", 9, 5, [stream(0.1, 9.9)], {}),
        ("trainers", 9, 9.9, [stream(0.1, 9.9)], {}),
        ("worker", 9, 9.9, [stream(5, 5)], SLOW_READ),
        ("worker", 9, 9.9, [stream()], {}),
        ("unsaid", 9, 1, [stream()], {}),
        ("storage", 9, 1, [stream(5, 5)], SLOW_READ),
        ("sending", 9, 1, [stream(5, 5)], SLOW_SEND),
        ("worker", 9, 7, [stream(5, 5)], LONG_QUEUE),
        ("elsewhere", 9, 1, [stream(5, 5)], SHORT_QUEUE),
    ],
)
def test_the_limit_is_named(which: str, images: int, busy: float, streams: Any, stages: Any) -> None:
    now = reply(10, stages=stages, streams=streams, images=images, decode_s=busy, idle_s=10 - busy)
    limit = between(pb.DescribeReply(), now).limit
    assert limit.which == which
    assert limit.sentence.endswith(".")
    assert "None" not in limit.sentence
