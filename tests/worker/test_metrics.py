"""Every metric: it moves with what it counts, and docs, alerts and dashboard name no other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import Message
from prometheus_client.core import Metric

from feeder.wire.v1 import feeder_pb2 as pb
from feeder.worker import consumer_metrics
from feeder.worker.metrics import registry_of
from feeder.worker.refusals import Refusals

ROOT = Path(__file__).resolve().parents[2]


def full_reply() -> pb.DescribeReply:
    """One of everything that has metrics."""
    return pb.DescribeReply(
        counters=pb.Counters(),
        cache=pb.CacheInfo(),
        encoded_cache=pb.CacheInfo(),
        datasets=[pb.DatasetInfo(name="d")],
        stages=[pb.StageInfo(name="make", bounds_s=[0.5], buckets=[0, 0])],
        streams=[pb.StreamInfo(job="night", report=pb.ClientReport())],
    )


def families(reply: pb.DescribeReply) -> dict[str, Metric]:
    """By name as Prometheus has it: counters end in _total."""
    return {
        family.name + ("_total" if family.type == "counter" else ""): family
        for family in registry_of(
            lambda: reply, Refusals(), lambda: datetime(2030, 1, 1, tzinfo=UTC)
        ).collect()
        if not family.name.startswith("process_")
    }


def values(reply: pb.DescribeReply) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in families(reply).values()
        for sample in family.samples
    }


def part_of(reply: pb.DescribeReply, path: str) -> Any:
    """A part of a reply; of those that are repeated the first."""
    part: Any = reply
    for name in path.split("/") if path else ():
        part = getattr(part, name)
        part = part if isinstance(part, Message) else part[0]
    return part


def numbers() -> Iterator[tuple[str, str]]:
    """Path to a part of `full_reply`, and a field of it that has a metric."""
    for path in ("counters", "cache", "encoded_cache", "streams/report"):
        for field in part_of(full_reply(), path).DESCRIPTOR.fields_by_name:
            yield path, field
    for field in consumer_metrics.STREAM_COUNTERS | consumer_metrics.STREAM_GAUGES:
        yield "streams", field
    for field in ("uptime_s", "threads", "live_streams", "max_streams", "kept_bytes", "draining"):
        yield "", field
    yield from (("stages", "here"), ("stages", "total_s"), ("datasets", "records"), ("datasets", "bytes"))


@pytest.mark.parametrize(("path", "field"), list(numbers()))
def test_every_number_of_describe_moves_one_metric(path: str, field: str) -> None:
    reply = full_reply()
    before = values(reply)
    setattr(part_of(reply, path), field, 7 if field not in ("draining", "full") else True)
    after = values(reply)
    moved = {key[0] for key, value in before.items() if after[key] != value}
    assert len(moved - {"feeder_workers_needed"}) == 1


def test_buckets_add_up() -> None:
    reply = full_reply()
    reply.stages[0].bounds_s[:] = [0.001, 0.25]
    reply.stages[0].buckets[:] = [3, 0, 2]
    reply.stages[0].total_s = 1.5
    found = values(reply)
    assert found["feeder_stage_seconds_bucket", "make", "0.001"] == 3
    assert found["feeder_stage_seconds_bucket", "make", "0.25"] == 3
    assert found["feeder_stage_seconds_bucket", "make", "+Inf"] == 5
    assert found["feeder_stage_seconds_count", "make"] == 5
    assert found["feeder_stage_seconds_sum", "make"] == 1.5


def test_what_any_process_has() -> None:
    names = {family.name for family in registry_of(full_reply).collect()}
    page = (ROOT / "docs/metrics.md").read_text()
    listed = set(re.findall(r"`(process_\w+?)(?:_total)?`", page))
    assert listed == {name for name in names if name.startswith("process_")} > {"process_cpu_seconds"}


def test_one_series_a_consumer() -> None:
    """A consumer that reconnects has two streams for a while; without a job it has its session's name."""
    reply = pb.DescribeReply(
        streams=[
            pb.StreamInfo(job="night", consumer_index=1, images=5, report=pb.ClientReport(steps=5)),
            pb.StreamInfo(job="night", consumer_index=1, images=1),
            pb.StreamInfo(session="0123456789", images=2),
            pb.StreamInfo(session="abcdef", images=3),
        ]
    )
    found = {key: value for key, value in values(reply).items() if "served_images" in key[0]}
    name = "feeder_consumer_served_images_total"
    assert found == {
        (name, "night", "1"): 1,
        (name, "session 01234567", "0"): 2,
        (name, "session abcdef", "0"): 3,
    }
    assert not [key for key in values(reply) if key[0] == "feeder_consumer_steps_total"]


def test_the_certificate_that_is_shown_now_is_told_of() -> None:
    shown: list[datetime | None] = [None]
    registry = registry_of(full_reply, certificate_ends=lambda: shown[-1])
    name = "feeder_tls_certificate_not_after_timestamp_seconds"
    assert registry.get_sample_value(name) is None
    for seconds in (1_800_000_000, 1_900_000_000):
        shown.append(datetime.fromtimestamp(seconds, UTC))
        assert registry.get_sample_value(name) == seconds


def test_the_page_lists_every_metric_and_no_other() -> None:
    page = (ROOT / "docs/metrics.md").read_text()
    rows = re.findall(r"^\| `(feeder_\w+)`(?: by (.*?))? \| (\w+) \| (\S*) \| (.*) \|$", page, re.MULTILINE)
    listed = {name: (labels, kind, unit, text) for name, labels, kind, unit, text in rows}
    there = {}
    for name, family in families(full_reply()).items():
        labels = {label: None for sample in family.samples for label in sample.labels if label != "le"}
        unit = next((unit for unit in ("seconds", "bytes") if f"_{unit}" in name), "")
        there[name] = (", ".join(labels), family.type, unit, family.documentation)
    assert listed == there
    assert len(rows) == len(listed)
