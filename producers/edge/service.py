"""The parts of a running edge, started and stopped in order."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from parley.errors import ParleyError
from parley.log.admin import connect, ensure_session_topic
from parley.log.producer import Producer
from parley.log.ranges import RangeReader
from parley.settings import Settings
from parley.stores.accounts import Accounts
from parley.stores.postgres import Pool, borrowed, open_pool
from parley.stores.sessions import Sessions
from parley.topics import TURNS
from producers.edge.acceptance import Author
from producers.edge.feeds import Cursor, Feeds
from producers.edge.kept import Kept
from producers.edge.lanes import LaneReader, lanes_of
from producers.edge.placing import Placing
from producers.edge.turns import Turns
from schemas.turns import SessionChanged, SessionDeleted
from schemas.wire import encode, headers


@dataclass
class Edge:
    """What HTTP and WebSocket share."""

    settings: Settings
    pool: Pool
    accounts: Accounts
    sessions: Sessions
    kept: Kept
    producer: Producer
    lanes: LaneReader
    placing: Placing
    feeds: Feeds
    turns: Turns
    draining: bool = False
    streams: set[Cursor] = field(default_factory=set)
    """Open event streams over HTTP."""
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something that nobody waits for."""
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def authenticate(self, authorization: str | None) -> Author:
        """The author of a request, by its Authorization header.

        Raises:
            ParleyError: invalid_api_key; store_unavailable.
        """
        scheme, _, secret = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not secret:
            raise ParleyError("invalid_api_key", "Send your API key in the header `Authorization: Bearer pk_…`.")
        return await self.author(secret.strip())

    async def author(self, secret: str) -> Author:
        """The author of a request, by the API key."""
        user = await self.accounts.authenticate(secret)
        if user is None:
            raise ParleyError("invalid_api_key", "This API key is unknown or was revoked.")
        return Author(user.user_id, user.tier)

    async def write_session(self, event: SessionChanged | SessionDeleted) -> None:
        """Write what a user did to a session to its state log.

        Raises:
            ParleyError: log_unavailable.
        """
        await self.producer.send_keyed(
            TURNS,
            encode(event),
            key=event.session.hex.encode(),
            count=self.settings.topics.session_partitions,
            headers=headers(event.type, session=event.session.hex),
        )

    async def problems(self) -> list[str]:
        """What keeps this edge from serving; empty when it is ready."""
        found = []
        if self.draining:
            found.append("shutting down")
        if not self.lanes.ready:
            found.append("the token lanes are not being read")
        try:
            async with borrowed(self.pool) as connection:
                await connection.execute("SELECT 1")
        except ParleyError as error:
            found.append(error.message)
        return found

    def drain(self) -> None:
        """Accept nothing new; streams that are open may go on for a while, then they are sent to resume elsewhere."""
        self.draining = True
        asyncio.get_running_loop().call_later(self.settings.edge.drain_s, self._end_streams)

    def _end_streams(self) -> None:
        for cursor in tuple(self.streams):
            cursor.close()


@contextlib.asynccontextmanager
async def open_edge(settings: Settings) -> AsyncIterator[Edge]:
    """A running edge.

    Raises:
        ParleyError: log_unavailable: Kafka does not answer, or lacks the topics.
        ValueError: a setting is missing.
    """
    instance = settings.instance or f"edge-{secrets.token_hex(4)}"
    topics = settings.topics
    assert settings.keys
    feeds = Feeds()
    lanes = LaneReader(settings.kafka, lanes_of(instance, topics.lanes), feeds)
    ranges = RangeReader(settings.kafka, f"{instance}-ranges")
    producer = Producer(settings.kafka, instance)
    kept = Kept(settings.messages)

    async def make_topic(session: UUID) -> bool:
        async with connect(settings.kafka) as admin:
            return await ensure_session_topic(admin, topics, session.hex)

    placing = Placing(settings.edge.route, topics, lanes, ranges, make_topic)
    turns = Turns(settings, producer, feeds, ranges, placing, kept)
    async with contextlib.AsyncExitStack() as stack:
        pool = await stack.enter_async_context(open_pool(settings.postgres))
        stack.push_async_callback(kept.close)
        warming = asyncio.create_task(kept.warm_up())
        stack.push_async_callback(asyncio.wait, [warming])
        stack.push_async_callback(producer.stop)
        await producer.start()
        stack.push_async_callback(ranges.stop)
        stack.push_async_callback(lanes.stop)
        await lanes.start()
        placing.start()
        stack.push_async_callback(placing.stop)
        stack.push_async_callback(turns.stop)
        yield Edge(settings, pool, Accounts(pool), Sessions(pool), kept, producer, lanes, placing, feeds, turns)
