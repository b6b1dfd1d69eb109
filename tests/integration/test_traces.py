"""The traces role on a real log, with a collector that speaks OTLP."""

from __future__ import annotations

import asyncio
import gzip
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any
from uuid import uuid4

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from consumers.traces.main import export
from consumers.traces.spans import spans
from infra.local.checks import free_ports
from parley.clock import now_ms
from parley.log.partitions import partition_of, session_key
from parley.log.producer import Producer
from parley.settings import Settings
from parley.topics import TURNS
from parley.topics_cli import apply_topics
from schemas.base import Timings
from schemas.turns import TurnEnded
from schemas.wire import encode, headers
from tests.unit.core.core_events import ended, failed, response

pytestmark = pytest.mark.stack


class Collector:
    """What spans it was sent, by id; it answers as the specification of OTLP over HTTP says."""

    def __init__(self) -> None:
        self.spans: dict[str, Any] = {}
        self.resources: list[dict[str, str]] = []

    @contextmanager
    def serving(self, port: int) -> Iterator[None]:
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                collector.take(self.path, ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                """Not in a test's output."""

        server = HTTPServer(("127.0.0.1", port), Handler)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    def take(self, path: str, request: ExportTraceServiceRequest) -> None:
        assert path == "/v1/traces"
        for resource in request.resource_spans:
            self.resources.append({a.key: a.value.string_value for a in resource.resource.attributes})
            self.spans |= {span.span_id.hex(): span for scope in resource.scope_spans for span in scope.spans}

    async def has(self, event: TurnEnded) -> list[Any]:
        """The spans of a turn, once they have come."""
        wanted = [span.id for span in spans(event)]
        async with asyncio.timeout(30):
            while not self.spans.keys() >= set(wanted):
                await asyncio.sleep(0.05)
        return [self.spans[one] for one in wanted]


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> int:
    """Where the role expects its collector."""
    [port] = free_ports(1)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    return port


@pytest.fixture
async def settings(kafka_of_its_own: str) -> Settings:
    settings = Settings.model_validate({"kafka": {"bootstrap": kafka_of_its_own}})
    await apply_topics(settings)
    return settings


@asynccontextmanager
async def exporting(settings: Settings, since_ms: int = 60_000) -> AsyncIterator[None]:
    stop = asyncio.Event()
    task = asyncio.create_task(export(settings, since_ms, stop))
    try:
        yield
    finally:
        stop.set()
        await asyncio.wait_for(task, 30)


async def put(settings: Settings, event: TurnEnded) -> None:
    producer = Producer(settings.kafka, "test")
    await producer.start()
    try:
        key = session_key(event.session.hex)
        about = headers(event.type, response=event.response, traceparent=event.traceparent)
        partition = partition_of(key, settings.topics.session_partitions)
        await producer.send(TURNS, encode(event), key=key, partition=partition, headers=about)
    finally:
        await producer.stop()


def a_turn(number: int, **fields: Any) -> TurnEnded:
    at = now_ms()
    times = Timings(accepted=at - 500, moderated=at - 490, dispatched=at - 480, taken=at - 470, first_token=at - 400)
    about = {"session": uuid4(), "accepted_at": at - 500, "ended_at": at, "timings": times, "turn": number}
    return ended(1, **about | {"response": response(number)} | fields)


async def test_a_turn_that_ends_is_a_trace_under_the_clients_own(settings: Settings, port: int) -> None:
    trace, parent = uuid4().hex, uuid4().hex[:16]
    event = a_turn(4001, traceparent=f"00-{trace}-{parent}-01", status="failed", failure=failed(retryable=True))
    collector = Collector()
    with collector.serving(port):
        async with exporting(settings):
            await put(settings, event)
            own, *children = await collector.has(event)
    assert (own.name, own.trace_id.hex(), own.parent_span_id.hex()) == ("chat m", trace, parent)
    assert (own.end_time_unix_nano - own.start_time_unix_nano) == 500_000_000
    assert own.status.code == 2
    assert {a.key: a.value.string_value for a in own.attributes}["error.type"] == "engine_error"
    assert {child.parent_span_id for child in children} == {own.span_id}
    assert {child.name for child in children} == {"moderation", "orchestration", "queue"}
    assert collector.resources[0]["service.name"] == "parley"


async def test_a_collector_that_is_away_is_waited_for(settings: Settings, port: int) -> None:
    event, collector = a_turn(4002), Collector()
    async with exporting(settings):
        await put(settings, event)
        await asyncio.sleep(1.5)
        assert not collector.spans
        with collector.serving(port):
            await collector.has(event)


async def test_what_ended_while_the_role_was_away_is_exported_however_long_that_was(
    settings: Settings, port: int
) -> None:
    """Only a group that is new begins with turns of a while ago."""
    before, meanwhile = a_turn(4003), a_turn(4004)
    collector = Collector()
    with collector.serving(port):
        async with exporting(settings):
            await put(settings, before)
            await collector.has(before)
        await put(settings, meanwhile)
        await asyncio.sleep(0.2)
        async with exporting(settings, since_ms=100):
            await collector.has(meanwhile)
