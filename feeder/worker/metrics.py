"""What a worker counts, as Prometheus reads it: made anew of Describe's answer whenever it is asked for; and
what any process has, as Prometheus' clients name it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime

from google.protobuf.message import Message
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from feeder.demand import BUSY_TARGET, Demand
from feeder.wire.v1 import feeder_pb2 as pb
from feeder.worker.consumer_metrics import consumer_metrics, stage_metrics
from feeder.worker.refusals import Refusals

__all__ = ["registry_of"]

COUNTERS = {
    "images": ("images", "Images delivered in chunks."),
    "chunks": ("chunks", "Chunks delivered."),
    "bytes_read": ("read_bytes", "Bytes read from shards."),
    "bytes_sent": ("sent_bytes", "Bytes of chunk messages."),
    "bytes_placed": ("placed_bytes", "Pixels written into the memory of trainers on this host."),
    "images_shared": ("shared_images", "Images delivered that had been made for another stream."),
    "bytes_shared": ("shared_bytes", "Pixels of those."),
    "bad_records": ("bad_records", "Times that a record was found bad."),
    "storage_retries": ("storage_retries", "Reads of shards that were tried again."),
    "read_s": ("read_seconds", "Thread-seconds spent reading, checking and parsing records."),
    "decode_s": ("make_seconds", "Thread-seconds spent making chunks, decoding included."),
    "idle_s": ("idle_seconds", "Thread-seconds that making threads waited for something to do."),
    "seek_used": ("seek_used", "Images decoded from seek points."),
    "seek_learned": ("seek_learned", "Times that seek points were written."),
    "seek_refused": ("seek_refused", "Images whose seek points contradicted them."),
    "seek_torn": ("seek_torn", "Seek points that were damaged or of other bytes."),
    "seek_dropped": ("seek_dropped", "Times that seek points could not be written."),
    "store_requests": ("store_requests", "Requests to object stores, those that failed included."),
    "store_merged": (
        "store_merged",
        "Records that came with a request to an object store for their neighbour.",
    ),
}
"""Field of Counters -> what follows feeder_, and help; prometheus_client adds _total."""

CACHE_COUNTERS = {
    "hits": ("cache_hits", "Records that were there."),
    "misses": ("cache_misses", "Records that were not there."),
    "filled": ("cache_filled", "Records that this worker added to the cache."),
    "dropped": ("cache_dropped_segments", "Segments, or single records, that were found damaged."),
}
CACHE_GAUGES = {
    "bytes": ("cache_bytes", "Bytes of the segments that this worker uses."),
    "segments": ("cache_segments", "Segments that this worker uses."),
    "budget_bytes": ("cache_budget_bytes", "Bytes that all workers of the folder may take together."),
    "full": ("cache_full", "1 where nothing more fits."),
}
CACHES = {"cache": ("", "planes"), "encoded_cache": ("encoded_", "encoded records of object stores")}
"""Field of DescribeReply -> what its names begin with, and what it holds."""


def registry_of(
    describe: Callable[[], pb.DescribeReply],
    refusals: Refusals | None = None,
    certificate_ends: Callable[[], datetime | None] | None = None,
    *,
    names: bool = True,
) -> CollectorRegistry:
    """A registry of one worker's metrics.

    Args:
        describe: what the worker says of itself now; called for each scrape, on the scraper's thread.
        refusals: what it sent away, if that is counted.
        certificate_ends: when that which it shows now ends, None where it shows none; if that is to be told.
        names: whether jobs are named.
    """
    registry = CollectorRegistry()
    if refusals is not None:
        registry.register(_Refused(refusals))
    if certificate_ends is not None:
        registry.register(_Certificate(certificate_ends))
    registry.register(_Described(describe, names))
    ProcessCollector(registry=registry)
    return registry


class _Refused(Collector):
    def __init__(self, refusals: Refusals) -> None:
        self._refusals = refusals

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(
            "feeder_refused", "Connections and calls that were refused, by reason.", labels=["reason"]
        )
        for reason, count in sorted(self._refusals.counts().items()):
            family.add_metric([reason], count)
        yield family


class _Certificate(Collector):
    def __init__(self, ends: Callable[[], datetime | None]) -> None:
        self._ends = ends

    def collect(self) -> Iterator[Metric]:
        if (ends := self._ends()) is not None:
            yield GaugeMetricFamily(
                "feeder_tls_certificate_not_after_timestamp_seconds",
                "Unix time at which the certificate ends that the worker shows.",
                ends.timestamp(),
            )


class _Described(Collector):
    def __init__(self, describe: Callable[[], pb.DescribeReply], names: bool) -> None:
        self._describe = describe
        self._names = names
        self._demand = Demand()

    def describe(self) -> list[Metric]:
        return []  # so that registering asks nothing of the worker

    def collect(self) -> Iterator[Metric]:
        reply = self._describe()
        info = GaugeMetricFamily(
            "feeder_worker_info", "1; what runs here.", labels=["version", "decoder", "pixel_fingerprint"]
        )
        info.add_metric([reply.version, reply.decoder, reply.pixel_fingerprint], 1)
        yield info
        yield GaugeMetricFamily("feeder_uptime_seconds", "Since the worker's start.", reply.uptime_s)
        yield GaugeMetricFamily("feeder_threads", "Decode threads.", reply.threads)
        yield GaugeMetricFamily("feeder_streams", "Consumers that are served now.", reply.live_streams)
        yield GaugeMetricFamily("feeder_max_streams", "Consumers served at most.", reply.max_streams)
        yield GaugeMetricFamily(
            "feeder_kept_bytes", "Of chunks kept because several streams want them.", reply.kept_bytes
        )
        yield GaugeMetricFamily("feeder_draining", "1 where no new stream is taken.", reply.draining)
        yield GaugeMetricFamily(
            "feeder_workers_needed",
            f"Workers like this one that its clients would keep at work {BUSY_TARGET:.0%} of the time; their "
            "sum over workers is how many there should be.",
            self._demand.needed(reply.counters.decode_s, reply.counters.idle_s),
        )
        yield from _counters(reply.counters, COUNTERS)
        yield from stage_metrics(reply)
        yield from consumer_metrics(reply, names=self._names)
        for cache, (prefix, what) in CACHES.items():
            if reply.HasField(cache):
                yield from _cache(getattr(reply, cache), prefix, what)
        records = GaugeMetricFamily("feeder_dataset_records", "Records of a data set.", labels=["dataset"])
        size = GaugeMetricFamily(
            "feeder_dataset_bytes", "Encoded bytes of a data set's records.", labels=["dataset"]
        )
        for dataset in reply.datasets:
            records.add_metric([dataset.name], dataset.records)
            size.add_metric([dataset.name], dataset.bytes)
        yield records
        yield size


def _cache(cache: pb.CacheInfo, prefix: str, what: str) -> Iterator[Metric]:
    yield from _counters(
        cache,
        {
            field: (prefix + name, f"Cache of {what}: {text}")
            for field, (name, text) in CACHE_COUNTERS.items()
        },
    )
    for field, (name, text) in CACHE_GAUGES.items():
        yield GaugeMetricFamily(f"feeder_{prefix}{name}", f"Cache of {what}: {text}", getattr(cache, field))


def _counters(message: Message, names: dict[str, tuple[str, str]]) -> Iterator[Metric]:
    for field, (name, text) in names.items():
        yield CounterMetricFamily(f"feeder_{name}", text, getattr(message, field))
