"""A WebSocket user, as tests need one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import websockets

from tests.e2e.conftest import System


@dataclass
class Heard:
    """What one turn's events said."""

    events: list[dict[str, Any]] = field(default_factory=list)

    @property
    def types(self) -> list[str]:
        return [event["type"] for event in self.events]

    @property
    def text(self) -> str:
        return "".join(e["delta"] for e in self.events if e["type"] == "response.output_text.delta")

    @property
    def last(self) -> dict[str, Any]:
        return self.events[-1]

    @property
    def response(self) -> dict[str, Any]:
        found: dict[str, Any] = self.last["response"]
        return found


TERMINALS = ("response.completed", "response.incomplete", "response.failed")


class Chat:
    """One socket."""

    def __init__(self, socket: websockets.ClientConnection) -> None:
        self.socket = socket

    async def send(self, **message: Any) -> None:
        await self.socket.send(json.dumps(message))

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """Events of the turn under way, up to its end."""
        async for frame in self.socket:
            event = json.loads(frame)
            yield event
            if event["type"] in TERMINALS or event["type"] == "error":
                return

    async def say(self, text: str, **more: Any) -> Heard:
        """One turn."""
        await self.send(type="response.create", input=text, **more)
        heard = Heard()
        async for event in self.events():
            heard.events.append(event)
        return heard


@asynccontextmanager
async def chatting(system: System, subprotocol: bool = True) -> AsyncIterator[Chat]:
    protocols = [websockets.Subprotocol("parley.v1")] if subprotocol else None
    async with websockets.connect(
        system.ws_url, additional_headers=system.headers, subprotocols=protocols, compression=None
    ) as socket:
        yield Chat(socket)


async def kept(client: httpx.AsyncClient, conversation: str, count: int) -> list[dict[str, Any]]:
    """The items of a conversation in order, once the views have come so far."""
    async with asyncio.timeout(30):
        while True:
            answer = await client.get(f"/v1/conversations/{conversation}/items?limit=100&order=asc")
            items: list[dict[str, Any]] = answer.json()["data"]
            if len(items) >= count and items[-1]["status"] != "in_progress":
                return items
            await asyncio.sleep(0.1)


def texts(item: dict[str, Any]) -> list[str]:
    return [part["text"] for part in item["content"]]
