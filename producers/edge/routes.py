"""The shared reader of the routes that are not this edge's lanes: session topics, and other edges' lanes.

One consumer for all of them, which comes to a route with its first response and leaves it with the last: when an edge
dies, its neighbours have all of its streams at once. A response begins at an offset of its own, whatever was read
before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from aiokafka import TopicPartition

from parley.log.follower import Follower
from parley.log.ranges import FETCH_WAIT_MS, Record
from parley.settings import KafkaSettings
from producers.edge.feeds import Feed, absorb
from schemas.base import Route


@dataclass(slots=True)
class _Reader:
    feed: Feed
    next: int
    """Offset of the record that comes next: the consumer may have gone back for somebody else."""
    over: asyncio.Event = field(default_factory=asyncio.Event)


class RouteReader:
    """Reads routes, each for as long as a response is read there."""

    def __init__(self, settings: KafkaSettings, name: str) -> None:
        # A route that joins waits for the fetch that is under way.
        self._follower = Follower(settings.model_copy(update={"fetch_max_wait_ms": FETCH_WAIT_MS}), name)
        self._readers: dict[TopicPartition, dict[bytes, _Reader]] = {}

    async def start(self, on_failure: Callable[[BaseException], None]) -> None:
        """Connect. `on_failure` is told when nothing is read any more.

        Raises:
            ParleyError: log_unavailable.
        """
        self._follower.on_failure = on_failure
        await self._follower.start()

    async def stop(self) -> None:
        """Disconnect."""
        await self._follower.stop()

    async def read(self, feed: Feed, route: Route, start: int) -> None:
        """Absorb what a route says of the feed's response from `start` on; returns when the feed is over."""
        where, reader = TopicPartition(route.topic, route.partition), _Reader(feed, start)
        readers = self._readers.setdefault(where, {})
        readers[feed.key] = reader
        self._follower.follow(route.topic, route.partition, start, self._handle)
        try:
            await reader.over.wait()
        finally:
            if readers.get(feed.key) is reader:
                del readers[feed.key]
            if not readers and self._readers.get(where) is readers:
                del self._readers[where]
                self._follower.unfollow(route.topic, route.partition)

    def _handle(self, record: Record) -> None:
        reader = self._readers.get(TopicPartition(record.topic, record.partition), {}).get(record.key)
        if reader is None or record.offset < reader.next:
            return
        reader.next = record.offset + 1
        absorb(reader.feed, record)
        reader.feed.notify()
        if reader.feed.over:
            reader.over.set()
