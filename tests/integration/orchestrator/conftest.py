"""A Kafka of its own: orchestrators find everything that the log holds, also what other tests left open."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from infra.local.aside import settings_aside
from infra.local.stack import LocalStack
from parley.log.admin import connect
from parley.log.follower import Follower
from parley.log.producer import Producer
from parley.settings import KafkaSettings, ProtocolSettings, Settings
from parley.stores.messages import MessageStore
from parley.stores.migrate import migrate_messages
from tests.integration.orchestrator.stage import Stage
from tests.integration.stores_parts import messages_settings

PROTOCOL = ProtocolSettings(start_deadline_s=2, answer_limit_s=2, max_turn_age_s=6, waiting_turns=2, margin_s=2)
"""Short, so that a test can wait for a turn to be too old."""


@pytest.fixture(scope="session")
async def stage_settings(
    tmp_path_factory: pytest.TempPathFactory, message_store: Any, tokenizers_dir: Path
) -> AsyncIterator[Settings]:
    stack = LocalStack(settings_aside(tmp_path_factory.mktemp("orchestrator")))
    stack.open()
    await stack.start("kafka")
    settings = Settings(
        kafka=KafkaSettings(bootstrap=stack.kafka.bootstrap, session_timeout_ms=3_000),
        messages=messages_settings(message_store),
        protocol=PROTOCOL,
        tokenizers_dir=tokenizers_dir,
    )
    async with connect(settings.kafka) as admin:
        await admin.create(settings.topics.topics.values(), replication=1, min_insync_replicas=1)
    await migrate_messages(settings.messages)
    yield settings
    await stack.stop()


@pytest.fixture
async def stage(stage_settings: Settings) -> AsyncIterator[Stage]:
    producer, follower = Producer(stage_settings.kafka, "stage"), Follower(stage_settings.kafka, "stage")
    messages = await MessageStore.connect(stage_settings.messages)
    await producer.start()
    await follower.start()
    stage = Stage(stage_settings, producer, follower, messages)
    stage.watch()
    yield stage
    await follower.stop()
    await producer.stop()
    await messages.close()
