"""The edge's HTTP API, as far as a chat needs it."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import httpx

from clients.terminal.conversation import Problem

MAX_BYTES = 1_048_576
"""What one message may have at most (PARLEY_EDGE__MAX_MESSAGE_BYTES)."""
TIMEOUT_S = 20.0
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class Trouble(Exception):
    """The edge did not do what was asked; the problem says why in words for the user."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


@dataclass(frozen=True, slots=True)
class Place:
    """Where an edge is, and who asks."""

    url: str
    key: str

    @property
    def socket_url(self) -> str:
        """Of its WebSocket."""
        return self.url.replace("http", "ws", 1) + "/v1/responses"

    @property
    def headers(self) -> dict[str, str]:
        """The user's key."""
        return {"authorization": f"Bearer {self.key}"}

    @property
    def near(self) -> bool:
        """It is on this machine: no proxy leads there."""
        return urlsplit(self.url).hostname in _LOOPBACK

    def unreachable(self) -> Problem:
        """Nobody answers there."""
        return Problem(
            "unreachable", f"no edge answers at {self.url}: start one with `parley up`, or name another with --url"
        )


def wrong_key() -> Problem:
    """401, in words."""
    return Problem(
        "invalid_api_key", "the API key is not valid: give another with --key or PARLEY_KEY", retryable=False
    )


class Api:
    """An async context manager.

    Every call raises Trouble.
    """

    def __init__(self, place: Place) -> None:
        self._place = place
        self._http = httpx.AsyncClient(
            base_url=place.url, headers=place.headers, timeout=TIMEOUT_S, trust_env=not place.near
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def models(self) -> list[str]:
        """The models that a request may name."""
        return [model["id"] for model in (await self._call("GET", "/v1/models"))["data"]]

    async def conversations(self, limit: int) -> list[dict[str, Any]]:
        """The most recently used conversations."""
        found: list[dict[str, Any]] = (await self._call("GET", f"/v1/conversations?limit={limit}"))["data"]
        return found

    async def open_conversation(self) -> str:
        """A new conversation's id."""
        return str((await self._call("POST", "/v1/conversations", {}))["id"])

    async def items(self, conversation: str, limit: int) -> tuple[list[dict[str, Any]], bool]:
        """The newest items of a conversation in order, and whether there are earlier ones."""
        page = await self._call("GET", f"/v1/conversations/{conversation}/items?order=desc&limit={limit}")
        return page["data"][::-1], page["has_more"]

    async def response(self, response: str) -> dict[str, Any]:
        """A response as it is now."""
        return await self._call("GET", f"/v1/responses/{response}")

    async def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        try:
            answer = await self._http.request(method, path, json=body)
        except httpx.TransportError:
            raise Trouble(self._place.unreachable()) from None
        if answer.status_code == 401:
            raise Trouble(wrong_key())
        try:
            said: dict[str, Any] = answer.json()
        except ValueError:
            raise Trouble(Problem("internal", f"{self._place.url} is no edge of Parley", retryable=False)) from None
        if answer.is_error:
            error = said.get("error") or {}
            message = error.get("message") or f"the edge said {answer.status_code}"
            raise Trouble(Problem(error.get("code") or "internal", message, answer.status_code >= 500))
        return said
