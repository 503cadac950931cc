"""What workers and consumers did between two looks at them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from feeder.wire.v1 import feeder_pb2 as pb

__all__ = ["STAGES", "Consumer", "Work", "consumers", "work"]

STAGES = ("queue", "read", "ready", "make", "send")
"""Of a worker, as StageInfo of the protocol has them."""


@dataclass(frozen=True)
class Work:
    """One worker between two looks.

    Attributes:
        address: of it, as it was given.
        seconds: between the looks.
        threads: that decode.
        images, chunks: delivered.
        held: by stage, how many chunks were in it at a time, on average: the seconds that chunks spent there
            over the seconds between the looks (Little's law).
        owed: requests that are not answered, at the second look.
        bytes_read: from shards.
        bytes_sent: in messages; not what was written into trainers' memory.
        store_requests: to object stores.
        storage_retries: reads and requests that were tried again.
        seek_used: images that were decoded from seek points.
        cache_hits, cache_misses: images that were in the cache, or were not.
        caches: whether it has a cache of decoded images.
        cache_full: nothing more fits into it.
        cache_bytes: that it holds.
    """

    address: str
    seconds: float
    threads: int
    images: int
    chunks: int
    held: Mapping[str, float] = field(default_factory=dict)
    owed: int = 0
    bytes_read: int = 0
    bytes_sent: int = 0
    store_requests: int = 0
    storage_retries: int = 0
    seek_used: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    caches: bool = False
    cache_full: bool = False
    cache_bytes: int = 0

    @property
    def at_work(self) -> float:
        """Chunks whose turn has come and that are not sent yet, at a time."""
        return sum(self.held.get(stage, 0.0) for stage in STAGES[1:])

    @property
    def still(self) -> bool:
        """It owes chunks and gave none: where they are cannot be seen."""
        return self.owed > 0 and self.chunks == 0

    @property
    def making(self) -> float:
        """Chunks that are being made at a time; those of less images than threads count in part, since they
        cannot keep all threads busy."""
        spread = self.images / self.chunks / max(1, self.threads) if self.chunks else 1.0
        return self.held.get("make", 0.0) * min(1.0, spread)

    @property
    def images_per_s(self) -> float:
        """That it delivered."""
        return self.images / self.seconds


@dataclass(frozen=True)
class Consumer:
    """One consumer of a job between two looks; times are by its own clock.

    Attributes:
        job: its name, or the session where it has none.
        dataset: what it gets.
        index, count: it is consumer `index` of `count`.
        peer: where it calls from.
        workers: addresses of those of the looked-at workers that serve it.
        arena: whether all of them write into its memory.
        output: "rgb" or "yuv420".
        step_s: at work between batches; None: its client says nothing of itself.
        wait_s: waiting for a batch.
        land_s: processor time of the threads that receive.
        receivers: such threads: workers that it takes batches from.
        images: that it took.
        ready, prefetch: batches at the second look: there, and most that may be.
    """

    job: str
    dataset: str
    index: int
    count: int
    peer: str
    workers: tuple[str, ...]
    arena: bool = False
    output: str = "rgb"
    step_s: float | None = None
    wait_s: float = 0.0
    land_s: float = 0.0
    receivers: int = 1
    images: int = 0
    ready: int = 0
    prefetch: int = 0

    @property
    def waiting(self) -> float | None:
        """Share of its time that it waited for input, in [0, 1]; None: not known."""
        if self.step_s is None or self.step_s + self.wait_s <= 0:
            return None
        return self.wait_s / (self.step_s + self.wait_s)

    @property
    def landing(self) -> float:
        """Share of its time that a thread which receives was busy, in [0, 1] on average."""
        spent_s = (self.step_s or 0.0) + self.wait_s
        return self.land_s / spent_s / max(1, self.receivers) if spent_s > 0 else 0.0


def work(address: str, before: pb.DescribeReply, after: pb.DescribeReply) -> Work:
    """What one worker did between two answers of the same process."""
    seconds = max(after.uptime_s - before.uptime_s, 1e-3)
    old, new = before.counters, after.counters
    total_s = {stage.name: stage.total_s for stage in before.stages}
    return Work(
        address=address,
        seconds=seconds,
        threads=after.threads,
        images=new.images - old.images,
        chunks=new.chunks - old.chunks,
        held={stage.name: (stage.total_s - total_s.get(stage.name, 0.0)) / seconds for stage in after.stages},
        owed=sum(stream.owed for stream in after.streams),
        bytes_read=new.bytes_read - old.bytes_read,
        bytes_sent=new.bytes_sent - old.bytes_sent,
        store_requests=new.store_requests - old.store_requests,
        storage_retries=new.storage_retries - old.storage_retries,
        seek_used=new.seek_used - old.seek_used,
        cache_hits=after.cache.hits - before.cache.hits,
        cache_misses=after.cache.misses - before.cache.misses,
        caches=after.HasField("cache"),
        cache_full=after.cache.full,
        cache_bytes=after.cache.bytes,
    )


def consumers(
    before: Mapping[str, pb.DescribeReply], after: Mapping[str, pb.DescribeReply]
) -> list[Consumer]:
    """The consumers that are served at the second look, by job and number.

    A client tells each of its workers the same of itself; of what they were told, the newest counts.

    Args:
        before, after: by address, what workers answered; `after` has those that answered both times.
    """
    parts: dict[tuple[str, int], list[tuple[str, pb.StreamInfo]]] = {}
    for address, reply in after.items():
        for stream in reply.streams:
            parts.setdefault((stream.session, stream.consumer_index), []).append((address, stream))
    return sorted(
        (_consumer(key, streams, before) for key, streams in parts.items()),
        key=lambda consumer: (consumer.job, consumer.index),
    )


def _consumer(
    key: tuple[str, int],
    streams: Sequence[tuple[str, pb.StreamInfo]],
    before: Mapping[str, pb.DescribeReply],
) -> Consumer:
    stream = streams[0][1]
    new = _newest(stream for _, stream in streams)
    old = _newest(
        stream
        for address, _ in streams
        for stream in before[address].streams
        if (stream.session, stream.consumer_index) == key
    )
    reports = new is not None and (old is None or new.step_s + new.wait_s > old.step_s + old.wait_s)
    # A client that said nothing at the first look has said all of it since it began.
    now, then = new or pb.ClientReport(), old or pb.ClientReport()
    return Consumer(
        job=stream.job or f"session {stream.session[:12]}",
        dataset=stream.spec.dataset,
        index=stream.consumer_index,
        count=stream.consumer_count,
        peer=stream.peer,
        workers=tuple(address for address, _ in streams),
        arena=all(stream.arena for _, stream in streams),
        output=stream.spec.output,
        step_s=now.step_s - then.step_s if reports else None,
        wait_s=now.wait_s - then.wait_s if reports else 0.0,
        land_s=now.land_s - then.land_s if reports else 0.0,
        receivers=now.workers,
        images=now.images - then.images if reports else 0,
        ready=now.ready,
        prefetch=now.prefetch,
    )


def _newest(streams: Iterable[pb.StreamInfo]) -> pb.ClientReport | None:
    """The report that says most: its sums only grow."""
    reports = [stream.report for stream in streams if stream.HasField("report")]
    return max(reports, key=lambda report: report.step_s + report.wait_s, default=None)
