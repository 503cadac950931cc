"""Differences between what workers say at two times."""

from __future__ import annotations

from typing import Any

import pytest

from feeder.advice.watched import Consumer, consumers, waiting, work
from feeder.wire.v1 import feeder_pb2 as pb

BOUNDS_S = [0.01, 0.1, 1.0]
SPEC = pb.Spec(dataset="d", global_batch=20, lanes=10, remainder="drop")


def report(step_s: float, wait_s: float, **more: Any) -> pb.ClientReport:
    return pb.ClientReport(step_s=step_s, wait_s=wait_s, workers=2, prefetch=8, **more)


def stream(told: pb.ClientReport | None = None, index: int = 0, **more: Any) -> pb.StreamInfo:
    values = {"job": "j", "session": "s", "consumer_count": 2, "peer": "t:9", "spec": SPEC} | more
    return pb.StreamInfo(consumer_index=index, report=told, **values)


def stage(name: str, total_s: float, buckets: list[int], here: int = 0) -> pb.StageInfo:
    chunks = sum(buckets)
    return pb.StageInfo(
        name=name, chunks=chunks, total_s=total_s, bounds_s=BOUNDS_S, buckets=buckets, here=here
    )


def reply(uptime_s: float, *streams: pb.StreamInfo, worker: str = "w", **counters: Any) -> pb.DescribeReply:
    return pb.DescribeReply(
        worker_id=worker,
        uptime_s=uptime_s,
        threads=4,
        streams=streams,
        counters=pb.Counters(**counters),
        datasets=[pb.DatasetInfo(name="d", records=100)],
    )


def one(before: pb.DescribeReply, now: pb.DescribeReply) -> Consumer:
    (seen,) = consumers({"a:1": (before, now)})
    return seen


def test_a_worker_is_what_it_did_meanwhile() -> None:
    before = reply(100.0, images=1000, chunks=50, bytes_read=10_000, decode_s=1, idle_s=9)
    now = reply(110.0, images=4200, chunks=150, bytes_read=50_000, decode_s=4, idle_s=10)
    assert work("a:1", (before, now)).hits is None
    before.cache.CopyFrom(pb.CacheInfo(hits=30, misses=50, bytes=7))
    now.cache.CopyFrom(pb.CacheInfo(hits=40, misses=80, bytes=99, full=True))
    seen = work("a:1", (before, now))
    assert (seen.seconds, seen.images_s, seen.busy, seen.hits) == (10.0, 320.0, 0.75, 0.25)
    assert (seen.did.chunks, seen.did.bytes_read) == (100, 40_000)
    assert seen.cache is not None
    assert (seen.cache.full, seen.cache.bytes) == (True, 99)


def test_a_worker_that_was_restarted_counts_from_its_start() -> None:
    seen = work("a:1", (reply(1000, worker="old", images=10_000), reply(5, images=50)))
    assert (seen.seconds, seen.images_s, seen.busy) == (5, 10, None)


def test_sums_that_fell_with_a_data_set_are_nothing() -> None:
    assert work("a:1", (reply(1, bytes_read=10), reply(2, bytes_read=4))).did.bytes_read == 0


def test_stages_are_of_the_chunks_that_left_them_meanwhile() -> None:
    before, now = reply(100.0), reply(110.0)
    before.stages.extend([stage("read", 1.0, [100, 0, 0, 0]), stage("send", 0, [0] * 4)])
    now.stages.extend([stage("read", 3.0, [100, 19, 1, 0], here=7), stage("send", 0, [0] * 4, here=5)])
    read, send = work("a:1", (before, now)).stages
    assert (read.chunks, read.mean_s, read.tail_s) == (20, pytest.approx(0.1), 0.1)
    assert read.held == pytest.approx(0.2)
    # Nothing left it: what is in it is all that one knows.
    assert (send.chunks, send.mean_s, send.tail_s, send.held) == (0, None, None, 5)
    now.stages[0].buckets[:] = [100, 10, 0, 10]
    assert work("a:1", (before, now)).stages[0].tail_s is None


