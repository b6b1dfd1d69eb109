"""A replay's own topics: made, fed with what is to be replayed, watched until all of it is done, and cleared away."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

from aiokafka import TopicPartition

from parley.errors import ParleyError
from parley.log.admin import Admin, connect
from parley.log.group import Group
from parley.log.groups import GroupReader
from parley.log.producer import Producer
from parley.log.ranges import Record
from parley.log.spans import Span, Spans
from parley.settings import KafkaSettings, Settings
from parley.topics import Topic
from producers.replay.shadow import INPUTS_HEADER, PREFIX, SOURCE_HEADER, Shadow
from schemas.wire import Headers, header

BATCH = 500
"""Records that may be unacknowledged while feeding."""
TICK_S = 0.02
KEPT_MS = 7 * 86_400_000
"""How long a replay's own topics hold what it has done: one that was stopped goes on as if it had not been."""
PATIENCE_S = 300.0
"""A role that ends no record for so long is stuck; the longest answer takes two minutes."""


@dataclass(frozen=True, slots=True)
class Fed:
    """A record for the replay's own topic."""

    topic: str
    """Its live name."""
    partition: int
    key: bytes | None
    value: bytes
    headers: Headers
    source: str


def patient(settings: Settings) -> Settings:
    """Settings of a role in shadow: a dynamic member, to whom no record is too old.

    The replay's own topics give records the time of the replay; this is for one that goes on the next day.
    """
    protocol = settings.protocol.model_copy(update={"max_turn_age_s": float(365 * 86_400)})
    return settings.model_copy(update={"protocol": protocol, "instance": None})


@dataclass(frozen=True, slots=True)
class Stage:
    """A replay's own part of the cluster, and what to tell whoever waits."""

    settings: Settings
    spans: Spans
    shadow: Shadow
    fingerprint: str
    """The manifest's."""
    tell: Callable[[str], None]
    """Given one line of progress."""

    async def make(self, names: Iterable[str]) -> None:
        """The replay's own topics; those that are there stay as they are.

        Raises:
            ParleyError: log_unavailable.
        """
        topics = self.settings.topics
        own = [own_topic(self.shadow, topics.topics[name]) for name in names]
        async with connect(self.settings.kafka) as admin:
            await admin.create(own, replication=topics.replication, min_insync_replicas=topics.min_insync_replicas)

    async def read(self, name: str, take: Callable[[Record], None]) -> None:
        """All that one of the replay's own topics holds now.

        Raises:
            ParleyError: log_unavailable.
        """
        await self.spans.read(await self._whole(name), take)

    async def left(self, records: Iterable[Fed], topics: Iterable[str]) -> list[Fed]:
        """Those that are not in these topics yet: an attempt that was killed goes on, and one that was done is done.

        Raises:
            ParleyError: log_unavailable; invalid_request: a replay of this name was fed for other inputs.
        """
        there = await self._fed(topics)
        left = [record for record in records if record.source not in there]
        if there:
            self.tell(f"{len(there):,} records were fed before, {len(left):,} are left")
        return left

    async def play(
        self, group: Group, producer: Producer, left: Iterable[Fed], topics: Iterable[str], rate: float
    ) -> None:
        """Feed a role, run by its group, with records for these topics, until it has ended all that they hold.

        Raises:
            ParleyError: log_unavailable; internal: the role stands still.
            Exception: whatever the group failed with.
        """
        running = asyncio.create_task(group.run(), name=group.name)
        try:
            await feed(producer, left, rate, ((INPUTS_HEADER, self.fingerprint.encode()),))
            wholes = [await self._whole(name) for name in topics]
            await until_ended(group, running, {where: end for each in wholes for where, (_, end) in each.items()})
        finally:
            group.stop()
            with suppress(Exception):  # said by what is being raised
                await running

    async def _whole(self, name: str) -> dict[TopicPartition, Span]:
        own, count = self.shadow.name(name), self.settings.topics.topics[name].partitions
        return await self.spans.bounds(TopicPartition(own, partition) for partition in range(count))

    async def _fed(self, topics: Iterable[str]) -> set[str]:
        """The sources of what is there."""
        found: set[str] = set()

        def take(record: Record) -> None:
            if not self.shadow.owns(tuple(record.headers)):
                return
            if header(record.headers, INPUTS_HEADER) != self.fingerprint:
                why = "was made with other inputs, or by another version: choose another --id, or clean it first"
                raise ParleyError("invalid_request", f"replay {self.shadow.id} {why}")
            found.add(header(record.headers, SOURCE_HEADER) or "")

        for name in topics:
            await self.read(name, take)
        return found


