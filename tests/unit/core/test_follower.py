"""A follower that is sent back reads from there, whatever comes while it is still reading elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import KafkaTimeoutError
from aiokafka.structs import ConsumerRecord

from parley.errors import ParleyError
from parley.log.follower import GATHERING_S, Follower
from parley.settings import KafkaSettings

WHERE = TopicPartition("chat.turns", 0)


class Log:
    """The consumer of one partition whose records come when a test says so."""

    def __init__(self) -> None:
        self.end = 0
        self._positions: dict[TopicPartition, int] = {}
        self._news = asyncio.Event()

    def append(self, records: int = 1) -> None:
        self.end += records
        self._news.set()

    async def start(self) -> None:
        """Nothing to connect to."""

    async def stop(self) -> None:
        """Nothing to leave."""

    def assign(self, wheres: Iterable[TopicPartition]) -> None:
        self._positions = dict.fromkeys(wheres, 0)

    def seek(self, where: TopicPartition, offset: int) -> None:
        self._positions[where] = offset
        self._news.set()

    async def getmany(self, **_: Any) -> dict[TopicPartition, list[Any]]:
        while not (found := self._found()):
            self._news.clear()
            await self._news.wait()
        self._positions[WHERE] = self.end
        return {WHERE: found}

    def _found(self) -> list[Any]:
        at = self._positions.get(WHERE, self.end)
        return [ConsumerRecord(*WHERE, offset, 1, 1, b"", b"", None, 0, 0, ()) for offset in range(at, self.end)]


@pytest.fixture
async def log() -> Log:
    return Log()


@pytest.fixture
async def follower(log: Log, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Follower]:
    monkeypatch.setattr("parley.log.follower.AIOKafkaConsumer", lambda **_: log)
    made = Follower(KafkaSettings(), "test")
    await made.start()
    yield made
    await made.stop()


async def test_who_follows_again_from_further_back_misses_nothing_between(follower: Follower, log: Log) -> None:
    """Side inputs that a second partition shares: verdicts before the first one's beginning are needed now."""
    seen: list[int] = []

    def handle(record: Any) -> None:
        seen.append(record.offset)

    log.append(7)
    follower.follow(*WHERE, 5, handle)
    await follower.reached(*WHERE, 6)
    follower.follow(*WHERE, 2, handle)
    log.append()  # before the consumer has been sent back
    await asyncio.wait_for(follower.reached(*WHERE, 7), 1)
    await asyncio.sleep(2 * GATHERING_S)
    assert seen == [5, 6, 2, 3, 4, 5, 6, 7]


async def test_who_follows_instead_of_another_begins_where_it_wants_to(follower: Follower, log: Log) -> None:
    """A takeover that is tried again: the fold of the first attempt had come further than the second one begins."""
    first: list[int] = []
    second: list[int] = []
    log.append(7)
    follower.follow(*WHERE, 0, lambda record: first.append(record.offset))
    await follower.reached(*WHERE, 6)
    follower.follow(*WHERE, 3, lambda record: second.append(record.offset))
    log.append()
    await asyncio.wait_for(follower.reached(*WHERE, 7), 1)
    await asyncio.sleep(2 * GATHERING_S)
    assert (first, second) == ([0, 1, 2, 3, 4, 5, 6], [3, 4, 5, 6, 7])


async def test_a_cancellation_of_the_client_s_own_does_not_come_out_of_its_end(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """aiokafka's fetcher awaits tasks that it has cancelled; a process ended without saying why."""

    async def stop() -> None:
        raise asyncio.CancelledError

    monkeypatch.setattr("parley.log.follower.AIOKafkaConsumer", lambda **_: log)
    monkeypatch.setattr(log, "stop", stop)
    follower = Follower(KafkaSettings(), "test")
    await follower.start()
    await follower.stop()


async def test_a_question_that_gets_no_answer_makes_it_look_for_the_leader(
    follower: Follower, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frozen leader would be asked again for minutes: nothing else on that connection finds out who replaced it."""
    looked: list[str] = []

    async def silent(*_: Any) -> None:
        raise KafkaTimeoutError

    monkeypatch.setattr(log, "end_offsets", silent, raising=False)
    monkeypatch.setattr(log, "beginning_offsets", silent, raising=False)
    client = SimpleNamespace(force_metadata_update=lambda: looked.append("looked"))
    monkeypatch.setattr(log, "_client", client, raising=False)
    with pytest.raises(ParleyError, match="bounds"):
        await follower.bounds([WHERE])
    with pytest.raises(ParleyError, match="offsets"):
        await follower.since({WHERE: 1})
    assert looked == ["looked", "looked"]
