"""Spans of chunks by stage, where a client traces them; by OpenTelemetry.

Imported only where the user wants them.
"""

from __future__ import annotations

import time

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.trace import TracerProvider as AnyProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from feeder.worker.scheduler import Job

__all__ = ["StageSpans", "otlp_provider"]

_CONTEXT = TraceContextTextMapPropagator()


def otlp_provider(worker_id: str) -> TracerProvider:
    """Sends spans by OTLP over HTTP, where OTEL_EXPORTER_OTLP_ENDPOINT and its like say; from a thread of its
    own, which drops what it cannot send. `shutdown()` ends it."""
    resource = Resource.create({"service.name": "feeder-worker", "service.instance.id": worker_id})
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


class StageSpans:
    """Makes a span of each stage that a traced chunk passed, all children of the client's span."""

    def __init__(self, provider: AnyProvider) -> None:
        self._tracer = provider.get_tracer("feeder.worker")
        self._epoch_ns = time.time_ns() - time.perf_counter_ns()

    def sent(self, job: Job, *, failed: bool) -> None:
        """A job was answered, with a chunk or with an error."""
        context = _CONTEXT.extract({"traceparent": job.request.trace})
        for stage, begun_s, ended_s in job.passed:
            span = self._tracer.start_span(
                f"feeder.{stage}",
                context,
                SpanKind.SERVER,
                {"feeder.stream": job.stream, "feeder.request": job.request.id},
                start_time=self._unix_ns(begun_s),
            )
            if failed:
                span.set_status(StatusCode.ERROR)
            span.end(self._unix_ns(ended_s))

    def _unix_ns(self, clock_s: float) -> int:
        return self._epoch_ns + round(clock_s * 1e9)
