"""The orchestrator's process: what its partitions share, and the role that the group calls."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass

from aiokafka import TopicPartition
from prometheus_client import Gauge

from consumers.orchestrator.ending import FAILURES
from consumers.orchestrator.shard import Shard
from consumers.orchestrator.tools import Tools
from parley import stages
from parley.drains import Drains
from parley.errors import ParleyError
from parley.log.follower import Follower
from parley.log.group import Group, Held
from parley.log.producer import Producer
from parley.log.ranges import RangeReader, Record, RouteGone
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
        needed = {
            held.partition: min(oldest[held.partition], await self._needed_ms(held, stored[held.partition], state))
            - 2 * int(protocol.margin_s * 1000)
            for held in taken
        }
        begins = await follower.since({TopicPartition(TURNS, partition): ms for partition, ms in needed.items()})
        for where, begin in begins.items():
            shards[where.partition].follow(begin, needed[where.partition])
        await catch_up(follower, {p: shard.side for p, shard in shards.items()}, oldest, protocol)
        await self.tools.drains.known.wait()
        for where, (first, end) in state.items():
            if end > first:
                await follower.reached(where.topic, where.partition, end - 1)
        for held in (held for held in taken if not held.lost):
            shards[held.partition].go_on()

    async def _needed_ms(self, held: Held, stored: int, state: Mapping[TopicPartition, tuple[int, int]]) -> int:
        """The time (ms) from which on the state log has to be folded.

        Below the watermark (`stored`) the message store has everything, and below the floor no turn is open. What
        became of prompts that are not done with comes after them; the caller sees to that. Its margin is for clocks,
        and so that a session that began just then is known to have begun.
        """
        first, end = state[TopicPartition(TURNS, held.partition)]
        lower = min(stored, held.floor, end)
        if lower <= first:
            return 0
        try:
            records = await self.tools.ranges.read(TURNS, held.partition, lower - 1, lower - 1)
        except RouteGone:
            return 0
        return int(records[0].timestamp)

    def record(self, held: Held, record: Record) -> None:
        """A prompt.

        Raises:
            BadRecord: it can't be read.
        """
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
    """Serve until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    await until_stopped(serve(settings, stop), stop.set)


async def serve(settings: Settings, stop: asyncio.Event) -> None:
    """Serve until `stop` is set.

    Raises:
        Exception: what a process can't go on after; another one in its place can.
    """
    producer = Producer(settings.kafka, settings.instance or GROUP)
    follower = Follower(settings.kafka, f"{settings.instance or GROUP}-follower")
    ranges = RangeReader(settings.kafka, f"{settings.instance or GROUP}-ranges")
    store = LazyMessageStore(settings.messages)
    await producer.start()
    await follower.start()
    watermark = Watermark(settings.kafka, VIEW, TURNS, f"{settings.instance or GROUP}-watermark")
    await watermark.start()
    policy = Policy.load(settings.moderation.policy)
    drains = Drains()
    for pool in (None, *settings.topics.pools):
        stages.expect(pool, FAILURES)
    role = Orchestrator(Tools(settings, producer, follower, ranges, store, watermark, policy, drains), {})
    group = Group(settings, GROUP, [PROMPTS], role, HEALTH, patience_s=settings.protocol.longest_prompt_s)
    follower.on_failure = group.fail

    def ended(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            group.fail(error)

    async def stopping() -> None:
        await stop.wait()
        group.stop()

    beside = [
        asyncio.create_task(role.forget(), name="forget"),
        asyncio.create_task(stopping(), name="stop"),
        asyncio.create_task(drains.follow(settings.kafka, f"{settings.instance or GROUP}-drains"), name="drains"),
    ]
    for task in beside:
        task.add_done_callback(ended)
    try:
        await group.run()
    finally:
        for task in beside:
            task.cancel()
        await watermark.stop()
        await follower.stop()
        await ranges.stop()
        await producer.stop()
        await store.close()
