"""Topics, commits and holders of one test each, on the session's Kafka."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic, RecordsToDelete
from aiokafka.structs import OffsetAndMetadata
from click.testing import CliRunner, Result

from consumers.lag.cli import lag
from consumers.lag.groups import Watched
from consumers.lag.survey import GroupLag, PartitionLag, Survey
from parley.health import Health
from parley.log.group import Group, Held
from parley.log.groups import GroupReader
from parley.log.ranges import Record
from parley.log.spans import open_spans
from parley.settings import KafkaSettings, ProtocolSettings, Settings


class Stage:
    """What a test writes, commits and looks at."""

    def __init__(self, settings: Settings, admin: AIOKafkaAdminClient, producer: AIOKafkaProducer) -> None:
        self.settings = settings
        self.admin = admin
        self.producer = producer

    async def topic(self, partitions: int = 1) -> str:
        name = f"lag.{secrets.token_hex(6)}"
        await self.admin.create_topics([NewTopic(name, partitions, 1)])
        async with GroupReader(self.settings.kafka), open_spans(self.settings.kafka, "test") as spans:
            async with asyncio.timeout(10):
                while (await spans.existing([name])).get(name) != partitions:
                    await asyncio.sleep(0.05)
        return name

    async def write(self, topic: str, records: int, partition: int = 0) -> None:
        sent = [await self.producer.send(topic, b"x", partition=partition) for _ in range(records)]
        await asyncio.gather(*sent)

    async def commit(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """As somebody from outside may, while the group has no members."""
        async with AIOKafkaConsumer(
            bootstrap_servers=self.settings.kafka.bootstrap, group_id=group, enable_auto_commit=False
        ) as consumer:
            places = {TopicPartition(topic, n): OffsetAndMetadata(offset, "") for n, offset in offsets.items()}
            consumer.assign(list(places))
            await consumer.commit(places)

    async def delete_records(self, topic: str, before: int) -> None:
        await self.admin.delete_records({TopicPartition(topic, 0): RecordsToDelete(before)})

    async def look(self, watched: Watched, survey: Survey | None = None) -> GroupLag:
        async with GroupReader(self.settings.kafka) as reader, open_spans(self.settings.kafka, "test") as spans:
            [group] = (await (survey or Survey([watched], 60)).look(reader, spans)).groups
        return group

    async def look_until(self, watched: Watched, done: Callable[[dict[int, PartitionLag]], bool]) -> GroupLag:
        """Looks until the partitions, by number, are as wanted; fails with what was last seen."""
        seen: GroupLag | None = None
        survey = Survey([watched], 60)
        try:
            async with asyncio.timeout(60):
                while seen is None or not done({p.where.partition: p for p in seen.partitions}):
                    seen = await self.look(watched, survey)
                    await asyncio.sleep(0.2)
        except TimeoutError:
            raise AssertionError(f"not so after 60 s: {seen}") from None
        return seen

    async def command(self, *arguments: str) -> Result:
        env = {"PARLEY_KAFKA__BOOTSTRAP": self.settings.kafka.bootstrap}
        return await asyncio.to_thread(CliRunner().invoke, lag, list(arguments), env=env)

    async def json(self, group: str) -> tuple[int, dict[str, Any]]:
        """(exit code of --check, the group as --json shows it)."""
        result = await self.command("--group", group, "--json", "--check")
        return result.exit_code, json.loads(result.output)["groups"][0]


class Keeping:
    """A role that ends its records, except those of the offsets that it keeps."""

    def __init__(self, keeps: Callable[[Held, Record], bool]) -> None:
        self.keeps = keeps

    async def take(self, taken: list[Held]) -> None: ...

    def drop(self, held: Held) -> None: ...

    def record(self, held: Held, record: Record) -> None:
        if not self.keeps(held, record):
            held.end(record.offset)

    async def give_up(self, held: Held, record: Record, error: BaseException) -> None:
        held.end(record.offset)


@asynccontextmanager
async def holding(
    settings: Settings, name: str, topic: str, keeps: Callable[[Held, Record], bool], window: int = 2_000
) -> AsyncIterator[Group]:
    """A member of a group, as roles are, for as long as the block runs."""
    protocol = ProtocolSettings(commit_interval_ms=50, window=window)
    group = Group(settings.model_copy(update={"protocol": protocol}), name, [topic], Keeping(keeps), Health())
    running = asyncio.create_task(group.run())
    try:
        yield group
    finally:
        group.stop()
        await running


@pytest.fixture
async def stage(kafka_bootstrap: str) -> AsyncIterator[Stage]:
    kafka = KafkaSettings(bootstrap=kafka_bootstrap, session_timeout_ms=3_000, rebalance_timeout_ms=3_000)
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka_bootstrap)
    await admin.start()
    try:
        async with AIOKafkaProducer(bootstrap_servers=kafka_bootstrap, acks="all") as producer:
            yield Stage(Settings(kafka=kafka), admin, producer)
    finally:
        await admin.close()
