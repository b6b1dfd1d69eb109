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
from parley.process import HEALTH, until_stopped
from parley.safety.policy import Policy
from parley.settings import Settings
from parley.side_inputs import catch_up
from parley.stores.lazy import LazyMessageStore
from parley.topics import PROMPTS, TURNS

log = logging.getLogger(__name__)

GROUP = "orchestrator"


@dataclass(slots=True)
class Orchestrator:
    """Holds partitions of chat.prompts; a shard for each."""

    tools: Tools
    shards: dict[TopicPartition, Shard]

    async def take(self, taken: list[Held]) -> None:
        """Fold the state log of the partitions to its end, which holds all that an earlier holder had acknowledged.

        Then go on with the open turns.
        """
        shards = {held.partition: Shard(self.tools, held) for held in taken}
        # At once: `drop` must close a shard whose partition goes away while it still replays.
        self.shards |= {held.where: shards[held.partition] for held in taken}
        follower, ranges, protocol = self.tools.follower, self.tools.ranges, self.tools.settings.protocol
        state = await follower.bounds(TopicPartition(TURNS, partition) for partition in shards)
        ends = await follower.bounds(held.where for held in taken)
        oldest = {held.partition: await held.oldest_ms(ranges, ends[held.where][1]) for held in taken}
        for where, (begin, _) in state.items():
            shards[where.partition].follow(begin)
        await catch_up(follower, {p: shard.side for p, shard in shards.items()}, oldest, protocol)
        for where, (begin, end) in state.items():
            if end > begin:
                await follower.reached(where.topic, where.partition, end - 1)
        for held in (held for held in taken if not held.lost):
            shards[held.partition].go_on()

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
    group = Group(settings, GROUP, [PROMPTS], Orchestrator(tools, {}), HEALTH)
    follower.on_failure = group.fail
    try:
        await until_stopped(group.run(), group.stop)
    finally:
        await follower.stop()
        await ranges.stop()
        await producer.stop()
        await store.close()
