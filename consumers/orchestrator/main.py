"""The orchestrator's process: what its partitions share, and the role that the group calls."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from aiokafka import TopicPartition
from prometheus_client import Gauge

from consumers.orchestrator.shard import Shard
from consumers.orchestrator.tools import Tools
from parley.errors import ParleyError
from parley.log.follower import Follower
from parley.log.group import Group, Held
from parley.log.producer import Producer
from parley.log.ranges import RangeReader, Record
from parley.log.watermark import Watermark
from parley.process import HEALTH, until_stopped
from parley.safety.policy import Policy
from parley.settings import Settings
from parley.side_inputs import catch_up
from parley.stores.lazy import LazyMessageStore
from parley.topics import PROMPTS, TURNS
from schemas.wire import BadRecord

log = logging.getLogger(__name__)

GROUP = "orchestrator"
VIEW = "history-messages"
"""The group that feeds the message store: its committed offsets are the watermark."""
FORGETTING_S = 10.0
"""How often idle sessions are looked at."""

HELD = Gauge("parley_orchestrator_sessions", "Sessions whose turns are held in memory.")


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
        stored = await self.tools.watermark.read(shards)
        margin_ms = int(protocol.margin_s * 1000)
        since = {partition: ms - margin_ms for partition, ms in oldest.items()}
        recent = await follower.since({TopicPartition(TURNS, partition): ms for partition, ms in since.items()})
        for held in taken:
            partition = held.partition
            # Below the watermark the store has everything; below the floor no turn is open; and what became of a
            # prompt that is not done with came after it.
            begin = min(stored[partition], held.floor, recent[TopicPartition(TURNS, partition)])
            shards[partition].follow(begin, since[partition])
        await catch_up(follower, {p: shard.side for p, shard in shards.items()}, oldest, protocol)
        for where, (begin, end) in state.items():
            if end > begin:
                await follower.reached(where.topic, where.partition, end - 1)
        for held in (held for held in taken if not held.lost):
            shards[held.partition].go_on()

    def record(self, held: Held, record: Record) -> None:
        """A prompt."""
        self.shards[held.where].accept(record)

    async def give_up(self, held: Held, record: Record, error: BadRecord) -> None:
        """A prompt that can't be read."""
        await self.shards[held.where].give_up(record, error)

    def drop(self, held: Held) -> None:
        """Forget the sessions of a partition that went away."""
        if (shard := self.shards.pop(held.where, None)) is not None:
            shard.close()

    async def forget(self) -> None:
        """From time to time let go of idle sessions whose turns are all in the message store.

        Raises:
            ViewReset: the store is being built anew; the process must begin anew too.
        """
        limit = self.tools.settings.orchestrator.sessions_mb * 1_048_576
        while True:
            await asyncio.sleep(FORGETTING_S)
            shards = [shard for shard in self.shards.values() if shard.live]
            HELD.set(sum(shard.sessions for shard in shards))
            if not shards:
                continue
            try:
                stored = await self.tools.watermark.read([shard.held.partition for shard in shards])
            except ParleyError as error:
                log.warning("nothing is forgotten: %s", error)
                continue
            for shard in shards:
                if not shard.held.lost:
                    shard.forget(stored[shard.held.partition], int(limit / len(shards)))


async def run(settings: Settings) -> None:
    """Serve until told to stop."""
    producer = Producer(settings.kafka, settings.instance or GROUP)
    follower = Follower(settings.kafka, f"{settings.instance or GROUP}-follower")
    ranges = RangeReader(settings.kafka, f"{settings.instance or GROUP}-ranges")
    store = LazyMessageStore(settings.messages)
    await producer.start()
    await follower.start()
    watermark = Watermark(settings.kafka, VIEW, TURNS, f"{settings.instance or GROUP}-watermark")
    await watermark.start()
    policy = Policy.load(settings.moderation.policy)
    role = Orchestrator(Tools(settings, producer, follower, ranges, store, watermark, policy), {})
    group = Group(settings, GROUP, [PROMPTS], role, HEALTH)
    follower.on_failure = group.fail
    forgetting = asyncio.create_task(role.forget(), name="forget")

    def forgetting_ended(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            group.fail(error)

    forgetting.add_done_callback(forgetting_ended)
    try:
        await until_stopped(group.run(), group.stop)
    finally:
        forgetting.cancel()
        await watermark.stop()
        await follower.stop()
        await ranges.stop()
        await producer.stop()
        await store.close()
