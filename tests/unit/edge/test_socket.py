"""One socket's rules that need no network: when it is closed, and when not."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import orjson
import pytest

from parley.errors import ParleyError
from parley.ids import Keys, new_response_id, new_session
from parley.settings import Settings
from producers.edge.acceptance import Author
from producers.edge.feeds import Feed, Patience
from producers.edge.socket import RATE_WINDOW_S, Socket, serve
from producers.edge.wire import EXTENSION
from schemas.routes import Fence, Opened, Terminal, encode_route_record

USER, SESSION = new_session(), new_session()
RESPONSE = new_response_id(Keys((b"k" * 32,)), USER, SESSION, 3, 10, 1)
CREATE = {"type": "websocket.receive", "text": '{"type": "response.create", "model": "synthetic", "input": "Hi"}'}
PING = {"type": "websocket.receive", "text": '{"type": "parley:ping"}'}


class Peer:
    """What comes out of the socket."""

    has_room = True
    listener: Socket | None = None

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.closed: tuple[int, str] | None = None

    @property
    def open(self) -> bool:
        return self.closed is None

    def send_texts(self, frames: Iterable[bytes]) -> None:
        self.heard += [orjson.loads(frame)["type"] for frame in frames]

    def hang_up(self, code: int, reason: str) -> None:
        self.closed = self.closed or (code, reason)


class Edge:
    """An edge whose log acknowledges a prompt when the test lets it."""

    def __init__(self, lifetime_s: float = 3600) -> None:
        plain = Settings()
        self.settings = plain.model_copy(
            update={"edge": plain.edge.model_copy(update={"socket_lifetime_s": lifetime_s})}
        )
        self.turns = self.live = self
        self.sockets: set[Socket] = set()
        self.draining = False
        self.patience = Patience(100, 1 << 20)
        self.acknowledged = asyncio.Event()
        self.acknowledged.set()
        self.refused: ParleyError | None = None
        self.feed = Feed(RESPONSE, USER)

    async def author(self, secret: str) -> Author:
        if self.refused is not None:
            raise self.refused
        return Author(USER, "free", key=secret)

    async def accept(self, *asked: object) -> Feed:
        await self.acknowledged.wait()
        self.feed.announce({})
        return self.feed

    def end(self) -> None:
        self.feed.absorb(
            encode_route_record(
                (
                    Opened(session=SESSION, user=USER, created_at=1, waiting=False),
                    Fence(epoch=(1, 1, 1, 1), writer="w"),
                    Terminal(writer="w", seq=0, kind="completed", model="m", ended_at=1),
                )
            )
        )
        self.feed.notify()


def joined(edge: Edge) -> tuple[Socket, Peer]:
    peer: Any = Peer()
    stage: Any = edge
    return Socket(stage, Author(USER, "free", key="pk_once"), peer, extended=True), peer


async def test_a_socket_that_gets_old_while_a_prompt_is_being_accepted_shows_that_answer_first() -> None:
    edge = Edge(lifetime_s=0.05)
    edge.acknowledged.clear()
    socket, peer = joined(edge)
    asking = asyncio.create_task(socket.hear(CREATE))
    await asyncio.sleep(0.1)
    assert (peer.heard, peer.closed) == ([], None)
    edge.acknowledged.set()
    await asking
    assert (peer.heard, peer.closed) == (["response.created"], None)
    edge.end()
    assert peer.heard == ["response.created", "response.in_progress", "response.completed", "error"]
    assert peer.closed == (1000, "websocket_connection_limit_reached")


@pytest.mark.parametrize(
    ("code", "closed"), [("invalid_api_key", (1008, "invalid_api_key")), ("store_unavailable", None)]
)
async def test_a_key_that_is_revoked_ends_its_socket_and_one_that_cannot_be_looked_up_does_not(
    code: str, closed: tuple[int, str] | None
) -> None:
    edge = Edge()
    socket, peer = joined(edge)
    edge.refused = ParleyError(code, "no")
    await socket.hear(PING)
    await asyncio.sleep(0)
    assert peer.closed is None
    await socket.hear(CREATE)
    await asyncio.sleep(0)
    assert peer.closed == closed
    assert "error" not in peer.heard  # it would look like the end of an accepted turn
    socket.leave()


def test_a_key_is_not_in_what_is_written_of_its_author() -> None:
    assert "pk_once" not in repr(Author(USER, "free", key="pk_once"))


async def test_of_a_flood_of_messages_no_more_is_heard_than_may_be_said() -> None:
    """Thousands of small messages come in one piece: going through them all would keep everybody else waiting."""
    edge: Any = Edge()
    peer = Peer()
    heard = 0

    async def receive() -> dict[str, str]:
        nonlocal heard
        heard += 1
        if heard > 2_000:
            return {"type": "websocket.disconnect"}
        return PING if heard > 1 else {"type": "websocket.connect"}

    async def send(message: object) -> None:
        pass

    scope: Any = {
        "type": "websocket",
        "path": "/v1/responses",
        "headers": [],
        "subprotocols": ["parley.v1", "parley.key.pk_once"],
        "extensions": {EXTENSION: peer},
    }
    async with asyncio.timeout(5):
        await serve(edge, scope, receive, send)
    assert peer.closed == (1008, "rate_limit_exceeded")
    assert heard < 100 + edge.settings.edge.messages_per_second * RATE_WINDOW_S
