"""Spans to a collector, over OpenTelemetry's own SDK. Where it goes is told by OTEL_EXPORTER_OTLP_* variables."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from consumers.traces.spans import Span
from parley import __version__
from parley.errors import ParleyError

NS = 1_000_000
"""Nanoseconds of a millisecond."""


class Collector:
    """Sends spans. `send` returns when the collector has taken them."""

    def __init__(self) -> None:
        self._exporter = OTLPSpanExporter()
        self._resource = Resource.create({"service.name": "parley", "service.version": __version__})
        self._scope = InstrumentationScope("parley", __version__)

    async def send(self, spans: Sequence[Span]) -> None:
        """Send all of them.

        Raises:
            ParleyError: store_unavailable: the collector has not taken them; all may be sent again.
        """
        readable = [self._readable(span) for span in spans]
        if await asyncio.to_thread(self._exporter.export, readable) is not SpanExportResult.SUCCESS:
            raise ParleyError("store_unavailable", "the collector of traces does not take them (OTEL_EXPORTER_OTLP_*)")

    async def close(self) -> None:
        """Disconnect."""
        await asyncio.to_thread(self._exporter.shutdown)

    def _readable(self, span: Span) -> ReadableSpan:
        parent = None if span.parent is None else _context(span.trace, span.parent, remote=span.serves)
        event = "gen_ai.first_token"
        return ReadableSpan(
            name=span.name,
            context=_context(span.trace, span.id, remote=False),
            parent=parent,
            resource=self._resource,
            attributes=dict(span.attributes),
            events=() if span.first_token is None else (Event(event, timestamp=span.first_token * NS),),
            kind=SpanKind.SERVER if span.serves else SpanKind.CLIENT if span.calls else SpanKind.INTERNAL,
            instrumentation_scope=self._scope,
            status=Status(StatusCode.UNSET) if span.error is None else Status(StatusCode.ERROR, span.error),
            start_time=span.start * NS,
            end_time=span.end * NS,
        )


def _context(trace: str, span: str, *, remote: bool) -> SpanContext:
    return SpanContext(int(trace, 16), int(span, 16), remote, TraceFlags(TraceFlags.SAMPLED))
