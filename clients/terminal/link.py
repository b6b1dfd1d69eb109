"""Answers over one WebSocket, one after the other, each to its end whatever happens to the socket.

A lost socket is opened again after a pause that doubles up to a limit and is drawn at random, so that many clients do
not come back at the same moment; an edge that ends says itself when each of them is to come. An answer that was
accepted is resumed after its last event; a request without a word on its acceptance is sent again under its
idempotency key, so it runs once.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
from collections.abc import AsyncIterator
from typing import Any

import orjson
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.typing import Subprotocol

from clients.terminal.api import Place, Trouble, wrong_key
from clients.terminal.conversation import Answer, Gap, Problem

FIRST_PAUSE_S = 0.3
LONGEST_PAUSE_S = 10.0
OPEN_TIMEOUT_S = 10.0
PING_S = 10.0
"""A socket that answers no ping for so long is dead."""
RETRY_AFTER = re.compile(r"retry_after_ms=(\d{1,5})$")
"""In the reason of an edge that closes because it ends: the client's turn to come back."""
RESUME_TRIES = 5
"""An edge that has the answer but can't read it now is asked this often."""
PASSING = frozenset(
    (
        "internal",
        "log_unavailable",
        "overloaded",
        "rate_limit_exceeded",
        "shutting_down",
        "slow_reader",
        "store_unavailable",
    )
)
"""Errors about the socket or the moment, not about the answer."""
BETWEEN_TURNS = "websocket_connection_limit_reached"
"""The socket closes next; what was just sent goes out again on another."""


class Lost:
    """Nothing is heard for now; the link comes back by itself."""


LOST = Lost()


class Link:
    """The way to an edge's answers. One answer at a time."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._socket: ClientConnection | None = None
        self._refusals = 0

    async def follow(self, answer: Answer) -> AsyncIterator[str | Lost]:
        """Ask for an answer, or go on with one that runs, up to its end; gives the text that is to be shown.

        An empty string: its state has changed. LOST: the socket is gone, and is being opened again.

        Raises:
            Trouble: the key is not valid any more.
        """
        failures = 0
        while not answer.state.ended:
            told_s: float | None = None
            try:
                socket = await self._open()
                await self._begin(socket, answer)
                async for frame in socket:
                    failures = 0
                    shown = self._hear(answer, orjson.loads(frame))
                    if answer.stopping and answer.last == 0:
                        await self._cancel(answer)
                    if shown is not None:
                        yield shown
                    if answer.state.ended:
                        return
            except ConnectionClosed as closed:
                told_s = _told(closed)
            except (InvalidHandshake, OSError, TimeoutError, Gap):
                pass
            await self.close()
            yield LOST
            failures = max(failures + 1, self._refusals)
            longest = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**failures)
            await asyncio.sleep(longest * random.uniform(0.5, 1) if told_s is None else told_s)

    async def stop(self, answer: Answer) -> None:
        """Have an answer end with what it has. Until the edge knows of it, the wish is kept."""
        answer.stopping = True
        with contextlib.suppress(ConnectionClosed):
            await self._cancel(answer)

    async def close(self) -> None:
        """Hear no more; answers go on without us."""
        socket, self._socket = self._socket, None
        if socket is not None:
            await socket.close()

    async def _open(self) -> ClientConnection:
        if self._socket is None:
            try:
                self._socket = await connect(
                    self._place.socket_url,
                    subprotocols=[Subprotocol("parley.v1")],
                    additional_headers=self._place.headers,
                    compression=None,
                    max_size=None,
                    open_timeout=OPEN_TIMEOUT_S,
                    ping_interval=PING_S,
                    ping_timeout=PING_S,
                    close_timeout=1,
                    proxy=None if self._place.near else True,
                )
            except InvalidStatus as error:
                if error.response.status_code == 401:
                    raise Trouble(wrong_key()) from None
                raise
        return self._socket

    async def _begin(self, socket: ClientConnection, answer: Answer) -> None:
        """Say what the answer needs: to be asked for, or to go on."""
        if answer.id is None:
            await self._say(socket, {"type": "response.create", **(answer.request or {})})
            return
        await self._say(socket, {"type": "parley:resume", "response_id": answer.id, "starting_after": answer.last})
        if answer.stopping:
            await self._cancel(answer)

    def _hear(self, answer: Answer, event: dict[str, Any]) -> str | None:
        if event["type"] == "error":
            return self._refused(answer, event)
        if event["type"].startswith("parley:"):
            return None
        shown = answer.apply(event)
        self._refusals = 0
        return shown

    def _refused(self, answer: Answer, event: dict[str, Any]) -> str | None:
        error, status = event["error"], event["status"]
        if error["code"] == BETWEEN_TURNS:
            return None
        passing = error["code"] in PASSING
        if passing and answer.id is not None and self._refusals < RESUME_TRIES:
            self._refusals += 1
            raise Gap
        answer.fail(Problem(error["code"], error["message"], passing or status == 429 or status >= 500))
        return ""

    async def _cancel(self, answer: Answer) -> None:
        if self._socket is not None and answer.id is not None:
            await self._say(self._socket, {"type": "parley:cancel", "response_id": answer.id})

    @staticmethod
    async def _say(socket: ClientConnection, message: dict[str, Any]) -> None:
        await socket.send(orjson.dumps(message), text=True)


def _told(closed: ConnectionClosed) -> float | None:
    """After how many seconds the edge wants this client back, if it has said so."""
    told = RETRY_AFTER.search(closed.rcvd.reason) if closed.rcvd is not None else None
    return int(told[1]) / 1000 if told is not None else None
