"""The orchestrator's process: what its partitions share, and the role that the group calls."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from aiokafka import TopicPartition

from consumers.orchestrator.shard import Shard
from consumers.orchestrator.tools import Tools
from parley.log.follower import Follower
from parley.log.group import Group, Held
from parley.log.producer import Producer
from parley.log.ranges import RangeReader, Record
from parley.process import until_stopped
from parley.safety.policy import Policy
from parley.settings import Settings
from parley.stores.lazy import LazyMessageStore
from parley.topics import PROMPTS

log = logging.getLogger(__name__)

GROUP = "orchestrator"


@dataclass(slots=True)
class Orchestrator:
    """Holds partitions of chat.prompts; a shard for each."""

    tools: Tools
    shards: dict[TopicPartition, Shard]

    async def take(self, held: Held) -> None:
        """Replay the sessions of the partition, then go on with their open turns."""
        shard = Shard(self.tools, held)
        await shard.replay()
        self.shards[held.where] = shard

    def record(self, held: Held, record: Record) -> None:
        """A prompt."""
        self.shards[held.where].accept(record)

    def drop(self, held: Held) -> None:
        """Forget the sessions of a partition that went away."""
        if (shard := self.shards.pop(held.where, None)) is not None:
            shard.close()


async def run(settings: Settings) -> None:
    """Serve until told to stop."""
    producer = Producer(settings.kafka, settings.instance or GROUP)
    follower = Follower(settings.kafka, f"{settings.instance or GROUP}-follower")
    ranges = RangeReader(settings.kafka, f"{settings.instance or GROUP}-ranges")
    store = LazyMessageStore(settings.messages)
    await producer.start()
    await follower.start()
    tools = Tools(settings, producer, follower, ranges, store, Policy.load(settings.moderation.policy))
    group = Group(settings, GROUP, [PROMPTS], Orchestrator(tools, {}))
    try:
        await until_stopped(group.run(), group.stop)
    finally:
        await follower.stop()
        await ranges.stop()
        await producer.stop()
        await store.close()
