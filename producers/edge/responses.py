"""/v1/responses over HTTP: create, show, resume, cancel; and /v1/models."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from parley.errors import ParleyError
from producers.edge import metrics
from producers.edge.acceptance import Author, check_key, traced
from producers.edge.feeds import Cursor
from producers.edge.problems import parse, parse_json
from producers.edge.resource import Json
from producers.edge.service import Edge
from producers.edge.sse import EventStream
from schemas.api import CreateResponse

SETTLE_S = 1.0
"""How long a stream's headers wait for the word on an idempotency key, so that a conflict can still be a 422."""


def json_response(content: Json, status: int = 200) -> Response:
    """A JSON body."""
    return Response(orjson.dumps(content), status, media_type="application/json")


async def read_body(request: Request, edge: Edge, *, may_be_empty: bool = False) -> Json:
    """The JSON object of a request.

    Raises:
        ParleyError: request_too_large; invalid_json.
    """
    limit = edge.settings.edge.max_message_bytes
    too_large = ParleyError("request_too_large", f"The body is larger than {limit:,} bytes.")
    if int(request.headers.get("content-length") or 0) > limit:
        raise too_large
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            raise too_large
        chunks.append(chunk)
    body = b"".join(chunks)
    return {} if may_be_empty and not body else parse_json(body)


async def create(request: Request) -> ASGIApp:
    """POST /v1/responses."""
    edge: Edge = request.app.state.edge
    author = await edge.authenticate(request.headers.get("authorization"))
    author = traced(author, request.headers.get("traceparent"))
    body = await read_body(request, edge)
    if edge.draining:
        raise ParleyError("shutting_down", "This server is shutting down; try again.")
    try:
        asked = parse(CreateResponse, body)
        key = request.headers.get("idempotency-key") or asked.idempotency_key
        cursor = await _accepted(edge, asked, author, key, body)
    except ParleyError as error:
        metrics.PROMPTS.labels(error.kind.code).inc()
        raise
    metrics.PROMPTS.labels("accepted").inc()
    settling = edge.turns.settle(author, cursor) if key is not None else None
    if asked.stream:
        return await _stream(edge, cursor, settling)
    return await _whole(edge, cursor, settling, bool(asked.background))


async def show(request: Request) -> ASGIApp:
    """GET /v1/responses/{id}, with `stream=true` all its events, or those after `starting_after`."""
    edge: Edge = request.app.state.edge
    author = await edge.authenticate(request.headers.get("authorization"))
    response = request.path_params["response"]
    if request.query_params.get("stream") not in ("true", "1", "True"):
        return json_response(await edge.turns.show(author, response))
    # Who reconnects by the standard sends the same address again, and how far it came in the header.
    after = _number(request.headers.get("last-event-id") or request.query_params.get("starting_after"))
    feed = edge.turns.watch(author, response)
    return EventStream(edge, Cursor(feed, after + 1, edge.patience))


async def cancel(request: Request) -> ASGIApp:
    """POST /v1/responses/{id}/cancel."""
    edge: Edge = request.app.state.edge
    author = await edge.authenticate(request.headers.get("authorization"))
    return json_response(await edge.turns.cancel(author, request.path_params["response"]))


async def models(request: Request) -> ASGIApp:
    """GET /v1/models."""
    edge: Edge = request.app.state.edge
    await edge.authenticate(request.headers.get("authorization"))
    known = [
        {"id": name, "object": "model", "created": 0, "owned_by": "parley"} for name in edge.settings.topics.models
    ]
    return json_response({"object": "list", "data": known})


async def _accepted(edge: Edge, asked: CreateResponse, author: Author, key: str | None, body: Json) -> Cursor:
    feed = await edge.turns.accept(asked, author, check_key(key) if key is not None else None, body)
    return Cursor(feed, 0, edge.patience)


async def _stream(edge: Edge, cursor: Cursor, settling: Coroutine[Any, Any, None] | None) -> ASGIApp:
    if settling is None:
        return EventStream(edge, cursor)
    task = asyncio.ensure_future(settling)
    done, _ = await asyncio.wait([task], timeout=SETTLE_S)
    if done:
        _checked(task, cursor)
        return EventStream(edge, cursor)
    return EventStream(edge, cursor, task)


async def _whole(edge: Edge, cursor: Cursor, settling: Coroutine[Any, Any, None] | None, background: bool) -> ASGIApp:
    """The response when it has ended, or in the background as soon as it is accepted.

    An edge that ends meanwhile, or can't read on, answers with the response as it is: its id is what the client needs
    to ask again. An error would have it send the accepted prompt once more.
    """
    edge.streams.add(cursor)
    try:
        if settling is not None:
            await settling
        with contextlib.suppress(ParleyError):  # it is the feed's
            while not background and await cursor.take(timeout=3600) is not None:
                pass
        shown = cursor.feed.projection.snapshot()
        if shown is None:
            raise cursor.feed.error or ParleyError("shutting_down", "This server is shutting down; try again.")
        return json_response(shown | {"status": "queued"} if background and shown["status"] == "in_progress" else shown)
    finally:
        edge.streams.discard(cursor)
        cursor.close()


def _checked(task: asyncio.Future[None], cursor: Cursor) -> None:
    if task.exception() is not None:
        cursor.close()
    task.result()


def _number(text: str | None) -> int:
    """A sequence number from outside; -1: none was given.

    Raises:
        ParleyError: invalid_request.
    """
    if text is None:
        return -1
    if not text.isdecimal() or len(text) > 9:
        raise ParleyError("invalid_request", "starting_after must be a sequence number.", param="starting_after")
    return int(text)


ROUTES = [
    Route("/v1/responses", create, methods=["POST"]),
    Route("/v1/responses/{response}", show, methods=["GET"]),
    Route("/v1/responses/{response}/cancel", cancel, methods=["POST"]),
    Route("/v1/models", models, methods=["GET"]),
]