def test_a_consumer_is_what_each_worker_did_for_it() -> None:
    before = reply(10, stream(report(1, 1), 1, taken=2, images=40, chunks=2, unsent_s=3.0))
    now = reply(12, stream(report(2, 4), 1, taken=4, images=80, chunks=4, unsent_s=13.0, paced_s=1.0))
    seen = one(before, now)
    assert (seen.lanes, seen.waiting, seen.images_s) == (range(5, 10), 0.75, 20)
    assert (seen.step, seen.steps, seen.done) == (2, 5, 0.4)
    part = seen.parts["a:1"]
    assert (part.chunks, part.unsent, part.paced, part.still) == (2, 5.0, 0.5, False)
    # One that connected anew has a stream of its own, and for a while the old one, too.
    now.streams.insert(0, stream(report(2, 4), 1, peer="t:10", images=6, age_s=1, owed=1))
    now.streams[1].age_s = 30
    seen = one(before, now)
    assert (seen.images_s, seen.waiting, seen.parts["a:1"].still) == (3, 0.75, True)


def test_one_that_connected_anew_from_the_same_place_counts_from_its_beginning() -> None:
    """Over a Unix socket, where no number of a port tells the two apart."""
    old = stream(report(1, 1), peer="unix:", images=4000, chunks=400, unsent_s=9.0, age_s=100)
    new = stream(report(2, 4), peer="unix:", images=80, chunks=8, unsent_s=1.0, age_s=3)
    seen = one(reply(10, old), reply(14, new))
    part = seen.parts["a:1"]
    assert (part.chunks, part.images_s, part.unsent) == (8, 20, 0.25)
    # While both are there, each is compared with itself.
    later = stream(report(3, 5), peer="unix:", images=160, chunks=16, unsent_s=1.0, age_s=7)
    assert one(reply(14, old, new), reply(18, later)).images_s == 20


def test_of_what_a_client_told_several_workers_the_newest_counts() -> None:
    seen = consumers(
        {
            "a:1": (
                reply(1.0, stream(report(10.0, 5.0, images=100))),
                reply(3.0, stream(report(13.0, 6.0, images=140, ready=2), arena=True)),
            ),
            "b:1": (
                reply(1.0, stream(report(11.0, 5.0, images=110))),
                reply(3.0, stream(report(12.0, 6.0, images=120))),
            ),
        }
    )
    assert [(list(one.parts), one.arena) for one in seen] == [(["a:1", "b:1"], False)]
    told = seen[0].told
    assert told is not None
    assert (told.step_s, told.wait_s, told.images, told.ready, told.workers) == (2.0, 1.0, 30, 2, 2)
    assert seen[0].waiting == pytest.approx(1 / 3)


def test_a_client_that_came_meanwhile_counts_from_its_beginning() -> None:
    assert one(reply(1.0), reply(3.0, stream(report(0.5, 1.5)))).waiting == pytest.approx(0.75)


def test_a_client_that_told_nothing_new_is_not_known() -> None:
    same = stream(report(10.0, 5.0))
    for old, new in ((same, same), (same, stream()), (stream(), stream())):
        seen = one(reply(1.0, old), reply(3.0, new))
        assert (seen.told, seen.waiting, seen.landing) == (None, None, 0.0)
        assert waiting([seen]) is None


def test_consumers_come_by_job_and_number() -> None:
    streams = [stream(index=1), stream(report(4, 1)), stream(session="0123456789abcdef", job="")]
    seen = consumers({"a:1": (reply(1.0), reply(3.0, *streams))})
    assert [(one.job, one.stream.consumer_index) for one in seen] == [
        ("j", 0),
        ("j", 1),
        ("session 01234567", 0),
    ]
    assert waiting(seen) == pytest.approx(0.2)  # of the one that says so
