"""A response as a stream of server-sent events."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Iterable

import orjson
from starlette.types import Receive, Scope, Send

from parley.errors import ParleyError
from producers.edge import metrics
from producers.edge.feeds import Cursor
from producers.edge.problems import envelope
from producers.edge.projection import PublicEvent
from producers.edge.service import Edge

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    # no-transform and X-Accel-Buffering keep proxies from compressing or collecting the stream.
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]
BEGIN = b": parley\n\n"
RECOVERED = b": recovered\n\n"
KEEPALIVE = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"
RETRY_MS = 2_000
"""A stream that ends with its edge says within which time, drawn at random, its client is to resume elsewhere."""

_STREAMS = metrics.STREAMS.labels("sse")
_EVENTS = metrics.EVENTS.labels("sse")
_SLOW = metrics.SLOW_READERS.labels("sse")


def lines(events: Iterable[PublicEvent], first: int) -> bytes:
    """Events from number `first` on as text/event-stream. Their ids are what readers send as Last-Event-ID."""
    return b"".join(
        b"id: %d\nevent: %b\ndata: %b\n\n" % (number, event.type.encode(), event.data)
        for number, event in enumerate(events, first)
    )


class EventStream:
    """An ASGI response: the events from a cursor on, until the last one, the client's leaving, or the edge's drain.

    The headers and a first byte leave at once. A comment follows whenever nothing else has been sent for the keep-alive
    time, whatever the turn is doing. A stream that ends without its terminal event and `[DONE]` is to be resumed; a
    client that leaves cancels nothing.
    """

    def __init__(self, edge: Edge, cursor: Cursor, settling: asyncio.Future[None] | None = None) -> None:
        """`settling`: what to wait for before the first event (Turns.settle)."""
        self._edge = edge
        self._cursor = cursor
        self._settling = settling
        self._keepalive = edge.settings.edge.keepalive_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        leaving = asyncio.create_task(self._close_on_disconnect(receive))
        self._edge.streams.add(self._cursor)
        _STREAMS.inc()
        try:
            await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
            await _write(send, BEGIN)
            await self._send_events(send)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            _STREAMS.dec()
            self._edge.streams.discard(self._cursor)
            self._cursor.close()
            leaving.cancel()

    async def _send_events(self, send: Send) -> None:
        cursor = self._cursor
        try:
            await self._settle(send)
            while (events := await cursor.take(self._keepalive)) is not None:
                _EVENTS.inc(len(events))
                if events and cursor.must_tell_recovery():
                    await _write(send, RECOVERED)
                await _write(send, lines(events, cursor.next - len(events)) or KEEPALIVE)
            if cursor.complete:
                await _write(send, DONE)
            elif self._edge.draining:
                await _write(send, b"retry: %d\n\n" % random.randint(0, RETRY_MS))
        except ParleyError as error:
            if error.kind.code == "slow_reader":
                _SLOW.inc()
            # Within an accepted turn an error event would look like its end: the stream just ends, to be resumed.
            if not cursor.feed.events:
                await _write(send, _error_event(error))

    async def _settle(self, send: Send) -> None:
        if self._settling is None:
            return
        while not (await asyncio.wait([self._settling], timeout=self._keepalive))[0]:
            await _write(send, KEEPALIVE)
        self._settling.result()

    async def _close_on_disconnect(self, receive: Receive) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            while (await receive())["type"] != "http.disconnect":
                pass
            self._cursor.close()


async def _write(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})


def _error_event(error: ParleyError) -> bytes:
    return b"event: error\ndata: %b\n\n" % orjson.dumps({"type": "error", "sequence_number": 0, **envelope(error)})
