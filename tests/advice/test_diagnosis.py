"""Which stage is named, by figures; real workers are in tests/service/test_doctor.py."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeder.advice.diagnosis import NOBODY, Finding, Verdict, diagnose, verdicts
from feeder.advice.watched import Consumer, Part, Stage, Work
from feeder.wire.v1 import feeder_pb2 as pb

DID = pb.Counters(images=32_000, chunks=1000, bytes_sent=4_800_000_000)
WORK = Work(address="a:1", seconds=10.0, threads=8, did=DID)


def held(queue: float = 0, read: float = 0, ready: float = 0, make: float = 0) -> tuple[Stage, ...]:
    values = {"queue": queue, "read": read, "ready": ready, "make": make}
    return tuple(Stage(name, held=value) for name, value in values.items())


def did(work: Work, **counters: int) -> Work:
    changed = pb.Counters()
    changed.MergeFrom(work.did)
    for name, value in counters.items():
        setattr(changed, name, value)
    return dataclasses.replace(work, did=changed)


def cached(work: Work, **cache: Any) -> Work:
    return dataclasses.replace(work, cache=pb.CacheInfo(**({"hits": 16_000, "misses": 16_000} | cache)))


def waits(**changes: Any) -> Consumer:
    """A consumer that waits 60 % of its time, with changes of what it is, was given and told."""
    told = {"step_s": 4.0, "wait_s": 6.0, "land_s": 1.0, "images": 32_000, "prefetch": 8, "workers": 1}
    part = {"chunks": 1000, "images_s": 3200.0}
    stream = {"job": "j", "consumer_index": 0, "consumer_count": 1, "peer": "t:9"}
    names, silent = changes.pop("names", ["a:1"]), changes.pop("silent", False)
    arena, output = changes.pop("arena", False), changes.pop("output", "rgb")
    for values in (told, part, stream):
        values.update({name: changes.pop(name) for name in values.keys() & changes.keys()})  # type: ignore[attr-defined]
    return Consumer(
        pb.StreamInfo(spec=pb.Spec(output=output), **stream),
        {name: Part(**part, **changes) for name in names},
        None if silent else pb.ClientReport(**told),
        arena,
    )


def one(consumer: Consumer, *works: Work) -> Finding:
    (finding,) = diagnose({work.address: work for work in works}, [consumer])
    return finding


BUSY = dataclasses.replace(WORK, stages=held(queue=20, read=0.3, ready=3, make=2.8))
HALF_CACHED = cached(BUSY)
READS = dataclasses.replace(WORK, stages=held(queue=20, read=4, ready=0.1, make=0.9))
RESTS = dataclasses.replace(WORK, stages=held(queue=0.1, read=0.1, ready=0.1, make=0.4))
HANGS = did(dataclasses.replace(WORK, stages=held(read=2)), images=0, chunks=0)
"""Nothing leaves the stage that reads."""


@pytest.mark.parametrize(
    ("work", "changes", "limit"),
    [
        (BUSY, {}, "decode"),
        (BUSY, {"wait_s": 0.2}, "trainer"),
        (BUSY, {"wait_s": 0.22}, "decode"),
        (cached(BUSY, full=True), {}, "cache"),
        (HALF_CACHED, {}, "decode"),
        (cached(BUSY, full=True, misses=1000), {}, "decode"),
        (READS, {}, "storage"),
        (HANGS, {"chunks": 0, "still": True}, "storage"),
        (RESTS, {"unsent": 25}, "wire"),
        (RESTS, {"unsent": 25, "land_s": 7.0}, "client"),
        (RESTS, {"unsent": 25, "land_s": 7.0, "workers": 2}, "wire"),
        (RESTS, {"unsent": 25, "arena": True}, "client"),
        # There is one chunk at most, and all the time it is in the socket.
        (RESTS, {"unsent": 0.8, "prefetch": 1}, "wire"),
        # Of these two those are more that are made yet.
        (BUSY, {"unsent": 5}, "decode"),
        # Those are for others: of what the worker makes a hundredth is for this one, or nothing.
        (BUSY, {"unsent": 2, "chunks": 10}, "wire"),
        (READS, {"unsent": 1, "chunks": 0, "still": True}, "wire"),
        (BUSY, {"chunks": 10}, "decode"),
        (RESTS, {"unsent": 25, "paced": 0.9}, "token"),
        (RESTS, {"unsent": 25, "paced": 0.1}, "wire"),
        (BUSY, {"paced": 0.9, "wait_s": 0.0}, "trainer"),
        (RESTS, {}, "wire"),
        (RESTS, {"prefetch": 1}, "client"),
        (RESTS, {"land_s": 7.0}, "client"),
        (RESTS, {"arena": True}, "client"),
        # It waits for a worker that nobody looked at.
        (RESTS, {"prefetch": 1, "workers": 2}, "elsewhere"),
        (BUSY, {"workers": 2}, "decode"),
        # One image at a time does not keep eight threads busy.
        (dataclasses.replace(did(RESTS, chunks=32_000), stages=held(make=0.9)), {"prefetch": 1}, "client"),
        (dataclasses.replace(RESTS, stages=held(make=0.9)), {"prefetch": 1}, "decode"),
        # A client that says nothing of itself.
        (BUSY, {"silent": True}, "decode"),
        (RESTS, {"silent": True, "unsent": 25}, "wire"),
        (RESTS, {"silent": True}, "trainer"),
    ],
)
def test_the_limit(work: Work, changes: dict[str, Any], limit: str) -> None:
    finding = one(waits(**changes), work)
    assert finding.limit == limit
    assert finding.lift
    assert finding.worker == ("" if limit in ("trainer", "elsewhere") else "a:1")
    assert finding.sentence.endswith(".")
    assert "wait" in finding.sentence
    assert "None" not in finding.sentence


def test_as_many_workers_as_the_trainer_lacks() -> None:
    # It takes 2.5 times what one worker gives: 1.5 more, so two.
    assert one(waits(), BUSY).lift[0].startswith("2 more workers like this one")
    assert "2.5 times" in one(waits(), BUSY).lift[0]
    assert one(waits(wait_s=1.0), BUSY).lift[0].startswith("1 more worker like")
    assert one(waits(step_s=0.1), BUSY).lift[0].startswith("more cores or workers")


def test_only_what_would_help_is_proposed() -> None:
    def lift(work: Work, **changes: Any) -> str:
        return "; ".join(one(waits(**changes), work).lift)

    assert "seek points" in lift(BUSY)
    assert "seek points" not in lift(did(BUSY, seek_used=30_000))
    assert "--cache-bytes" in lift(BUSY)
    assert "--cache-bytes" not in lift(HALF_CACHED)
    assert "filling" in lift(HALF_CACHED)
    assert "50 % of the images" in lift(cached(BUSY, full=True))
    assert "prefetch" not in lift(BUSY)
    assert "prefetch" in lift(BUSY, prefetch=1)
    assert "yuv420" in lift(RESTS, unsent=25)
    assert "yuv420" not in lift(RESTS, unsent=25, output="yuv420")
    assert "compression" not in lift(RESTS, unsent=25)
    assert "compression" in lift(did(RESTS, bytes_sent=200_000_000), unsent=25)
    assert "--encoded-cache-bytes" not in lift(READS)
    assert "--encoded-cache-bytes" in lift(did(READS, store_requests=900))
    assert "prefetch" in lift(RESTS, prefetch=1)
    assert "trainer's own process" in lift(RESTS, arena=True)


def test_the_slower_of_unequal_workers_is_named_and_decides() -> None:
    slow = dataclasses.replace(READS, address="b:1")
    others = [dataclasses.replace(RESTS, address=name) for name in ("a:1", "c:1")]
    finding = one(waits(names=["a:1", "b:1", "c:1"]), slow, *others)
    assert (finding.limit, finding.worker, finding.slow) == ("storage", "b:1", ("b:1",))
    assert "look at b:1 first" in finding.lift[0]
    for works in (others, [BUSY, dataclasses.replace(slow, address="c:1")]):
        assert one(waits(names=["a:1", "c:1"]), *works).slow == ()


def test_a_worker_that_gives_nothing_decides() -> None:
    consumer = waits(names=["a:1", "b:1"])
    still = dataclasses.replace(consumer, parts={"a:1": Part(1000), "b:1": Part(still=True)})
    finding = one(still, BUSY, dataclasses.replace(HANGS, address="b:1"))
    assert (finding.limit, finding.worker) == ("storage", "b:1")
    assert finding.slow == ("b:1",)
    assert "nothing came at all" in finding.lift[1]


def test_the_consumer_that_waits_most_counts_for_its_job_and_no_other() -> None:
    both = [waits(consumer_count=2, wait_s=0.0), waits(consumer_index=1, consumer_count=2)]
    found = diagnose({"a:1": BUSY}, [*both, waits(job="k", wait_s=0.0), waits(job="l", unsent=9, chunks=1)])
    assert [(finding.job, finding.limit) for finding in found] == [
        ("j", "decode"),
        ("k", "trainer"),
        ("l", "wire"),
    ]
    assert found[0].consumer.startswith("1 of 2")


def test_jobs_of_one_limit_share_a_verdict_which_the_one_that_waits_most_gives() -> None:
    consumers = [waits(job=job, wait_s=wait_s) for job, wait_s in (("a", 5), ("b", 0), ("c", 9))]
    found = diagnose({"a:1": BUSY}, consumers)
    first, second = verdicts(found)
    assert first == Verdict("decode", ("c", "a"), found[2].sentence)
    assert second == Verdict("trainer", ("b",), found[1].sentence)


def test_nothing_runs() -> None:
    assert diagnose({"a:1": RESTS}, []) == []
    assert verdicts([]) == [Verdict("nobody", (), NOBODY)]


amounts = st.floats(0, 300)


@given(
    stages=st.builds(held, amounts, amounts, amounts, amounts),
    counters=st.fixed_dictionaries({"images": st.integers(0, 100_000), "chunks": st.integers(0, 5000)}),
    hits=st.integers(0, 100_000),
    part=st.fixed_dictionaries(
        {"chunks": st.integers(0, 5000), "unsent": amounts, "paced": st.floats(0, 1), "still": st.booleans()}
    ),
    told=st.none() | st.fixed_dictionaries({"step_s": st.floats(1, 10), "land_s": st.floats(0, 10)}),
    wait_s=st.floats(0, 10),
)
def test_whatever_the_figures_there_is_a_finding_that_says_why(
    stages: tuple[Stage, ...],
    counters: dict[str, int],
    hits: int,
    part: dict[str, Any],
    told: dict[str, float] | None,
    wait_s: float,
) -> None:
    work = cached(did(dataclasses.replace(WORK, stages=stages), **counters), hits=hits, full=True)
    finding = one(waits(**part, **(told or {"silent": True}), wait_s=wait_s), work)
    assert finding.why
    assert finding.lift
    assert [verdict.sentence for verdict in verdicts([finding])] == [finding.sentence]
