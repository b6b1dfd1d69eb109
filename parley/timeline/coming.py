"""What comes, one record after the other, no faster than it is shown."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from parley.errors import ParleyError
from parley.log.follower import Follower
from parley.log.ranges import Record
from parley.settings import KafkaSettings

ENOUGH = 1_000
"""Records that wait to be shown before reading stops; what is fetched together (500) may come on top."""


class Coming:
    """A follower whose records are taken one by one: it reads no more while many wait."""

    def __init__(self, follower: Follower) -> None:
        self._follower = follower
        self._waiting: asyncio.Queue[Record | BaseException] = asyncio.Queue()
        follower.on_failure = self._waiting.put_nowait

    def __len__(self) -> int:
        return self._waiting.qsize()

    def follow(self, topic: str, partition: int, start: int) -> None:
        """Take the records of a partition, too, from `start` on."""
        self._follower.follow(topic, partition, start, self._put)

    def _put(self, record: Record) -> None:
        self._waiting.put_nowait(record)
        if len(self) >= ENOUGH:
            self._follower.pause()

    async def next(self) -> Record:
        """The next one, once there is one.

        Raises:
            ParleyError: log_unavailable.
        """
        record = await self._waiting.get()
        if isinstance(record, BaseException):
            raise ParleyError("log_unavailable", f"following has ended: {record}") from record
        if len(self) < ENOUGH:
            self._follower.resume()
        return record


@asynccontextmanager
async def coming(settings: KafkaSettings) -> AsyncGenerator[Coming, None]:
    """A reader of what comes.

    Raises:
        ParleyError: log_unavailable.
    """
    follower = Follower(settings, "parley-log")
    reading = Coming(follower)
    await follower.start()
    try:
        yield reading
    finally:
        await follower.stop()
