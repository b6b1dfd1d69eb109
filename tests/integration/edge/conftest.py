"""The edge on real Kafka, PostgreSQL and Cassandra; see edge_stage."""

from __future__ import annotations

import asyncio
import secrets
from base64 import b64encode
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from edge_stage import Person, Roles, Running, person, running
from pydantic import SecretStr

from parley.log.admin import connect
from parley.log.producer import Producer
from parley.settings import KafkaSettings, MessagesSettings, PostgresSettings, Settings
from parley.stores.accounts import Accounts
from parley.stores.messages import MessageStore
from parley.stores.migrate import migrate
from parley.stores.postgres import open_pool
from parley.stores.sessions import Sessions
from parley.topics import CONTROL, PROMPTS


@pytest.fixture(scope="session")
async def base_settings(kafka_bootstrap: str, postgres_dsn: str, message_store: Any) -> Settings:
    settings = Settings(
        id_keys=(SecretStr(b64encode(secrets.token_bytes(32)).decode()),),
        kafka=KafkaSettings(bootstrap=kafka_bootstrap),
        postgres=PostgresSettings(dsn=SecretStr(postgres_dsn)),
        messages=MessagesSettings(
            hosts=(message_store.host,), port=message_store.port, datacenter=message_store.datacenter
        ),
    )
    async with connect(settings.kafka) as admin:
        await admin.create(settings.topics.topics.values(), replication=1, min_insync_replicas=1)
    await migrate(settings)
    return settings


@pytest.fixture(scope="session")
async def accounts(base_settings: Settings) -> AsyncIterator[Accounts]:
    async with open_pool(base_settings.postgres) as pool:
        yield Accounts(pool)


@pytest.fixture(scope="session")
async def sessions(base_settings: Settings) -> AsyncIterator[Sessions]:
    async with open_pool(base_settings.postgres) as pool:
        yield Sessions(pool)


@pytest.fixture(scope="session")
async def kept(base_settings: Settings) -> AsyncIterator[MessageStore]:
    store = await MessageStore.connect(base_settings.messages)
    yield store
    await store.close()


@pytest.fixture
async def ada(accounts: Accounts) -> Person:
    return await person(accounts)


@pytest.fixture
async def bob(accounts: Accounts) -> Person:
    return await person(accounts)


@pytest.fixture(scope="session")
async def _roles(base_settings: Settings) -> AsyncIterator[Roles]:
    producer = Producer(base_settings.kafka, "script")
    await producer.start()
    roles = Roles(base_settings, producer)
    consumer = AIOKafkaConsumer(
        bootstrap_servers=base_settings.kafka.bootstrap, enable_auto_commit=False, fetch_max_wait_ms=20
    )
    await consumer.start()
    count = base_settings.topics.session_partitions
    partitions = [TopicPartition(topic, n) for topic in (PROMPTS, CONTROL) for n in range(count)]
    ends = await consumer.end_offsets(partitions)
    consumer.assign(partitions)
    for where, end in ends.items():
        consumer.seek(where, end)
    listening = asyncio.create_task(roles.listen(consumer))
    yield roles
    await consumer.stop()
    await asyncio.gather(listening, return_exceptions=True)
    await producer.stop()


@pytest.fixture
async def roles(_roles: Roles) -> AsyncIterator[Roles]:
    """Without a script nobody answers."""
    _roles.script = None
    _roles.prompts.clear()
    _roles.cancels.clear()
    _roles.tasks.clear()
    yield _roles
    _roles.script = None
    for task in _roles.tasks:
        if not task.done():
            task.cancel()
    await asyncio.gather(*_roles.tasks, return_exceptions=True)


@pytest.fixture(scope="session")
async def edge(base_settings: Settings) -> AsyncIterator[Running]:
    """The edge that most tests share."""
    async with running(base_settings, route="lane", drain_s=1) as one:
        yield one


@pytest.fixture
async def http(edge: Running, ada: Person) -> AsyncIterator[httpx.AsyncClient]:
    """Ada's client."""
    async with httpx.AsyncClient(base_url=edge.url, headers=ada.headers, timeout=20) as client:
        yield client
