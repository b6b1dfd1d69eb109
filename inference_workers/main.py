"""The batching worker: one process an engine, one group a pool. Keeps the engine's in-flight batch full."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiokafka import TopicPartition

from inference_workers.admission import Admission
from inference_workers.course import FAILURES
from inference_workers.engine.client import EngineClient
from inference_workers.engine.pool import Engines
from inference_workers.metrics import watch_engine
from inference_workers.tools import Tools
from inference_workers.worker import Worker
from parley import stages
from parley.drains import Drains
from parley.health import Health
from parley.log.follower import Follower
from parley.log.group import Group
from parley.log.producer import Producer
from parley.log.ranges import RangeReader
from parley.process import HEALTH, promoted, until_stopped
from parley.safety.classifier import Classifier
from parley.safety.policy import Policy
from parley.settings import Settings
from parley.tokenizers import load_tokenizer
from parley.topics import CONTROL, VERDICTS, Pool
from schemas.base import TIERS


async def run(settings: Settings, pool_name: str, engine_number: int = 0, *, spare: bool = False) -> None:
    """Serve one engine of a pool until told to stop. A spare gets all ready first, and waits for its name.

    Told to stop, it takes nothing more, and hands over what it runs: its turns break off, and whoever holds their
    partitions next, a spare of the same name or another worker, goes on with them from the log. To wait for their ends
    would keep new turns waiting for as long as the longest answer takes.

    Raises:
        ValueError: no such pool, or it has no engine.
    """
    async with equipped(settings, pool_name, engine_number) as (tools, follower):
        if spare:
            await tools.ranges.warm()
            # Asks about these at once when its time comes; a connection that has heard of a topic answers sooner.
            topics = (VERDICTS, CONTROL, *_requests(settings, tools.pool))
            await follower.bounds(TopicPartition(topic, 0) for topic in topics)
            settings = await promoted(settings)
        async with working(settings, tools, follower, HEALTH) as group:
            await until_stopped(group.run(), group.stop)


@asynccontextmanager
async def equipped(settings: Settings, pool_name: str, engine_number: int = 0) -> AsyncIterator[tuple[Tools, Follower]]:
    """All that a worker uses, connected and loaded; it is no member of anything yet.

    Raises:
        ValueError: no such pool, or it has no engine.
    """
    pool = settings.topics.pools.get(pool_name)
    if pool is None:
        raise ValueError(f"topics.yaml has no pool {pool_name!r}: it has {', '.join(settings.topics.pools)}")
    name = settings.instance or pool.group
    tools = Tools(
        settings,
        pool,
        Producer(settings.kafka, name),
        Producer(settings.kafka, f"{name}-tokens", linger_ms=settings.kafka.token_linger_ms),
        RangeReader(settings.kafka, f"{name}-ranges"),
        engines_of(settings, pool, engine_number),
        Admission(pool.slots),
        Classifier.load(settings.moderation.model),
        Policy.load(settings.moderation.policy),
        load_tokenizer(pool.tokenizer, settings.tokenizers_dir),
    )
    watch_engine(pool.model, pool.name, tools.admission, lambda: tools.engines.own.drained)
    stages.expect(pool.name, FAILURES)
    follower = Follower(settings.kafka, f"{name}-side")
    await asyncio.gather(tools.producer.start(), tools.tokens.start(), follower.start())
    try:
        yield tools, follower
    finally:
        await tools.engines.close()
        await asyncio.gather(tools.tokens.stop(), tools.producer.stop(), follower.stop(), tools.ranges.stop())


@asynccontextmanager
async def working(settings: Settings, tools: Tools, follower: Follower, health: Health) -> AsyncIterator[Group]:
    """A member of the pool's group, to be run, with what it does beside: telling, watching, asking the engines."""
    worker = Worker(tools, follower, health)
    topics = _requests(settings, tools.pool)
    group = Group(settings, tools.pool.group, topics, worker, health, patience_s=settings.protocol.longest_request_s)
    follower.on_failure = group.fail

    def ended(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            group.fail(error)

    drains = Drains()
    drains.on_change = lambda: tools.engines.drain(drains.engines(tools.pool.name))
    following = asyncio.create_task(drains.follow(settings.kafka, f"{group.name}-drains"), name="drains")
    following.add_done_callback(ended)
    beside = [
        following,
        asyncio.create_task(worker.report(settings.instance or group.name), name="report"),
        asyncio.create_task(worker.watch(), name="watch"),
        asyncio.create_task(tools.engines.watch(), name="engines"),
    ]
    try:
        yield group
    finally:
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)


def _requests(settings: Settings, pool: Pool) -> list[str]:
    """The topics of a pool's requests."""
    return [settings.topics.inference_topic(pool.name, tier) for tier in TIERS]


def engines_of(settings: Settings, pool: Pool, own: int) -> Engines:
    """The engines of a pool for the worker that owns one of them.

    Raises:
        ValueError: the pool has no such engine.
    """
    clients = [
        EngineClient(
            address,
            pool.engine_model,
            cumulative=pool.output == "cumulative",
            silence_s=settings.worker.silence_limit_s,
        )
        for address in settings.engine_addresses(pool.name, own)
    ]
    return Engines(clients, settings.worker)
