"""Three Kafka nodes of the local stack: a record is on three, and any node may die alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from infra.local.aside import settings_aside
from infra.local.stack import LocalStack

pytestmark = pytest.mark.stack


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[LocalStack]:
    async with LocalStack(settings_aside(tmp_path, brokers=3)) as stack:
        await stack.start("kafka")
        yield stack


async def test_what_is_acknowledged_outlives_every_node_one_after_the_other(stack: LocalStack) -> None:
    """Each node in turn is killed while records are sent, and started again alone."""
    admin = AIOKafkaAdminClient(bootstrap_servers=stack.kafka.bootstrap)
    await admin.start()
    settings = {"min.insync.replicas": str(stack.settings.kafka.min_insync)}
    await admin.create_topics([NewTopic("kept", 1, stack.settings.kafka.replication, topic_configs=settings)])
    async with AIOKafkaProducer(
        bootstrap_servers=stack.kafka.bootstrap, acks="all", enable_idempotence=True, retry_backoff_ms=50
    ) as producer:
        for number, broker in enumerate(stack.brokers):
            broker.kill()
            await producer.send_and_wait("kept", b"%d without a node" % number)
            await stack.restart(broker.name)
            await producer.send_and_wait("kept", b"%d with all" % number)
    await admin.close()
    expected = [b"%d %b" % (number, how) for number in range(3) for how in (b"without a node", b"with all")]
    async with AIOKafkaConsumer(bootstrap_servers=stack.kafka.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition("kept", 0)])
        assert [(await consumer.getone()).value for _ in expected] == expected


async def test_roles_are_told_of_the_copies(stack: LocalStack) -> None:
    environment = stack.environment()
    assert environment["PARLEY_KAFKA__BOOTSTRAP"].count(",") == 2
    assert environment["PARLEY_CLUSTER__REPLICATION"] == "3"
    assert environment["PARLEY_CLUSTER__MIN_INSYNC_REPLICAS"] == "2"
