"""The ASGI application: HTTP through Starlette, WebSockets past it, errors in one envelope."""

from __future__ import annotations

import logging
from pathlib import Path

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from parley.errors import ParleyError
from producers.edge import conversations, metrics, responses, socket
from producers.edge.problems import REQUEST_ID, envelope, headers, new_request_id
from producers.edge.responses import json_response
from producers.edge.service import Edge

log = logging.getLogger(__name__)

WEB_PAGE = Path(__file__).resolve().parents[2] / "clients" / "web"
"""The page that is served at `/`, if it is there."""
_HTTP_CODES = {404: "not_found", 413: "request_too_large"}


def build_app(edge: Edge, web_page: Path = WEB_PAGE) -> ASGIApp:
    """The application over a running edge."""
    routes: list[BaseRoute] = [
        *responses.ROUTES,
        *conversations.ROUTES,
        Route("/health/live", live),
        Route("/health/ready", ready),
        Route("/metrics", show_metrics),
    ]
    if web_page.is_dir():
        routes.append(Mount("/", Page(directory=web_page, html=True)))
    handlers = {
        ParleyError: _on_error,
        HTTPException: _on_http_error,
        ClientDisconnect: _on_leaving,
        Exception: _on_bug,
    }
    http = Starlette(routes=routes, exception_handlers=handlers)  # type: ignore[arg-type]
    http.state.edge = edge

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await socket.serve(edge, scope, receive, send)
        elif scope["type"] == "http":
            await http(scope, receive, _named_answers(scope, send))

    return app


class Page(StaticFiles):
    """The page's files. Browsers ask each time whether they have changed: they belong together, as one version."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """A file."""
        found = await super().get_response(path, scope)
        found.headers["cache-control"] = "no-cache"
        return found


def _named_answers(scope: Scope, send: Send) -> Send:
    """Give the answer a request id; keep browsers from guessing types and from showing it within other pages."""
    request_id = scope.setdefault("state", {})["request_id"] = new_request_id()

    async def send_named(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [
                *message.get("headers", ()),
                (REQUEST_ID.encode(), request_id.encode()),
                (b"x-content-type-options", b"nosniff"),
                (b"content-security-policy", b"frame-ancestors 'none'"),
            ]
        await send(message)

    return send_named


async def live(request: Request) -> Response:
    """GET /health/live: the process turns its loop, and nothing has ended in it that only a restart begins again."""
    edge: Edge = request.app.state.edge
    return Response("; ".join(edge.broken) or "ok", 503 if edge.broken else 200, media_type="text/plain")


async def ready(request: Request) -> Response:
    """GET /health/ready: new work may come here."""
    edge: Edge = request.app.state.edge
    problems = await edge.problems()
    return json_response({"ready": not problems, "problems": problems}, 503 if problems else 200)


async def show_metrics(request: Request) -> Response:
    """GET /metrics, for Prometheus."""
    metrics.FEEDS.set(len(request.app.state.edge.feeds))
    return Response(generate_latest(), headers={"content-type": CONTENT_TYPE_LATEST})


async def _on_error(request: Request, error: ParleyError) -> Response:
    if error.kind.http >= 500:
        log.warning("%s %s: %s: %s", request.state.request_id, request.url.path, error.kind.code, error.message)
    answer = json_response(envelope(error), error.kind.http)
    answer.headers.update(headers(error))
    return answer


async def _on_http_error(request: Request, error: HTTPException) -> Response:
    """What Starlette refuses by itself: unknown paths and methods."""
    code = _HTTP_CODES.get(error.status_code, "invalid_request")
    known = ParleyError(code, f"{request.method} {request.url.path}: {error.detail}.")
    answer = json_response(envelope(known), error.status_code)
    answer.headers.update(error.headers or {})
    return answer


async def _on_leaving(request: Request, error: ClientDisconnect) -> Response:
    """The client left while it sent its request: nobody reads this."""
    return Response(status_code=400)


async def _on_bug(request: Request, error: Exception) -> Response:
    """Anything that is not of the taxonomy. Starlette raises it again, so that the log has where it came from."""
    known = ParleyError("internal", f"Something went wrong here; it is in the log as {request.state.request_id}.")
    return json_response(envelope(known), known.kind.http)
