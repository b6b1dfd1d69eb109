"""Many responses read their routes through one consumer, each from its own offset."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.structs import ConsumerRecord

from parley.ids import Keys, new_response_id, new_session
from parley.settings import KafkaSettings
from producers.edge.feeds import Feed
from producers.edge.routes import RouteReader
from schemas.base import Route
from schemas.routes import Delta, Fence, Opened, Terminal, encode_route_record

USER = new_session()
LANE = TopicPartition("chat.tokens", 3)
ROUTE = Route(topic=LANE.topic, partition=LANE.partition, start=0)
BEGUN = (Opened(session=USER, user=USER, created_at=1, waiting=False), Fence(epoch=(1, 1, 1, 1), writer="w"))


class Log:
    """The consumer of one lane, which goes where it is sent."""

    def __init__(self) -> None:
        self.records: list[tuple[bytes, bytes]] = []
        self.assigned: list[TopicPartition] = []
        self.at = 0
        self._news = asyncio.Event()

    def append(self, feed: Feed, *events: Opened | Fence | Delta | Terminal) -> None:
        self.records.append((feed.key, encode_route_record(events)))
        self._news.set()

    async def start(self) -> None:
        """Nothing to connect to."""

    async def stop(self) -> None:
        """Nothing to leave."""

    def assign(self, wheres: Iterable[TopicPartition]) -> None:
        self.assigned = list(wheres)

    def seek(self, where: TopicPartition, offset: int) -> None:
        self.at = offset
        self._news.set()

    async def getmany(self, **_: Any) -> dict[TopicPartition, list[Any]]:
        while not self.assigned or self.at >= len(self.records):
            self._news.clear()
            await self._news.wait()
        offset = self.at
        self.at += 1
        key, value = self.records[offset]
        return {LANE: [ConsumerRecord(*LANE, offset, 1, 1, key, value, None, 0, 0, ())]}


@pytest.fixture
async def log() -> Log:
    return Log()


@pytest.fixture
async def routes(log: Log, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RouteReader]:
    monkeypatch.setattr("parley.log.follower.AIOKafkaConsumer", lambda **_: log)
    failures: list[BaseException] = []
    made = RouteReader(KafkaSettings(), "test")
    await made.start(failures.append)
    yield made
    await made.stop()
    assert failures == []


def feed() -> Feed:
    session = new_session()
    return Feed(new_response_id(Keys((b"k" * 32,)), USER, session, LANE.partition, 0, 1), USER)


def word(seq: int) -> Delta:
    return Delta(writer="w", seq=seq, text=f"{seq} ", tokens=1)


def end(seq: int) -> Terminal:
    return Terminal(writer="w", seq=seq, kind="completed", model="m", ended_at=1)


def text(one: Feed) -> str:
    return one.transcript.text


async def test_each_sees_its_records_once_wherever_the_others_begin(routes: RouteReader, log: Log) -> None:
    """The second begins before the first: the consumer goes back, and the first hears nothing twice."""
    early, late = feed(), feed()
    log.append(late, *BEGUN)
    log.append(late, word(0))
    log.append(early, *BEGUN)
    reading = [asyncio.create_task(routes.read(early, ROUTE, 2))]
    log.append(early, word(0))
    await asyncio.sleep(0.05)
    assert text(early) == "0 "
    reading.append(asyncio.create_task(routes.read(late, ROUTE, 0)))
    await asyncio.sleep(0.05)
    for one in (early, late):
        log.append(one, word(1), end(2))
    await asyncio.wait_for(asyncio.gather(*reading), 5)
    assert (text(early), text(late)) == ("0 1 ", "0 1 ")
    assert early.transcript.tokens == late.transcript.tokens == 2
    await asyncio.sleep(0.05)
    assert log.assigned == [], "nobody reads there any more"


async def test_what_breaks_one_leaves_the_others_alone(
    routes: RouteReader, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = feed(), feed()
    reading = [asyncio.create_task(routes.read(one, ROUTE, 0)) for one in (bad, good)]
    absorb = Feed.absorb

    def breaking(one: Feed, value: bytes | None, appended: int = 0) -> None:
        if one is bad:
            raise ZeroDivisionError
        absorb(one, value, appended)

    monkeypatch.setattr(Feed, "absorb", breaking)
    for one in (bad, good):
        log.append(one, *BEGUN, word(0), end(1))
    await asyncio.wait_for(asyncio.gather(*reading), 5)
    assert bad.error is not None
    assert bad.error.kind.code == "internal"
    assert text(good) == "0 "


async def test_who_stops_reading_lets_the_others_read_on(routes: RouteReader, log: Log) -> None:
    gone, stays = feed(), feed()
    reading = [asyncio.create_task(routes.read(one, ROUTE, 0)) for one in (gone, stays)]
    await asyncio.sleep(0.05)
    reading[0].cancel()
    log.append(gone, *BEGUN)
    log.append(stays, *BEGUN, word(0), end(1))
    await asyncio.wait_for(reading[1], 5)
    assert (gone.events, text(stays)) == ([], "0 ")
