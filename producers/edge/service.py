"""The parts of a running edge, started and stopped in order."""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

from aiokafka import TopicPartition

from parley.errors import ParleyError
from parley.log.admin import connect, ensure_session_topic
from parley.log.follower import Follower
from parley.log.partitions import partition_of
from parley.log.producer import Producer
from parley.log.ranges import RangeReader
from parley.settings import Settings
from parley.stores.accounts import Accounts
from parley.stores.postgres import Pool, borrowed, open_pool
from parley.stores.sessions import Sessions
from parley.topics import CAPACITY, TURNS
from producers.edge.acceptance import Author
from producers.edge.crowding import Crowding
from producers.edge.feeds import Cursor, Feeds, Patience
from producers.edge.kept import Kept
from producers.edge.lanes import LaneReader, lanes_of
from producers.edge.live import Live
from producers.edge.placing import Placing
from producers.edge.reading import Reading
from producers.edge.turns import Turns
from schemas.turns import SessionChanged, SessionDeleted
from schemas.wire import encode, headers

READER_BYTES = 8 << 20
"""Events of a running response that may wait for one slow client, in bytes; how many is a setting."""
LINGER_S = 5.0
"""A running response is read on for so long after its last client was lost: most come back soon, and to this edge."""
STALL_S = 1.0
"""A client that has read something within this time is not slow yet."""
FAREWELL = 0.5
"""The part of the drain time over which sockets are closed one after the other, so that they don't come back at once.
Event streams, whose clients seldom come back by themselves, end in what is left of it."""


class Guest(Protocol):
    """An open socket."""

    def send_elsewhere(self, within_s: float) -> None:
        """Close, telling the client to come back within some seconds."""


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
    live: Live
    turns: Turns
    draining: bool = False
    streams: set[Cursor] = field(default_factory=set)
    """What is being read over HTTP: event streams, and answers that are waited for."""
    sockets: set[Guest] = field(default_factory=set)
    """Open WebSockets."""
    following: BaseException | None = None
    """Why chat.turns is not read any more."""

    @property
    def patience(self) -> Patience:
        """How far a client may fall behind a running response."""
        return Patience(self.settings.edge.reader_queue, READER_BYTES, STALL_S)

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
        return Author(user.user_id, user.tier, key=secret)

    async def write_session(self, event: SessionChanged | SessionDeleted) -> tuple[int, int]:
        """Write what a user did to a session to its state log; gives (partition, offset).

        Raises:
            ParleyError: log_unavailable.
        """
        key = event.session.hex.encode()
        partition = partition_of(key, self.settings.topics.session_partitions)
        about = headers(event.type, session=event.session.hex)
        offset = await self.producer.send(TURNS, encode(event), key=key, partition=partition, headers=about)
        return partition, offset

    @property
    def broken(self) -> list[str]:
        """What only a restart of this process mends."""
        found = []
        if not self.lanes.ready:
            found.append("the token lanes are not being read")
        if self.following is not None:
            found.append("the state log is not being read")
        return found

    async def problems(self) -> list[str]:
        """What keeps this edge from serving; empty when it is ready."""
        found = ["shutting down"] if self.draining else []
        found += self.broken
        try:
            async with borrowed(self.pool) as connection:
                await connection.execute("SELECT 1")
        except ParleyError as error:
            found.append(error.message)
        return found

    async def drain(self) -> None:
        """Accept nothing new, and send everybody elsewhere; returns when all sockets have been closed.

        Sockets go one after the other. Event streams may go on for longer, and end one after the other too.
        """
        self.draining = True
        loop, drain_s = asyncio.get_running_loop(), self.settings.edge.drain_s
        for cursor in tuple(self.streams):
            loop.call_later(drain_s * random.uniform(FAREWELL, 1), cursor.close)
        loop.call_later(drain_s, self._end_streams)
        farewell_s = drain_s * FAREWELL
        began = loop.time()
        guests = list(self.sockets)
        random.shuffle(guests)
        for number, guest in enumerate(guests, start=1):
            guest.send_elsewhere(farewell_s)
            await asyncio.sleep(max(0.0, began + farewell_s * number / len(guests) - loop.time()))

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
    feeds = Feeds(LINGER_S)
    lanes = LaneReader(settings.kafka, lanes_of(instance, topics.lanes), feeds)
    ranges = RangeReader(settings.kafka, f"{instance}-ranges")
    producer = Producer(settings.kafka, instance, patience_s=settings.kafka.request_timeout_ms / 1000)
    kept = Kept(settings.messages)

    async def make_topic(session: UUID) -> bool:
        async with connect(settings.kafka) as admin:
            return await ensure_session_topic(admin, topics, session.hex)

    placing = Placing(settings.edge.route, topics, lanes, ranges, make_topic)
    follower = Follower(settings.kafka, f"{instance}-live")
    crowding = Crowding(settings.protocol)
    live = Live(follower, topics.session_partitions, settings.protocol, lambda *ends: turns.ended(*ends))
    reading = Reading(settings, feeds, ranges, placing, kept, live)
    turns = Turns(settings, producer, feeds, placing, reading, crowding)
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
        stack.push_async_callback(follower.stop)
        await follower.start()
        stack.push_async_callback(live.stop)
        await live.start()
        reports = TopicPartition(CAPACITY, 0)
        _, end = (await follower.bounds([reports]))[reports]
        follower.follow(reports.topic, reports.partition, end, crowding.handle)
        stack.push_async_callback(reading.stop)
        edge = Edge(settings, pool, Accounts(pool), Sessions(pool), kept, producer, lanes, placing, feeds, live, turns)
        follower.on_failure = lambda error: setattr(edge, "following", error)
        yield edge
