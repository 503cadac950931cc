"""Differences between what workers say at two times."""

from __future__ import annotations

import pytest

from feeder.advice.watched import consumers, work
from feeder.wire.v1 import feeder_pb2 as pb


def report(step_s: float, wait_s: float, **more: float) -> pb.ClientReport:
    return pb.ClientReport(step_s=step_s, wait_s=wait_s, workers=2, prefetch=8, **more)  # type: ignore[arg-type]


def stream(told: pb.ClientReport | None, index: int = 0, session: str = "s", job: str = "j") -> pb.StreamInfo:
    info = pb.StreamInfo(job=job, session=session, consumer_index=index, consumer_count=2, peer="t:9", owed=3)
    if told is not None:
        info.report.CopyFrom(told)
    return info


def reply(uptime_s: float, *streams: pb.StreamInfo, **counters: float) -> pb.DescribeReply:
    made = pb.DescribeReply(uptime_s=uptime_s, threads=4, streams=streams)
    for name, value in counters.items():
        setattr(made.counters, name, value)
    return made


def test_a_worker_is_what_it_did_meanwhile() -> None:
    before = reply(100.0, images=1000, chunks=50, bytes_read=10_000)
    after = reply(110.0, stream(None), images=4200, chunks=150, bytes_read=50_000)
    before.stages.add(name="make", total_s=7.0)
    after.stages.add(name="make", total_s=22.0)
    after.stages.add(name="send", total_s=5.0)
    after.cache.CopyFrom(pb.CacheInfo(hits=10, misses=30, bytes=99, full=True))
    seen = work("a:1", before, after)
    assert (seen.seconds, seen.images, seen.chunks, seen.bytes_read, seen.owed) == (
        10.0,
        3200,
        100,
        40_000,
        3,
    )
    assert seen.held == pytest.approx({"make": 1.5, "send": 0.5})
    assert seen.images_per_s == 320.0
    assert (seen.caches, seen.cache_full, seen.cache_hits, seen.cache_misses) == (True, True, 10, 30)
    assert not work("a:1", before, before).caches


def test_of_what_a_client_told_several_workers_the_newest_counts() -> None:
    before = {
        "a:1": reply(1.0, stream(report(10.0, 5.0, images=100))),
        "b:1": reply(1.0, stream(report(11.0, 5.0, images=110))),
    }
    after = {
        "a:1": reply(3.0, stream(report(13.0, 6.0, images=140, ready=2))),
        "b:1": reply(3.0, stream(report(12.0, 6.0, images=120))),
    }
    (seen,) = consumers(before, after)
    assert seen.workers == ("a:1", "b:1")
    assert (seen.step_s, seen.wait_s, seen.images, seen.ready) == (2.0, 1.0, 30, 2)
    assert seen.waiting == pytest.approx(1 / 3)
    assert seen.receivers == 2


def test_a_client_that_came_meanwhile_counts_from_its_beginning() -> None:
    (seen,) = consumers({"a:1": reply(1.0)}, {"a:1": reply(3.0, stream(report(0.5, 1.5)))})
    assert seen.waiting == pytest.approx(0.75)


def test_a_client_that_told_nothing_new_is_not_known() -> None:
    same = stream(report(10.0, 5.0))
    for old, new in ((same, same), (same, stream(None)), (stream(None), stream(None))):
        (seen,) = consumers({"a:1": reply(1.0, old)}, {"a:1": reply(3.0, new)})
        assert seen.step_s is None
        assert seen.waiting is None
        assert seen.landing == 0.0


def test_consumers_come_by_job_and_number() -> None:
    streams = [stream(None, 1), stream(None, 0), stream(None, 0, "0123456789abcdef", "")]
    found = consumers({"a:1": reply(1.0)}, {"a:1": reply(3.0, *streams)})
    assert [(seen.job, seen.index) for seen in found] == [("j", 0), ("j", 1), ("session 0123456789ab", 0)]
