"""Traces of chunks: a span at the client for each that is sampled, and one a stage at the worker below it."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import pairwise
from typing import Any

import pytest

import feeder
from feeder.errors import BadRecord
from feeder.wire.messages import ChunkRequest

pytest.importorskip("opentelemetry.sdk", reason="the extra tracing is not installed")
proto = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")

from opentelemetry import trace  # noqa: E402
from opentelemetry.sdk.trace import TracerProvider  # noqa: E402
from opentelemetry.sdk.trace.export import SimpleSpanProcessor  # noqa: E402
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter  # noqa: E402
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Sampler  # noqa: E402

from feeder.client.tracing import ChunkSpans  # noqa: E402

STAGES = ["feeder.queue", "feeder.read", "feeder.ready", "feeder.make", "feeder.send"]
WORKER_FLAGS = ("--trace",)
SAMPLED: set[int] = set()
"""Spans at clients of the tests before, whose chunks the worker may still be at."""
SMALL: dict[str, Any] = {"batch_size": 8, "image_size": 32, "trace": True}
StartWorker = Callable[..., Any]


@pytest.fixture(scope="module", autouse=True)
def collected() -> Iterator[list[Any]]:
    """Spans that the module's worker exports to a collector here."""
    spans: list[Any] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            for of_resource in proto.ExportTraceServiceRequest.FromString(body).resource_spans:
                for of_scope in of_resource.scope_spans:
                    spans.extend(of_scope.spans)
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Collector)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        patch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        yield spans
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def sampled(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Sampler], InMemorySpanExporter]]:
    """Makes this program's tracer provider, with a sampler; returns where its spans go."""
    providers: list[tuple[TracerProvider, InMemorySpanExporter]] = []

    def make(sampler: Sampler) -> InMemorySpanExporter:
        exporter, provider = InMemorySpanExporter(), TracerProvider(sampler=sampler)
        providers.append((provider, exporter))
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
        return exporter

    yield make
    for provider, exporter in providers:
        SAMPLED.update(span.context.span_id for span in exporter.get_finished_spans())
        provider.shutdown()


def below(collected: list[Any], chunks: Collection[int], last: str = "feeder.send") -> dict[int, list[Any]]:
    """What the worker exported of these chunks, by the span at the client, once `last` is here of each."""
    deadline_s = time.monotonic() + 30
    while True:
        found: dict[int, list[Any]] = {number: [] for number in chunks}
        for span in list(collected):
            found.get(int.from_bytes(span.parent_span_id, "big"), []).append(span)
        if all(last in [span.name for span in spans] for spans in found.values()):
            return found
        assert time.monotonic() < deadline_s, found
        time.sleep(0.02)


@pytest.mark.parametrize("transport", ["shm", "grpc"])
def test_a_chunk_is_followed_from_client_to_worker(
    worker: Any, collected: list[Any], sampled: Any, transport: Any
) -> None:
    exporter = sampled(ALWAYS_ON)
    with feeder.connect(worker.address).stream("train", **SMALL, transport=transport, epochs=2) as stream:
        list(stream)
    chunks = {span.context.span_id: span for span in exporter.get_finished_spans()}
    assert len(chunks) >= 6
    for number, stages in below(collected, chunks).items():
        chunk = chunks[number]
        assert chunk.name == "feeder.chunk"
        assert chunk.attributes["feeder.worker"] == worker.address
        assert chunk.attributes["feeder.dataset"] == "train"
        assert [span.name for span in stages] == STAGES
        for before, after in pairwise(stages):
            assert before.start_time_unix_nano <= before.end_time_unix_nano == after.start_time_unix_nano
        assert {int.from_bytes(span.trace_id, "big") for span in stages} == {chunk.context.trace_id}


def test_a_chunk_that_cannot_be_made(worker: Any, collected: list[Any], sampled: Any) -> None:
    exporter = sampled(ALWAYS_ON)
    with (
        feeder.connect(worker.address).stream("bad", **SMALL, on_bad="fail") as stream,
        pytest.raises(BadRecord),
    ):
        list(stream)
    failed = {span.context.span_id: span for span in exporter.get_finished_spans() if not span.status.is_ok}
    named = {number: span for number, span in failed.items() if "record" in (span.status.description or "")}
    assert named
    for stages in below(collected, named, "feeder.read").values():
        assert {span.status.code for span in stages} == {2}


def test_what_is_not_sampled_costs_the_worker_nothing(
    worker: Any, collected: list[Any], sampled: Any
) -> None:
    sampled(ALWAYS_OFF)
    with feeder.connect(worker.address).stream("train", **SMALL, epochs=1) as stream:
        list(stream)
    exporter = sampled(ALWAYS_ON)  # what comes behind it is all that comes
    with feeder.connect(worker.address).stream("train", **SMALL, epochs=1) as stream:
        list(stream)
    chunks = [span.context.span_id for span in exporter.get_finished_spans()]
    below(collected, chunks)
    parents = {int.from_bytes(span.parent_span_id, "big") for span in collected}
    assert parents <= SAMPLED | set(chunks)


def test_a_collector_that_is_not_there_does_not_keep_the_worker(
    start_worker: StartWorker, sampled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    sampled(ALWAYS_ON)
    worker = start_worker("--trace")
    with feeder.connect(worker.address).stream("train", **SMALL, epochs=1) as stream:
        assert len(list(stream)) == 3
    assert worker.stop() == 0, worker.log


def test_what_is_lost_on_the_way_ends(sampled: Any) -> None:
    exporter = sampled(ALWAYS_ON)
    spans = ChunkSpans("host:1", "d")
    traceparents = [spans.asked(ChunkRequest(number, 0, 0, (0, 1))) for number in (1, 2, 3)]
    assert len(set(traceparents)) == 3
    spans.ended(2)
    spans.ended(2, "twice")
    spans.lost("the worker is gone")
    found = {span.attributes["feeder.request"]: span.status for span in exporter.get_finished_spans()}
    assert found[2].is_unset
    assert {found[1].description, found[3].description} == {"the worker is gone"}


def test_opentelemetry_is_not_imported_where_nobody_traces() -> None:
    code = (
        "import sys, feeder, feeder.client.client, feeder.worker.daemon, feeder.cli\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
