"""Following: what comes faster than it is shown waits in Kafka, not in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.structs import ConsumerRecord

from parley.errors import ParleyError
from parley.log.follower import Follower
from parley.log.ranges import Record
from parley.settings import KafkaSettings
from parley.timeline.coming import ENOUGH, Coming

WHERE = TopicPartition("chat.turns", 3)
BATCH = 500


class Endless:
    """A consumer of a log that always has more."""

    def __init__(self, **_: Any) -> None:
        self.position = 0

    def assign(self, wheres: list[TopicPartition]) -> None:
        assert wheres == [WHERE]

    def seek(self, where: TopicPartition, offset: int) -> None:
        self.position = offset

    async def getmany(self, **_: Any) -> dict[TopicPartition, list[Record]]:
        await asyncio.sleep(0)
        offsets = range(self.position, self.position + BATCH)
        self.position += BATCH
        return {WHERE: [ConsumerRecord(*WHERE, n, 0, 1, None, b"{}", None, 0, 2, ()) for n in offsets]}

    async def start(self) -> None:
        """It is there."""

    async def stop(self) -> None:
        """It stays."""


@pytest.fixture
async def follower(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Follower]:
    monkeypatch.setattr("parley.log.follower.AIOKafkaConsumer", Endless)
    follower = Follower(KafkaSettings(), "test")
    await follower.start()
    yield follower
    await follower.stop()


async def settled(coming: Coming) -> int:
    """How many wait when no more come."""
    before = -1
    while (now := len(coming)) != before or not now:
        before = now
        await asyncio.sleep(0.05)
    return now


async def test_reading_stops_while_many_wait_and_goes_on_when_they_are_taken(follower: Follower) -> None:
    coming = Coming(follower)
    coming.follow(*WHERE, 7)
    async with asyncio.timeout(20):
        assert ENOUGH <= await settled(coming) <= ENOUGH + BATCH
        offsets = [(await coming.next()).offset for _ in range(5 * ENOUGH)]
        assert offsets == list(range(7, 7 + 5 * ENOUGH)), "none is missed"
        assert await settled(coming) <= ENOUGH + BATCH


async def test_a_log_that_cannot_be_read_any_more_ends_it(follower: Follower) -> None:
    coming = Coming(follower)
    follower.on_failure(OSError("gone"))
    with pytest.raises(ParleyError, match="following has ended: gone"):
        await coming.next()
