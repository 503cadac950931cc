"""What the pipeline counts: chunks, and where their time goes, a histogram of each stage that they pass."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

from feeder.wire.v1 import feeder_pb2 as pb
from feeder.worker.scheduler import Job

__all__ = ["Counters", "Stage", "Stages"]

Stage: TypeAlias = Literal["queue", "read", "ready", "make", "send"]
"""In the order in which a chunk passes them; StageInfo of the protocol says what each is."""

# fmt: off
BOUNDS_S = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)
# fmt: on
"""A chunk takes a fraction of a millisecond where it is copied, and tens where it is decoded."""


@dataclass(slots=True)
class Counters:
    """Sums since the start; seconds are of threads, not of the clock."""

    images: int = 0
    chunks: int = 0
    bytes_sent: int = 0
    bytes_placed: int = 0
    images_shared: int = 0
    bytes_shared: int = 0
    bad_records: int = 0
    read_s: float = 0.0
    decode_s: float = 0.0
    idle_s: float = 0.0


@dataclass(slots=True)
class _Histogram:
    total_s: float = 0.0
    buckets: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_S) + 1))


class Stages:
    """What chunks spent in each stage since the start. Has no lock: its owner holds one."""

    def __init__(self) -> None:
        self._histograms: dict[Stage, _Histogram] = {stage: _Histogram() for stage in get_args(Stage)}

    def leave(self, job: Job, stage: Stage, now_s: float) -> None:
        """A job goes from this stage into the one behind it."""
        spent_s = now_s - job.since_s
        if job.request.trace:
            job.passed.append((stage, job.since_s, now_s))
        job.since_s = now_s
        histogram = self._histograms[stage]
        histogram.total_s += spent_s
        histogram.buckets[bisect_left(BOUNDS_S, spent_s)] += 1

    def infos(self, here: Mapping[Stage, int]) -> list[pb.StageInfo]:
        """All of them, first stage first; `here` says how many chunks are in each now."""
        return [
            pb.StageInfo(
                name=stage,
                chunks=sum(histogram.buckets),
                total_s=histogram.total_s,
                bounds_s=BOUNDS_S,
                buckets=histogram.buckets,
                here=here[stage],
            )
            for stage, histogram in self._histograms.items()
        ]