def own_topic(shadow: Shadow, live: Topic) -> Topic:
    """A replay's own topic in the place of a live one: as that is, and kept for at least `KEPT_MS`.

    Live verdicts and tokens are gone after two hours, for nobody waits for them any more. Those of a replay are what
    its group's commits say is done: without them a turn that was judged would have no verdict, and never get one.
    """
    kept = None if live.retention_ms is None else max(live.retention_ms, KEPT_MS)
    return live.model_copy(update={"name": shadow.name(live.name), "retention_ms": kept})


async def feed(producer: Producer, records: Iterable[Fed], rate: float, marks: Headers = ()) -> int:
    """Write records to the replay's own topics, `rate` a second at most, with these headers too; gives how many.

    Raises:
        ParleyError: log_unavailable: how many have landed is not known; the topic tells.
    """
    loop = asyncio.get_running_loop()
    began, count = loop.time(), 0
    waiting = []
    for record in records:
        ahead = began + count / rate - loop.time()
        if ahead > TICK_S:
            await asyncio.sleep(ahead)
        about = (*record.headers, (SOURCE_HEADER, record.source.encode()), *marks)
        posted = await producer.post(
            record.topic, record.value, key=record.key, partition=record.partition, headers=about
        )
        waiting.append(posted)
        count += 1
        if len(waiting) >= BATCH:
            for each in waiting:
                await producer.acknowledged(each)
            waiting.clear()
    for each in waiting:
        await producer.acknowledged(each)
    return count


async def until_ended(group: Group, running: asyncio.Task[None], ends: dict[TopicPartition, int]) -> None:
    """Until the group's role has ended every record before these offsets. It is then told to stop, and waited for.

    Raises:
        ParleyError: internal: it stands still, or ends nothing for minutes.
        Exception: whatever the group failed with.
    """
    loop = asyncio.get_running_loop()
    done, since = -1, loop.time()
    while not running.done():
        held = {where: group.held[where].progress.prefix for where in ends if where in group.held}
        if all(held.get(where, 0) >= end for where, end in ends.items()):
            break
        if any(group.held[where].still for where in held):
            raise ParleyError("internal", "the role stands still: too many records can't be used")
        now = sum(held.values())
        if now > done:
            done, since = now, loop.time()
        elif loop.time() - since > PATIENCE_S:
            raise ParleyError("internal", f"the role has ended nothing for {PATIENCE_S:g} s")
        await asyncio.wait([running], timeout=TICK_S)
    group.stop()
    await running


async def leftovers(settings: KafkaSettings) -> dict[str, tuple[list[str], list[str]]]:
    """What replays have left in the cluster: (topics, groups) of each, by its id.

    Raises:
        ParleyError: log_unavailable.
    """
    found: dict[str, tuple[list[str], list[str]]] = {}
    async with connect(settings) as admin, GroupReader(settings) as groups:
        for place, names in ((0, await admin.names()), (1, await groups.names())):
            for name in names:
                if name.startswith(PREFIX) and (replay := name.removeprefix(PREFIX).partition(".")[0]):
                    found.setdefault(replay, ([], []))[place].append(name)
    return found


async def clean(settings: KafkaSettings, shadow: Shadow) -> list[str]:
    """Delete a replay's topics and groups; gives their names.

    Raises:
        ParleyError: log_unavailable; internal: one of its groups still has members.
    """
    topics, groups = (await leftovers(settings)).get(shadow.id, ([], []))
    async with connect(settings) as admin:
        return sorted([*await admin.delete(topics), *await _delete_groups(admin, groups)])


async def _delete_groups(admin: Admin, groups: list[str]) -> list[str]:
    return [name for name in groups if await admin.delete_group(name)]
