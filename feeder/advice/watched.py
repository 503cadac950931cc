"""What a worker and its consumers did between two looks: the differences of two answers to Describe."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from feeder.wire.v1 import feeder_pb2 as pb

__all__ = ["Consumer", "Look", "Part", "Stage", "Work", "consumers", "waiting", "work"]

Look: TypeAlias = tuple[pb.DescribeReply, pb.DescribeReply]
"""What a worker said before, and now. Where it is another process now, or `before` is empty, all that it did
since its start counts."""

_Sums = TypeVar("_Sums", pb.Counters, pb.CacheInfo, pb.ClientReport)

TAIL = 0.95
"""Share of chunks that took at most what `Stage.tail_s` says."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Chunks in one stage of a worker.

    Attributes:
        chunks: that left it.
        held: that were in it at a time, on average: the seconds that those which left spent there over the
            seconds between the looks (Little's law); where none left, those that are in it now.
        mean_s: of those that left; None where none did.
        tail_s: upper bound of what 95 % of them took; None where none left, or beyond the last bound.
    """

    name: str
    chunks: int = 0
    held: float = 0.0
    mean_s: float | None = None
    tail_s: float | None = None


@dataclass(frozen=True, slots=True)
class Work:
    """One worker between two looks.

    Attributes:
        address: of it, as it was given.
        seconds: between the looks.
        threads: that decode.
        did: its counters, as differences.
        stages: in the order in which a chunk passes them.
        cache: of decoded images; `hits` and `misses` are differences; None where it has none.
        encoded: the same of encoded records.
    """

    address: str
    seconds: float
    threads: int
    did: pb.Counters = field(default_factory=pb.Counters)
    stages: tuple[Stage, ...] = ()
    cache: pb.CacheInfo | None = None
    encoded: pb.CacheInfo | None = None

    @property
    def images_s(self) -> float:
        """Images a second that it delivered."""
        return self.did.images / self.seconds

    def held(self, *names: str) -> float:
        """Chunks that were in these stages at a time."""
        return sum(stage.held for stage in self.stages if stage.name in names)

    @property
    def making(self) -> float:
        """Chunks that are being made at a time; those of less images than threads count in part, since they
        cannot keep all threads busy."""
        spread = self.did.images / self.did.chunks / max(1, self.threads) if self.did.chunks else 1.0
        return self.held("make") * min(1.0, spread)

    @property
    def busy(self) -> float | None:
        """Share of their time that threads which make chunks were at work, in [0, 1]; None: unknown."""
        spent_s = self.did.decode_s + self.did.idle_s
        return self.did.decode_s / spent_s if spent_s > 0 else None

    @property
    def hits(self) -> float | None:
        """Share of records that were in the cache, in [0, 1]; None: it has none, or was not asked."""
        return _hits(self.cache)

    @property
    def encoded_hits(self) -> float | None:
        """The same of the cache of encoded records."""
        return _hits(self.encoded)


@dataclass(frozen=True, slots=True)
class Part:
    """What one worker did for one consumer.

    Attributes:
        chunks: that it answered.
        images_s: images in them, a second.
        unsent: chunks that were made and not yet in the socket at a time, on average.
        paced: share of the time that sending waited for the rate of the client's token.
        still: it owes chunks and gave none.
    """

    chunks: int = 0
    images_s: float = 0.0
    unsent: float = 0.0
    paced: float = 0.0
    still: bool = False


@dataclass(frozen=True, slots=True)
class Consumer:
    """A consumer that is served, by all of the workers that were looked at.

    Attributes:
        stream: what it is, and its newest request, as the first of these workers has them.
        parts: by address of those workers that serve it.
        told: what its client said of itself last, with step_s, wait_s, land_s and images as differences, by
            its own clock; None where it said nothing new.
        arena: whether all workers write into its memory.
        records: of its data set; 0: unknown.
    """

    stream: pb.StreamInfo
    parts: Mapping[str, Part]
    told: pb.ClientReport | None = None
    arena: bool = False
    records: int = 0

    @property
    def job(self) -> str:
        """Its name, or the session where it has none."""
        return self.stream.job or f"session {self.stream.session[:8]}"

    @property
    def images_s(self) -> float:
        """Images a second that it was answered with."""
        return sum(part.images_s for part in self.parts.values())

    @property
    def waiting(self) -> float | None:
        """Share of its time that it waited for input, in [0, 1]; None: not known."""
        return None if self.told is None else self.told.wait_s / (self.told.step_s + self.told.wait_s)

    @property
    def landing(self) -> float:
        """Share of its time that a thread which receives was busy, in [0, 1] on average."""
        if self.told is None:
            return 0.0
        return self.told.land_s / (self.told.step_s + self.told.wait_s) / max(1, self.told.workers)

    @property
    def lanes(self) -> range:
        """That are its own."""
        each = self.stream.spec.lanes // max(1, self.stream.consumer_count)
        return range(self.stream.consumer_index * each, (self.stream.consumer_index + 1) * each)

    @property
    def step(self) -> int:
        """Number of the step that was asked for last, within the epoch (under "wrap" since the start)."""
        spec = self.stream.spec
        return self.stream.taken // max(1, spec.global_batch // max(1, spec.lanes))

    @property
    def steps(self) -> int:
        """Of an epoch; 0 where the data set is unknown."""
        whole, rest = divmod(self.records, max(1, self.stream.spec.global_batch))
        return whole + (rest > 0 and self.stream.spec.remainder != "drop")

    @property
    def done(self) -> float | None:
        """Share of the epoch that its newest request is at, in [0, 1]; None where there is no telling."""
        return (self.step % self.steps) / self.steps if self.steps else None


def work(address: str, look: Look) -> Work:
    """What one worker did."""
    before, now, seconds = _between(look)
    earlier = {stage.name: stage for stage in before.stages}
    return Work(
        address,
        seconds,
        now.threads,
        _less(now.counters, before.counters, *pb.Counters.DESCRIPTOR.fields_by_name),
        tuple(_stage(earlier.get(stage.name, pb.StageInfo()), stage, seconds) for stage in now.stages),
        _less(now.cache, before.cache, "hits", "misses") if now.HasField("cache") else None,
        _less(now.encoded_cache, before.encoded_cache, "hits", "misses")
        if now.HasField("encoded_cache")
        else None,
    )


def consumers(looks: Mapping[str, Look]) -> list[Consumer]:
    """The consumers that are served now, by job and number.

    A client tells each of its workers the same of itself; of what they were told, the newest counts.

    Args:
        looks: by address.
    """
    found: dict[tuple[str, int], dict[str, pb.StreamInfo]] = {}
    for address, (_, now) in looks.items():
        # One that reconnects has two streams for a while: the younger counts.
        for stream in sorted(now.streams, key=lambda stream: -stream.age_s):
            found.setdefault(_key(stream), {})[address] = stream
    return sorted(
        (_consumer(streams, looks) for streams in found.values()),
        key=lambda consumer: (consumer.job, consumer.stream.consumer_index),
    )


def waiting(those: Sequence[Consumer]) -> float | None:
    """Share of their time that they waited, over those that say so; None where none does."""
    said = [consumer.waiting for consumer in those if consumer.waiting is not None]
    return sum(said) / len(said) if said else None


def _hits(cache: pb.CacheInfo | None) -> float | None:
    asked = 0 if cache is None else cache.hits + cache.misses
    return cache.hits / asked if cache is not None and asked else None


def _between(look: Look) -> tuple[pb.DescribeReply, pb.DescribeReply, float]:
    before, now = look
    if before.worker_id != now.worker_id:
        before = pb.DescribeReply()
    return before, now, max(now.uptime_s - before.uptime_s, 1e-3)


def _less(now: _Sums, before: _Sums, *names: str) -> _Sums:
    """`now`, of which these fields are what came since; nothing where they fell with a data set that went."""
    made = now.__class__()
    made.CopyFrom(now)
    for name in names:
        setattr(made, name, max(0, getattr(now, name) - getattr(before, name)))
    return made


def _stage(before: pb.StageInfo, now: pb.StageInfo, seconds: float) -> Stage:
    chunks, total_s = now.chunks - before.chunks, now.total_s - before.total_s
    if chunks <= 0:
        return Stage(now.name, held=now.here)
    old = list(before.buckets) or [0] * len(now.buckets)
    buckets = [new - count for new, count in zip(now.buckets, old, strict=True)]
    below, tail_s = 0, None
    for bound_s, count in zip(now.bounds_s, buckets, strict=False):
        below += count
        if below >= TAIL * chunks:
            tail_s = bound_s
            break
    return Stage(now.name, chunks, total_s / seconds, total_s / chunks, tail_s)


def _key(stream: pb.StreamInfo) -> tuple[str, int]:
    return stream.session, stream.consumer_index


def _consumer(streams: Mapping[str, pb.StreamInfo], looks: Mapping[str, Look]) -> Consumer:
    address, stream = next(iter(streams.items()))
    datasets = looks[address][1].datasets
    return Consumer(
        stream,
        {address: _part(stream, looks[address]) for address, stream in streams.items()},
        _told(streams, looks),
        all(stream.arena for stream in streams.values()),
        next((info.records for info in datasets if info.name == stream.spec.dataset), 0),
    )


def _part(stream: pb.StreamInfo, look: Look) -> Part:
    before, _, seconds = _between(look)
    old = next((one for one in before.streams if _is_same(one, stream)), pb.StreamInfo())
    chunks, unsent = stream.chunks - old.chunks, (stream.unsent_s - old.unsent_s) / seconds
    return Part(
        chunks,
        (stream.images - old.images) / seconds,
        unsent,
        (stream.paced_s - old.paced_s) / seconds,
        still=chunks == 0 and (stream.owed > 0 or unsent > 0),
    )


def _is_same(before: pb.StreamInfo, now: pb.StreamInfo) -> bool:
    """Whether a stream was not opened anew: over a Unix socket all have the same peer."""
    grew = before.age_s <= now.age_s and before.chunks <= now.chunks
    return _key(before) == _key(now) and before.peer == now.peer and grew


def _told(streams: Mapping[str, pb.StreamInfo], looks: Mapping[str, Look]) -> pb.ClientReport | None:
    new = _newest(streams.values())
    # A client that said nothing before has said all of it since it began.
    old = _newest(_before(streams, looks)) or pb.ClientReport()
    if new is None or new.step_s + new.wait_s <= old.step_s + old.wait_s:
        return None
    return _less(new, old, "step_s", "wait_s", "land_s", "images")


def _before(streams: Mapping[str, pb.StreamInfo], looks: Mapping[str, Look]) -> Iterator[pb.StreamInfo]:
    for address, stream in streams.items():
        yield from (one for one in _between(looks[address])[0].streams if _key(one) == _key(stream))


def _newest(streams: Iterable[pb.StreamInfo]) -> pb.ClientReport | None:
    """The report that says most: its sums only grow."""
    reports = [stream.report for stream in streams if stream.HasField("report")]
    return max(reports, key=lambda report: report.step_s + report.wait_s, default=None)
