"""The lanes' reader when brokers fail, or a record does: faults that can't be made on demand."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from aiokafka import TopicPartition
from aiokafka.errors import KafkaTimeoutError, OffsetOutOfRangeError

from parley.ids import Keys, new_response_id, new_session
from parley.settings import KafkaSettings
from parley.topics import TOKENS
from producers.edge.feeds import Feed, Feeds
from producers.edge.lanes import LaneReader
from schemas.routes import Fence, Opened, encode_route_record

USER, SESSION = new_session(), new_session()
LANE = TopicPartition(TOKENS, 3)
OPENED = Opened(session=SESSION, user=USER, created_at=1, waiting=False)


class Broker:
    """A consumer that says these things, one a poll, and then nothing; `ends` is what it says of the lane's end."""

    def __init__(self, polls: list[Any], ends: list[Any]) -> None:
        self.polls, self.ends, self.sought = polls, ends, list[int]()

    async def getmany(self, *, timeout_ms: int) -> Any:
        if not self.polls:
            await asyncio.Event().wait()
        return said(self.polls.pop(0))

    async def end_offsets(self, partitions: list[TopicPartition]) -> Any:
        return {LANE: said(self.ends.pop(0))}

    def seek(self, where: TopicPartition, offset: int) -> None:
        self.sought.append(offset)


def said(what: Any) -> Any:
    if isinstance(what, Exception):
        raise what
    return what


def records(*pairs: tuple[Feed, bytes]) -> Any:
    return {
        LANE: [
            SimpleNamespace(key=feed.key, value=value, timestamp=1, offset=n) for n, (feed, value) in enumerate(pairs)
        ]
    }


async def reading(feeds: Feeds, broker: Any) -> bool:
    """Let the reader hear all that the broker has to say; gives whether it reads on."""
    reader = LaneReader(KafkaSettings(retry_backoff_ms=1), [LANE.partition], feeds)
    task = asyncio.create_task(reader._read(broker))
    await asyncio.wait([task], timeout=0.2)
    reads_on = not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return reads_on


def opened(feeds: Feeds, n: int) -> Feed:
    return feeds.open(new_response_id(Keys((b"k" * 32,)), USER, SESSION, LANE.partition, n, 1), USER)


async def test_a_lost_place_is_looked_for_until_the_brokers_tell_the_end() -> None:
    feeds = Feeds()
    feed = opened(feeds, 0)
    gone = OffsetOutOfRangeError({LANE: 7})
    broker = Broker([gone, gone], ends=[KafkaTimeoutError(), 90])
    assert await reading(feeds, broker)
    assert broker.sought == [90]
    assert feed.error is not None
    assert feed.error.kind.code == "log_unavailable"


async def test_a_record_that_cannot_be_folded_ends_its_own_turn_s_stream_alone() -> None:
    """No reader can show a number that JSON's writers refuse."""
    feeds = Feeds()
    broken, fine = opened(feeds, 0), opened(feeds, 1)
    bad = encode_route_record((OPENED.model_copy(update={"echo": {"metadata": {"n": 10**30}}}),))
    good = encode_route_record((OPENED, Fence(epoch=(1, 1, 1, 1), writer="w")))
    assert await reading(feeds, Broker([records((broken, bad), (fine, good))], ends=[]))
    assert broken.error is not None
    assert [event.type for event in fine.events] == ["response.created", "response.in_progress"]
