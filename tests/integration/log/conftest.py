"""Topics of one test each, on the session's Kafka."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from parley.log.producer import Producer
from parley.settings import KafkaSettings, ProtocolSettings, Settings

NewTopicName = Callable[[int], Awaitable[str]]


@pytest.fixture
def log_settings(kafka_bootstrap: str) -> Settings:
    """A dynamic member's settings, times short."""
    kafka = KafkaSettings(bootstrap=kafka_bootstrap, session_timeout_ms=3_000, rebalance_timeout_ms=3_000)
    return Settings(kafka=kafka, protocol=ProtocolSettings(commit_interval_ms=50, proof_tick_ms=10))


@pytest.fixture
async def new_topic(kafka_bootstrap: str) -> AsyncIterator[NewTopicName]:
    """Makes a topic with a number of partitions; gives its name."""
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka_bootstrap)
    await admin.start()

    async def make(partitions: int) -> str:
        name = f"test.{secrets.token_hex(6)}"
        await admin.create_topics([NewTopic(name, partitions, 1)])
        return name

    yield make
    await admin.close()


@pytest.fixture
async def producer(log_settings: Settings) -> AsyncIterator[Producer]:
    made = Producer(log_settings.kafka, "test")
    await made.start()
    yield made
    await made.stop()
