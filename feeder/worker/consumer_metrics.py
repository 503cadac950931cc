"""Where chunks are and were, and how consumers fare, as Prometheus reads it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate

from google.protobuf.message import Message
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.utils import floatToGoString

from feeder.wire.v1 import feeder_pb2 as pb

__all__ = ["consumer_metrics", "stage_metrics"]

STREAM_COUNTERS = {
    "images": ("served_images", "Images that this worker gave it since it connected."),
    "chunks": ("served_chunks", "Chunks that they came in."),
    "unsent_s": ("unsent_seconds", "Chunk-seconds that what was made for it waited for the socket."),
    "paced_s": ("paced_seconds", "Of these, time that sending waited for its token's rate."),
}
STREAM_GAUGES = {
    "owed": ("owed_chunks", "Chunks that it asked for and does not have."),
    "epoch": ("epoch", "Epoch of its newest request."),
    "report_age_s": ("report_age_seconds", "Since it last said how it fares."),
}
REPORT_COUNTERS = {
    "steps": ("steps", "Batches that it took."),
    "step_s": ("step_seconds", "Time that it was at work between batches."),
    "wait_s": ("wait_seconds", "Time that it waited for batches."),
    "land_s": ("land_seconds", "Thread-seconds of receiving: copying and decompressing."),
    "images": ("images", "Slots of the batches that it took, masked ones included."),
    "masked": ("masked_slots", "Slots without a sample: padding, or in evaluation a bad record."),
    "substituted": ("substituted_slots", "Slots whose record is bad, filled with the next good one."),
    "hedges": ("hedges", "Requests that went to another worker, too, because one was later than usual."),
    "retries": ("retries", "Requests that went to another because one failed, fell silent or was lost."),
    "bytes_copied": ("copied_bytes", "Pixels from connections into batches, and from batch to batch."),
}
REPORT_GAUGES = {
    "ready": ("ready_batches", "Batches that are complete and not taken."),
    "prefetch": ("prefetch_batches", "Most that there may be."),
    "workers": ("workers", "Workers that it takes batches from."),
}
"""Field -> what follows feeder_consumer_, and help; prometheus_client adds _total to counters."""

LABELS = ["job_name", "consumer"]
"""Not "job": that is Prometheus' own name for what it scrapes."""


def stage_metrics(reply: pb.DescribeReply) -> Iterator[Metric]:
    """What chunks spent in each stage, and how many are in it."""
    spent = HistogramMetricFamily("feeder_stage_seconds", "What chunks spent in a stage.", labels=["stage"])
    here = GaugeMetricFamily("feeder_stage_chunks", "Chunks that are in a stage now.", labels=["stage"])
    for stage in reply.stages:
        bounds = [*map(floatToGoString, stage.bounds_s), "+Inf"]
        buckets = list(zip(bounds, accumulate(stage.buckets), strict=True))
        spent.add_metric([stage.name], buckets=buckets, sum_value=stage.total_s)
        here.add_metric([stage.name], stage.here)
    yield spent
    yield here


def consumer_metrics(reply: pb.DescribeReply, *, names: bool = True) -> Iterator[Metric]:
    """How each consumer fares that is served now: no more series than there are streams.

    Args:
        names: whether jobs are named; each is a session else, as those without a name are.
    """
    # One that reconnects has two streams for a while: the newest counts.
    streams = {_labels(stream, names): stream for stream in reply.streams}
    reports = {labels: stream.report for labels, stream in streams.items() if stream.HasField("report")}
    yield from _families(streams, STREAM_COUNTERS, CounterMetricFamily)
    yield from _families(streams, STREAM_GAUGES, GaugeMetricFamily)
    yield from _families(reports, REPORT_COUNTERS, CounterMetricFamily)
    yield from _families(reports, REPORT_GAUGES, GaugeMetricFamily)


def _labels(stream: pb.StreamInfo, names: bool) -> tuple[str, str]:
    return (stream.job if names else "") or f"session {stream.session[:8]}", str(stream.consumer_index)


def _families(
    messages: Mapping[tuple[str, str], Message],
    names: dict[str, tuple[str, str]],
    kind: type[CounterMetricFamily] | type[GaugeMetricFamily],
) -> Iterator[Metric]:
    for field, (name, text) in names.items():
        family = kind(f"feeder_consumer_{name}", f"Consumer: {text}", labels=LABELS)
        for labels, message in messages.items():
            family.add_metric(list(labels), getattr(message, field))
        yield family
