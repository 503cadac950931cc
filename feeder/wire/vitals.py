"""How a worker does, by what it said of itself twice: rates, where time goes, who waits for whom."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from feeder.wire.v1 import feeder_pb2 as pb

__all__ = ["Consumer", "Limit", "Stage", "Vitals", "between"]

Which: TypeAlias = Literal[
    "nobody", "asleep", "stuck", "trainers", "worker", "storage", "sending", "elsewhere", "unsaid"
]

BUSY = 0.85
"""Share of their time from which threads count as the limit: between chunks they never are at work."""

WAITING = 0.05
"""Share of its time from which a trainer counts as one that waits."""

TAIL = 0.95
"""Share of chunks that took at most what `Stage.tail_s` says."""


@dataclass(frozen=True, slots=True)
class Limit:
    """What keeps images from coming faster: which it is, and a sentence that says so."""

    which: Which
    sentence: str


@dataclass(frozen=True, slots=True)
class Stage:
    """What chunks spent in one stage meanwhile.

    Attributes:
        chunks: that passed it.
        mean_s: of those; None where none did.
        tail_s: upper bound of what 95 % of them took, inf beyond the last bound; None where none did.
    """

    name: str
    chunks: int
    mean_s: float | None
    tail_s: float | None


@dataclass(frozen=True, slots=True)
class Consumer:
    """A consumer that is served.

    Attributes:
        stream: what it, its spec, its newest request and its client's report are.
        images_s: images a second that this worker answered it with.
        waiting: share of its time that it waited for a batch, in [0, 1]; None where its client says nothing.
        lanes: that are its own.
        done: share of the epoch that its newest request is at, in [0, 1]; None where there is no telling.
        step: number of the step that was asked for last, within the epoch (under "wrap" since the start).
        steps: of an epoch; 0 where the data set is unknown.
    """

    stream: pb.StreamInfo
    images_s: float
    waiting: float | None
    lanes: range
    done: float | None
    step: int
    steps: int


@dataclass(frozen=True, slots=True)
class Vitals:
    """What happened between two descriptions of one worker.

    Attributes:
        seconds: between them.
        images_s: images that were sent, a second.
        sent_s, placed_s, read_s: bytes a second, of messages, into clients' memory, and from shards.
        busy: share of their time that threads which make chunks were at work, in [0, 1]; None: unknown.
        waiting: share of their time that trainers waited, over those that say so; None where none does.
        cached: share of records that were in the cache of decoded images; None without one, or requests.
        stages: in the order in which a chunk passes them.
        consumers: by job, then place.
        limit: what it all says.
    """

    seconds: float
    images_s: float
    sent_s: float
    placed_s: float
    read_s: float
    busy: float | None
    waiting: float | None
    cached: float | None
    stages: tuple[Stage, ...]
    consumers: tuple[Consumer, ...]
    limit: Limit


def between(before: pb.DescribeReply, now: pb.DescribeReply) -> Vitals:
    """What a worker did between two answers to Describe; `before` may be empty: then since its start.

    An answer of another process, one that was restarted, counts as empty.
    """
    if before.worker_id != now.worker_id:
        before = pb.DescribeReply()
    seconds = max(now.uptime_s - before.uptime_s, 1e-3)
    old, new = before.counters, now.counters
    stages = tuple(_stages(before, now))
    consumers = tuple(_consumers(before, now, seconds))
    at_work, idle = new.decode_s - old.decode_s, new.idle_s - old.idle_s
    busy = at_work / (at_work + idle) if at_work + idle > 0 else None
    said = [consumer.waiting for consumer in consumers if consumer.waiting is not None]
    waiting = sum(said) / len(said) if said else None
    images_s = (new.images - old.images) / seconds
    hits = now.cache.hits - before.cache.hits
    asked = hits + now.cache.misses - before.cache.misses
    return Vitals(
        seconds,
        images_s,
        (new.bytes_sent - old.bytes_sent) / seconds,
        (new.bytes_placed - old.bytes_placed) / seconds,
        (new.bytes_read - old.bytes_read) / seconds,
        busy,
        waiting,
        hits / asked if asked > 0 else None,
        stages,
        consumers,
        _limit(now, images_s, busy, waiting, stages),
    )


def _stages(before: pb.DescribeReply, now: pb.DescribeReply) -> Iterator[Stage]:
    earlier = {stage.name: stage for stage in before.stages}
    for stage in now.stages:
        old = earlier.get(stage.name, pb.StageInfo())
        chunks = stage.chunks - old.chunks
        if chunks <= 0:
            yield Stage(stage.name, 0, None, None)
            continue
        buckets = list(stage.buckets)
        for number, count in enumerate(old.buckets[: len(buckets)]):
            buckets[number] -= count
        yield Stage(
            stage.name, chunks, (stage.total_s - old.total_s) / chunks, _tail(list(stage.bounds_s), buckets)
        )


def _tail(bounds_s: list[float], buckets: list[int]) -> float | None:
    wanted = TAIL * sum(buckets)
    if not wanted:
        return None
    below = 0
    for bound_s, count in zip(bounds_s, buckets, strict=False):
        below += count
        if below >= wanted:
            return bound_s
    return math.inf


def _consumers(before: pb.DescribeReply, now: pb.DescribeReply, seconds: float) -> Iterator[Consumer]:
    earlier = {_key(stream): stream for stream in before.streams}
    records = {info.name: info.records for info in now.datasets}
    for stream in sorted(now.streams, key=lambda one: (one.job or one.session, one.consumer_index)):
        old = earlier.get(_key(stream), pb.StreamInfo())
        spec = stream.spec
        each = spec.lanes // max(1, stream.consumer_count)
        total = records.get(spec.dataset, 0)
        per_lane = max(1, spec.global_batch // max(1, spec.lanes))
        whole, rest = divmod(total, max(1, spec.global_batch))
        steps = whole + (rest > 0 and spec.remainder != "drop")
        step = stream.taken // per_lane
        yield Consumer(
            stream,
            (stream.images - old.images) / (seconds if stream.images >= old.images else math.inf),
            _waiting(old.report, stream.report) if stream.HasField("report") else None,
            range(stream.consumer_index * each, (stream.consumer_index + 1) * each),
            (step % steps) / steps if steps else None,
            step,
            steps,
        )


def _key(stream: pb.StreamInfo) -> tuple[str, int, str]:
    return stream.session, stream.consumer_index, stream.peer


def _waiting(old: pb.ClientReport, new: pb.ClientReport) -> float | None:
    waited, worked = new.wait_s - old.wait_s, new.step_s - old.step_s
    return waited / (waited + worked) if waited + worked > 0 else None


def _limit(
    now: pb.DescribeReply,
    images_s: float,
    busy: float | None,
    waiting: float | None,
    stages: tuple[Stage, ...],
) -> Limit:
    if not now.streams and not now.live_streams:
        return Limit("nobody", "Nobody is connected: this worker waits for a trainer.")
    if images_s == 0:
        owed = sum(stream.owed for stream in now.streams)
        if owed:
            return Limit(
                "stuck",
                f"Nothing comes out although requests are open ({owed:,}): storage may not answer, or "
                "trainers do not take what was made.",
            )
        return Limit(
            "asleep", "Nothing was asked for just now: the trainers pause, or have all that they keep ready."
        )
    load = f"its threads are at work {_share(busy)} of the time"
    if waiting is None:
        if busy is not None and busy >= BUSY:
            return Limit("worker", f"This worker is the limit, most likely: {load}.")
        return Limit(
            "unsaid", f"This worker has time to spare: {load}. The trainers do not say whether they wait."
        )
    wait = f"trainers wait {_share(waiting)} of their time"
    if waiting < WAITING:
        return Limit(
            "trainers",
            f"The trainers are the limit, as it should be: they wait {_share(waiting)} of their time. As for "
            f"this worker, {load}.",
        )
    mean_s = {stage.name: stage.mean_s or 0.0 for stage in stages}
    slowest = max(("make", "read", "send"), key=lambda name: mean_s.get(name, 0.0))
    lines_up = mean_s.get("queue", 0.0) + mean_s.get("ready", 0.0) > mean_s.get("make", 0.0)
    if (busy is not None and busy >= BUSY) or (slowest == "make" and lines_up):
        return Limit(
            "worker",
            f"This worker is the limit: {load}, and {wait}. More threads, a larger cache, or one more "
            "worker would help.",
        )
    if slowest == "read":
        return Limit(
            "storage",
            f"Storage is the limit: {wait}, and most of a chunk's time goes into reading. As for the worker, "
            f"{load}.",
        )
    if slowest == "send":
        return Limit(
            "sending",
            f"Sending is the limit: {wait}, and most of a chunk's time passes until the network, or the "
            f"trainer's host, has taken it. As for the worker, {load}.",
        )
    return Limit(
        "elsewhere",
        f"The limit is not here: {wait}, but as for this worker, {load}. Look at the other workers, and "
        "at what the trainers ask for.",
    )


def _share(share: float | None) -> str:
    if share is None:
        return "an unknown part"
    return "under 1 %" if share < 0.01 else f"{100 * share:.0f} %"
