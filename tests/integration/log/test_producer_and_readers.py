"""Acknowledged offsets, ranges, and following, on a real broker."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
from aiokafka.structs import TopicPartition

from parley.errors import ParleyError
from parley.log.admin import connect
from parley.log.dlq import dead_letter
from parley.log.follower import Follower
from parley.log.producer import Producer
from parley.log.ranges import RangeReader, Record, RouteGone
from parley.settings import KafkaSettings, Settings
from parley.topics import Topic
from tests.integration.log.conftest import NewTopicName


async def test_a_range_is_what_lies_between_two_offsets(
    log_settings: Settings, new_topic: NewTopicName, producer: Producer
) -> None:
    topic = await new_topic(1)
    offsets = [await producer.send(topic, b"%d" % n, key=b"k", partition=0) for n in range(10)]
    assert offsets == list(range(10))
    ranges = RangeReader(log_settings.kafka)
    try:
        for _ in range(3):  # readers are used again
            values = [record.value for record in await ranges.read(topic, 0, 3, 6)]
            assert values == [b"3", b"4", b"5", b"6"]
        assert await ranges.end_offset(topic, 0) == 10
        with pytest.raises(RouteGone):
            await ranges.read("no.such.topic", 0, 0, 0)
    finally:
        await ranges.stop()


async def test_a_follower_hands_over_each_record_once_whatever_else_it_comes_to_follow(
    log_settings: Settings, new_topic: NewTopicName, producer: Producer
) -> None:
    one, two = await new_topic(1), await new_topic(1)
    follower = Follower(log_settings.kafka, "test")
    await follower.start()
    seen: list[tuple[str, int]] = []

    def handle(record: Record) -> None:
        seen.append((record.topic, record.offset))

    try:
        follower.follow(one, 0, 0, handle)
        for _ in range(20):
            await producer.send(one, b"x", key=b"k", partition=0)
        await asyncio.wait_for(follower.reached(one, 0, 5), 10)
        follower.follow(two, 0, 0, handle)
        await producer.send(two, b"y", key=b"k", partition=0)
        await asyncio.wait_for(follower.reached(two, 0, 0), 10)
        await producer.send(one, b"x", key=b"k", partition=0)
        await asyncio.wait_for(follower.reached(one, 0, 20), 10)
        assert [offset for topic, offset in seen if topic == one] == list(range(21))
        where = TopicPartition(one, 0)
        assert (await follower.bounds([where]))[where] == (0, 21)
        assert (await follower.since({where: 0}))[where] == 0
        assert (await follower.since({where: 1 << 45}))[where] == 21  # past the end: the end
    finally:
        await follower.stop()


async def test_a_log_is_lost_when_its_topic_is_deleted_and_when_another_has_its_name(
    log_settings: Settings, new_topic: NewTopicName, producer: Producer
) -> None:
    ranges, nowhere = RangeReader(log_settings.kafka), RangeReader(KafkaSettings(bootstrap="127.0.0.1:1"))
    topic, kept = await new_topic(1), await new_topic(1)
    try:
        for number in range(3):
            await producer.send(topic, b"%d" % number, key=b"k", partition=0)
        assert [await ranges.holds(topic, 0, offset) for offset in (0, 3, 4)] == [True, True, False]
        async with connect(log_settings.kafka) as admin:
            assert await admin.delete([topic]) == [topic]
            assert not await ranges.holds(topic, 0, 0)
            anew = Topic(name=topic, key="session", partitions=1)
            await admin.create([anew], replication=1, min_insync_replicas=1)
        assert not await ranges.holds(topic, 0, 2)
        assert await ranges.holds(kept, 0, 0)
        with pytest.raises(ParleyError, match="no broker answers"):
            await nowhere.holds(topic, 0, 0)
    finally:
        await ranges.stop()


async def test_there_is_a_dead_letter_about_every_record_that_may_be_in_a_log(
    log_settings: Settings, new_topic: NewTopicName, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What can't be buried would be tried again for ever, and hold up all that comes after it. One of the greatest size
    leaves no room for what is said of it."""
    topic, dlq = await new_topic(1), await new_topic(1)
    monkeypatch.setattr("parley.log.dlq.DLQ", dlq)
    value = b"x" * (log_settings.kafka.max_request_size - 200)
    offset = await producer.send(topic, value, key=b"k", partition=0)
    ranges = RangeReader(log_settings.kafka)
    try:
        [record] = await ranges.read(topic, 0, offset, offset)
        small = dataclasses.replace(record, value=b"?", offset=7)
        nothing = dataclasses.replace(record, value=None, key=None, offset=8)
        for bad in (small, nothing, record):
            await dead_letter(producer, bad, group="g", error=ValueError("no"), partitions=1)
        letters = await ranges.read(dlq, 0, 0, 2)
    finally:
        await ranges.stop()
    about = [dict(letter.headers) for letter in letters]
    assert [(letter.key, letter.value) for letter in letters] == [(b"k", b"?"), (None, b""), (None, b"")]
    assert [(a["x-dlq-topic"], a["x-dlq-offset"]) for a in about] == [(topic.encode(), n) for n in (b"7", b"8", b"0")]
    assert b"too large" in about[2]["x-dlq-reason"]


async def test_a_record_too_large_is_refused_and_the_next_one_goes_through(
    log_settings: Settings, new_topic: NewTopicName, producer: Producer
) -> None:
    topic = await new_topic(1)
    with pytest.raises(ParleyError, match="larger") as refused:
        await producer.send(topic, bytes(log_settings.kafka.max_request_size), key=b"k", partition=0)
    assert refused.value.kind.code == "request_too_large"
    assert await producer.send(topic, b"x", key=b"k", partition=0) == 0


async def test_no_broker_is_said_plainly(log_settings: Settings, free_port: int) -> None:
    nowhere = log_settings.kafka.model_copy(update={"bootstrap": f"127.0.0.1:{free_port}"})
    with pytest.raises(ParleyError, match="no broker answers"):
        await Producer(nowhere, "test").start()
