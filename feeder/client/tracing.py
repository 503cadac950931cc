"""Spans of chunks, from when they are asked for until their pixels are in the batch; by OpenTelemetry.

Imported only where the user wants them.
"""

from __future__ import annotations

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from feeder.wire.messages import ChunkRequest

__all__ = ["ChunkSpans"]

_CONTEXT = TraceContextTextMapPropagator()


class ChunkSpans:
    """The spans of one worker's chunks that are on their way. The program's tracer provider decides which are
    sampled, and where they go. Each is the root of a trace of its own: batches are asked for ahead, by
    threads that know nothing of what the caller is at."""

    def __init__(self, worker: str, dataset: str) -> None:
        self._attributes = {"feeder.worker": worker, "feeder.dataset": dataset}
        self._tracer = trace.get_tracer("feeder.client")
        self._spans: dict[int, Span] = {}

    def asked(self, request: ChunkRequest) -> str:
        """A request is about to be sent: what it says of its trace; empty where it is not sampled."""
        span = self._tracer.start_span(
            "feeder.chunk",
            Context(),
            kind=SpanKind.CLIENT,
            attributes=self._attributes
            | {
                "feeder.request": request.id,
                "feeder.epoch": request.epoch,
                "feeder.taken": request.taken,
                "feeder.slots": len(request.slots),
                "feeder.first_slot": request.slots[0],
            },
        )
        if not span.is_recording():
            return ""
        self._spans[request.id] = span
        carrier: dict[str, str] = {}
        _CONTEXT.inject(carrier, trace.set_span_in_context(span))
        return carrier["traceparent"]

    def ended(self, request: int, error: str = "") -> None:
        """It was answered, with a chunk that is in its place or with an error."""
        span = self._spans.pop(request, None)
        if span is not None:
            if error:
                span.set_status(StatusCode.ERROR, error)
            span.end()

    def lost(self, error: str) -> None:
        """Nothing more comes of what was asked for."""
        for request in list(self._spans):
            self.ended(request, error)
