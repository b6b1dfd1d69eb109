"""Who may open a WebSocket: the Origin of the page that asks, and the key of the user.

Browsers can't set headers on a WebSocket, so a key may come as a subprotocol, `parley.key.<key>`, beside `parley.v1`,
which also asks for our own messages. A key never comes in the address, where proxies would log it.
"""

from __future__ import annotations

import contextlib
from urllib.parse import urlsplit

import orjson
from starlette.datastructures import Headers
from starlette.types import Scope, Send

from parley.errors import ParleyError
from producers.edge.acceptance import Author, traced
from producers.edge.problems import envelope, headers
from producers.edge.service import Edge

SUBPROTOCOL = "parley.v1"
KEY_SUBPROTOCOL = "parley.key."


async def admit(edge: Edge, scope: Scope) -> tuple[Author, str | None]:
    """The author, and the subprotocol that was agreed on.

    Raises:
        ParleyError: not_found, origin_not_allowed, shutting_down, invalid_api_key, store_unavailable.
    """
    if scope["path"] != "/v1/responses":
        raise ParleyError("not_found", "WebSockets are served at /v1/responses.")
    if edge.draining:
        raise ParleyError("shutting_down", "This server is shutting down; connect again.")
    sent = Headers(scope=scope)
    check_origin(sent.get("origin"), sent.get("host"), edge.settings.edge.origins)
    offered: list[str] = scope.get("subprotocols") or []
    key = next((name[len(KEY_SUBPROTOCOL) :] for name in offered if name.startswith(KEY_SUBPROTOCOL)), None)
    author = await (edge.author(key) if key is not None else edge.authenticate(sent.get("authorization")))
    return traced(author, sent.get("traceparent")), SUBPROTOCOL if SUBPROTOCOL in offered else None


def check_origin(origin: str | None, host: str | None, allowed: tuple[str, ...]) -> None:
    """Pages of this edge's own origin, of the configured ones, and whatever is no browser (no Origin) may connect.

    Raises:
        ParleyError: origin_not_allowed.
    """
    if origin is None or "*" in allowed or origin in allowed:
        return
    with contextlib.suppress(ValueError):  # it is no address
        if host is not None and urlsplit(origin).netloc.lower() == host.lower():
            return
    raise ParleyError("origin_not_allowed", f"Pages of {origin[:200]} may not connect here.")


async def refuse(send: Send, error: ParleyError) -> None:
    """Answer a handshake with an HTTP error instead of a socket."""
    body = orjson.dumps(envelope(error))
    pairs = [(name.encode(), value.encode()) for name, value in headers(error).items()]
    pairs += [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "websocket.http.response.start", "status": error.kind.http, "headers": pairs})
    await send({"type": "websocket.http.response.body", "body": body})
