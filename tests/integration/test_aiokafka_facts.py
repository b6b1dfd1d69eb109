"""What the design leans on in aiokafka and Kafka. An upgrade that changes one of these fails here first."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.structs import OffsetAndMetadata

from tests.integration.log.conftest import NewTopicName, new_topic

__all__ = ["new_topic"]


async def filled(bootstrap: str, topic: str, count: int) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all")
    await producer.start()
    try:
        for number in range(count):
            await producer.send_and_wait(topic, b"%d" % number, partition=0)
    finally:
        await producer.stop()


def consumer(bootstrap: str, group: str | None = None, **more: Any) -> AIOKafkaConsumer:
    return AIOKafkaConsumer(
        bootstrap_servers=bootstrap, group_id=group, enable_auto_commit=False, auto_offset_reset="earliest", **more
    )


async def test_the_metadata_of_a_commit_comes_back_at_the_coordinator(
    kafka_bootstrap: str, new_topic: NewTopicName
) -> None:
    topic = await new_topic(1)
    where = TopicPartition(topic, 0)
    await filled(kafka_bootstrap, topic, 1)
    member = consumer(kafka_bootstrap, topic)
    await member.start()
    try:
        member.subscribe([topic])
        await member.getmany(timeout_ms=5_000)
        coordinator = member._coordinator
        await coordinator._do_commit_offsets(
            member._subscription.subscription.assignment, {where: OffsetAndMetadata(1, '{"holder":"x"}')}
        )
        found = await coordinator._do_fetch_commit_offsets([where])
        assert (found[where].offset, found[where].metadata) == (1, '{"holder":"x"}')
        assert coordinator.generation > 0
        assert coordinator.member_id
    finally:
        await member.stop()


async def test_records_are_delivered_while_the_assignment_callback_runs(
    kafka_bootstrap: str, new_topic: NewTopicName
) -> None:
    topic = await new_topic(1)
    await filled(kafka_bootstrap, topic, 1)
    entered, leave = asyncio.Event(), asyncio.Event()

    class Slow(ConsumerRebalanceListener):  # type: ignore[misc]
        async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
            """Nothing."""

        async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
            entered.set()
            await leave.wait()

    member = consumer(kafka_bootstrap, topic)
    await member.start()
    try:
        member.subscribe([topic], listener=Slow())
        record = asyncio.create_task(member.getone())
        await asyncio.wait_for(entered.wait(), 10)
        assert (await asyncio.wait_for(record, 10)).value == b"0"
        assert not leave.is_set()
    finally:
        leave.set()
        await member.stop()


async def test_what_is_paused_at_its_assignment_is_not_fetched_before_it_is_resumed(
    kafka_bootstrap: str, new_topic: NewTopicName
) -> None:
    """A fetch under way would keep the next one of its broker back: here for half a minute."""
    topic = await new_topic(1)
    await filled(kafka_bootstrap, topic, 1)

    class Pausing(ConsumerRebalanceListener):  # type: ignore[misc]
        async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
            """Nothing."""

        async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
            member.pause(*assigned)

    member = consumer(kafka_bootstrap, topic, fetch_max_wait_ms=30_000)
    await member.start()
    try:
        member.subscribe([topic], listener=Pausing())
        assert await member.getmany(timeout_ms=3_000) == {}
        member.resume(*member.assignment())
        assert (await asyncio.wait_for(member.getone(), 10)).value == b"0"
    finally:
        await member.stop()


async def test_assigning_again_forgets_positions_and_pauses(kafka_bootstrap: str, new_topic: NewTopicName) -> None:
    topic = await new_topic(2)
    one, two = TopicPartition(topic, 0), TopicPartition(topic, 1)
    await filled(kafka_bootstrap, topic, 3)
    reader = consumer(kafka_bootstrap)
    await reader.start()
    try:
        reader.assign([one])
        reader.seek(one, 2)
        assert (await reader.getone()).offset == 2
        reader.pause(one)
        reader.assign([one, two])
        assert reader.paused() == set()
        assert (await reader.getone()).offset == 0
    finally:
        await reader.stop()


async def test_no_offset_is_told_for_a_time_past_the_end(kafka_bootstrap: str, new_topic: NewTopicName) -> None:
    topic = await new_topic(1)
    where = TopicPartition(topic, 0)
    await filled(kafka_bootstrap, topic, 1)
    reader = consumer(kafka_bootstrap)
    await reader.start()
    try:
        assert (await reader.offsets_for_times({where: 1 << 45}))[where] is None
        record_time = (await reader.offsets_for_times({where: 0}))[where]
        assert record_time is not None
        assert record_time.offset == 0
    finally:
        await reader.stop()


async def test_topics_take_the_time_of_the_log(kafka_bootstrap: str, new_topic: NewTopicName) -> None:
    topic = await new_topic(1)
    producer = AIOKafkaProducer(bootstrap_servers=kafka_bootstrap)
    await producer.start()
    reader = consumer(kafka_bootstrap)
    await reader.start()
    try:
        await producer.send_and_wait(topic, b"x", partition=0, timestamp_ms=1_000)
        reader.assign([TopicPartition(topic, 0)])
        record = await reader.getone()
        assert record.timestamp_type == 1
        assert record.timestamp > 1_000
    finally:
        await reader.stop()
        await producer.stop()


async def test_unknown_topics_are_not_made_by_asking(kafka_bootstrap: str) -> None:
    reader = consumer(kafka_bootstrap)
    await reader.start()
    try:
        await reader._client.add_topic("no.such.topic.ever")
        await reader._client.force_metadata_update()
        assert "no.such.topic.ever" not in await reader.topics()
    finally:
        await reader.stop()


def test_sticky_assignment_keeps_its_memory_in_the_class() -> None:
    """Hence a subclass for each consumer of a process."""
    one, two = type("One", (StickyPartitionAssignor,), {}), type("Two", (StickyPartitionAssignor,), {})
    assert "member_assignment" in vars(StickyPartitionAssignor)
    one.member_assignment = {"x": 1}
    assert two.member_assignment is None
