"""Which stage is named, by figures; real workers are in tests/service/test_doctor.py."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeder.advice.diagnosis import Finding, diagnose
from feeder.advice.watched import STAGES, Consumer, Work

WORK = Work(address="a:1", seconds=10.0, threads=8, images=32_000, chunks=1000, bytes_sent=4_800_000_000)
WAITS = Consumer(
    job="j",
    dataset="train",
    index=0,
    count=1,
    peer="t:9",
    workers=("a:1",),
    step_s=4.0,
    wait_s=6.0,
    land_s=1.0,
    images=32_000,
    ready=0,
    prefetch=8,
)


def held(
    queue: float = 0, read: float = 0, ready: float = 0, make: float = 0, send: float = 0
) -> dict[str, float]:
    return dict(zip(STAGES, (queue, read, ready, make, send), strict=True))


def one(consumer: Consumer, *works: Work) -> Finding:
    (finding,) = diagnose({work.address: work for work in works}, [consumer])
    return finding


BUSY = dataclasses.replace(WORK, held=held(queue=20, read=0.3, ready=3, make=2.8, send=0.4))
HALF_CACHED = dataclasses.replace(BUSY, caches=True, cache_hits=16_000, cache_misses=16_000)
READS = dataclasses.replace(WORK, held=held(queue=20, read=4, ready=0.1, make=0.9, send=0.1))
SENDS = dataclasses.replace(WORK, held=held(queue=20, read=0.3, ready=0.2, make=0.7, send=25))
RESTS = dataclasses.replace(WORK, held=held(queue=0.1, read=0.1, ready=0.1, make=0.4, send=0.2))


@pytest.mark.parametrize(
    ("work", "changes", "limit"),
    [
        (BUSY, {}, "decode"),
        (BUSY, {"wait_s": 0.2}, "trainer"),
        (BUSY, {"wait_s": 0.22}, "decode"),
        (dataclasses.replace(HALF_CACHED, cache_full=True), {}, "cache"),
        (HALF_CACHED, {}, "decode"),
        (dataclasses.replace(HALF_CACHED, cache_full=True, cache_misses=1000), {}, "decode"),
        (READS, {}, "storage"),
        # What was asked for hangs: nothing leaves a stage.
        (dataclasses.replace(WORK, images=0, chunks=0, owed=64), {}, "storage"),
        (SENDS, {}, "wire"),
        (SENDS, {"land_s": 7.0}, "client"),
        (SENDS, {"land_s": 7.0, "receivers": 2}, "wire"),
        (SENDS, {"arena": True}, "client"),
        (RESTS, {}, "wire"),
        (RESTS, {"prefetch": 1}, "client"),
        (RESTS, {"land_s": 7.0}, "client"),
        (RESTS, {"arena": True}, "client"),
        # One image at a time does not keep eight threads busy.
        (dataclasses.replace(RESTS, chunks=32_000, held=held(make=0.9)), {"prefetch": 1}, "client"),
        (dataclasses.replace(RESTS, held=held(make=0.9)), {"prefetch": 1}, "decode"),
        # A client that says nothing of itself.
        (BUSY, {"step_s": None}, "decode"),
        (SENDS, {"step_s": None}, "wire"),
        (RESTS, {"step_s": None}, "trainer"),
    ],
)
def test_the_limit(work: Work, changes: dict[str, float], limit: str) -> None:
    finding = one(dataclasses.replace(WAITS, **changes), work)
    assert finding.limit == limit
    assert finding.lift
    assert finding.worker == ("" if limit == "trainer" else "a:1")


def test_as_many_workers_as_the_trainer_lacks() -> None:
    # It takes 2.5 times what one worker gives: 1.5 more, so two.
    assert one(WAITS, BUSY).lift[0].startswith("2 more workers like this one")
    assert "2.5 times" in one(WAITS, BUSY).lift[0]
    assert one(dataclasses.replace(WAITS, wait_s=1.0), BUSY).lift[0].startswith("1 more worker like")
    assert one(dataclasses.replace(WAITS, step_s=0.1), BUSY).lift[0].startswith("more cores or workers")


def test_only_what_would_help_is_proposed() -> None:
    def lift(work: Work, **changes: object) -> str:
        return "; ".join(one(dataclasses.replace(WAITS, **changes), work).lift)

    assert "seek points" in lift(BUSY)
    assert "seek points" not in lift(dataclasses.replace(BUSY, seek_used=30_000))
    assert "--cache-bytes" in lift(BUSY)
    assert "--cache-bytes" not in lift(HALF_CACHED)
    assert "filling" in lift(HALF_CACHED)
    assert "50% of the images" in lift(dataclasses.replace(HALF_CACHED, cache_full=True))
    assert "prefetch" not in lift(BUSY)
    assert "prefetch" in lift(BUSY, prefetch=1)
    assert "yuv420" in lift(SENDS)
    assert "yuv420" not in lift(SENDS, output="yuv420")
    assert "compression" not in lift(SENDS)
    assert "compression" in lift(dataclasses.replace(SENDS, bytes_sent=200_000_000))
    assert "--encoded-cache-bytes" not in lift(READS)
    assert "--encoded-cache-bytes" in lift(dataclasses.replace(READS, store_requests=900))


def test_the_slower_of_unequal_workers_is_named_and_decides() -> None:
    slow = dataclasses.replace(READS, address="b:1")
    others = [dataclasses.replace(RESTS, address=name) for name in ("a:1", "c:1")]
    finding = one(dataclasses.replace(WAITS, workers=("a:1", "b:1", "c:1")), slow, *others)
    assert (finding.limit, finding.worker, finding.slow) == ("storage", "b:1", ("b:1",))
    assert "look at b:1 first" in finding.lift[0]
    for works in (
        others,
        [dataclasses.replace(BUSY, address="a:1"), dataclasses.replace(slow, address="c:1")],
    ):
        assert one(dataclasses.replace(WAITS, workers=("a:1", "c:1")), *works).slow == ()


def test_a_worker_that_gives_nothing_decides() -> None:
    still = Work(address="b:1", seconds=10.0, threads=8, images=0, chunks=0, owed=2)
    finding = one(dataclasses.replace(WAITS, workers=("a:1", "b:1")), BUSY, still)
    assert (finding.limit, finding.worker) == ("storage", "b:1")
    assert finding.slow == ("b:1",)
    assert "nothing moved at all" in finding.lift[1]


def test_the_consumer_that_waits_most_counts_for_its_job_and_no_other() -> None:
    waits = dataclasses.replace(WAITS, index=1, count=2)
    works_on = dataclasses.replace(WAITS, count=2, wait_s=0.0)
    other = dataclasses.replace(works_on, job="k", workers=("b:1",))
    found = diagnose({"a:1": BUSY, "b:1": dataclasses.replace(BUSY, address="b:1")}, [works_on, waits, other])
    assert [(finding.job, finding.limit) for finding in found] == [("j", "decode"), ("k", "trainer")]
    assert found[0].consumer.startswith("1 of 2")


def test_nothing_runs() -> None:
    assert diagnose({"a:1": RESTS}, []) == []


amounts = st.floats(0, 300)


@given(
    stages=st.builds(held, amounts, amounts, amounts, amounts, amounts),
    images=st.integers(0, 100_000),
    chunks=st.integers(0, 5000),
    owed=st.integers(0, 256),
    hits=st.integers(0, 100_000),
    caches=st.booleans(),
    step_s=st.none() | st.floats(0, 10),
    wait_s=st.floats(0, 10),
    land_s=st.floats(0, 10),
)
def test_whatever_the_figures_there_is_a_finding_that_says_why(
    stages: dict[str, float],
    images: int,
    chunks: int,
    owed: int,
    hits: int,
    caches: bool,
    step_s: float | None,
    wait_s: float,
    land_s: float,
) -> None:
    work = dataclasses.replace(
        WORK,
        images=images,
        chunks=chunks,
        owed=owed,
        held=stages,
        caches=caches,
        cache_hits=hits,
        cache_full=True,
    )
    finding = one(dataclasses.replace(WAITS, step_s=step_s, wait_s=wait_s, land_s=land_s), work)
    assert finding.why
    assert finding.lift
