"""A request that its worker can't read: a newer orchestrator's, or bytes that broke on the way."""

from __future__ import annotations

import asyncio

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from inference_workers.main import equipped, working
from parley.health import Health
from parley.settings import Settings
from tests.integration.orchestrator.stage import Chat, Stage
from tests.integration.orchestrator.test_sessions import PATIENT, with_protocol

pytestmark = pytest.mark.stack


async def test_the_turn_ends_at_once_in_both_places_and_the_next_one_begins(stage: Stage, free_port: int) -> None:
    """Section 8. Not after half an hour, when the orchestrator ends what is too old."""
    chat = Chat()
    settings = with_protocol(stage.settings, PATIENT)
    async with stage.orchestrating(settings):
        response = await stage.say(chat, "one")
        await stage.request(response)
        waiting = await stage.say(chat, "two")
        await stage.word(waiting)
        _, good = next(found for found in stage.requests if found[0].response == response)
        where = TopicPartition(good.topic, good.partition)
        bad = b'{"v": 2, "type": "inference.request"}'
        await stage.producer.send(good.topic, bad, key=good.key, partition=good.partition, headers=good.headers)
        await pass_over(stage, where, good.offset + 1)
        engines = {"synthetic": f"127.0.0.1:{free_port}"}
        async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
            stop = asyncio.Event()
            tasks.create_task(serve(settings.model_copy(update={"engines": engines}), stop))
            terminal, ended = await stage.end(response)
            assert terminal.failure is not None
            assert (terminal.failure.code, terminal.failure.retryable) == ("unprocessable", True)
            assert ended.dispatch == stage.starts(response)[0].dispatch
            assert (await stage.request(waiting)).turn == 2
            await stage.until(lambda: [letter for letter in stage.letters if letter.value == bad])
            stop.set()


async def serve(settings: Settings, stop: asyncio.Event) -> None:
    """The worker of the pool."""
    async with (
        equipped(settings, "synthetic", 0) as (tools, follower),
        working(settings, tools, follower, Health()) as group,
    ):
        task = asyncio.create_task(group.run())
        await stop.wait()
        group.stop()
        await task


async def pass_over(stage: Stage, where: TopicPartition, offset: int) -> None:
    """The worker's group begins behind the good request, which would be answered otherwise."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=stage.settings.kafka.bootstrap, group_id="worker-synthetic", enable_auto_commit=False
    )
    await consumer.start()
    consumer.assign([where])
    await consumer.commit({where: offset})
    await consumer.stop()
