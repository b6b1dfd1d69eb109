"""Members that hold partitions, on a real broker: takeover, gates, prefix commits, proofs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import pytest
from aiokafka.admin import AIOKafkaAdminClient

from parley.health import Health
from parley.log.group import Group, Held, MemberLost
from parley.log.producer import Producer
from parley.log.ranges import Record
from parley.ownership import Claim
from parley.settings import Settings
from schemas.wire import BadRecord
from tests.integration.log.conftest import NewTopicName


class Keeper:
    """A role that remembers what it was given, and ends records when it is told to."""

    def __init__(self, end_at_once: bool = True) -> None:
        self.end_at_once = end_at_once
        self.records: list[tuple[int, bytes | None]] = []
        self.held: dict[int, Held] = {}
        self.takes = 0
        self.drops: list[int] = []
        self.given_up: list[bytes | None] = []

    async def take(self, taken: list[Held]) -> None:
        self.takes += 1
        self.held |= {held.partition: held for held in taken}

    def record(self, held: Held, record: Record) -> None:
        if record.value is not None and record.value.startswith(b"bad"):
            raise BadRecord("bad")
        self.records.append((held.partition, record.value))
        if self.end_at_once:
            held.end(record.offset)

    async def give_up(self, held: Held, record: Record, error: BadRecord) -> None:
        self.given_up.append(record.value)
        held.end(record.offset)

    def drop(self, held: Held) -> None:
        self.drops.append(held.partition)


@asynccontextmanager
async def member(
    settings: Settings, name: str, topic: str, role: Keeper, health: Health | None = None
) -> AsyncIterator[Group]:
    group = Group(settings, name, [topic], role, health or Health())
    task = asyncio.create_task(group.run())
    try:
        yield group
    finally:
        group.stop()
        await asyncio.wait_for(task, 10)


async def until(what: Callable[[], bool], limit_s: float = 20.0) -> None:
    async with asyncio.timeout(limit_s):
        while not what():
            await asyncio.sleep(0.02)


async def claims(settings: Settings, name: str) -> dict[int, tuple[int, Claim]]:
    """What stands in the log about a group's partitions."""
    admin = AIOKafkaAdminClient(bootstrap_servers=settings.kafka.bootstrap)
    await admin.start()
    try:
        offsets = await admin.list_consumer_group_offsets(name)
        return {w.partition: (o.offset, Claim.decode(o.metadata, o.offset)) for w, o in offsets.items()}
    finally:
        await admin.close()


async def test_a_partition_is_taken_over_before_its_first_record_and_its_prefix_is_committed(
    log_settings: Settings, new_topic: NewTopicName, producer: Producer
) -> None:
    topic = await new_topic(1)
    for number in range(5):
        await producer.send(topic, b"%d" % number, key=b"k", partition=0)
    role = Keeper()
    async with member(log_settings, topic, topic, role) as group:
        await until(lambda: len(role.records) == 5)
        assert [value for _, value in role.records] == [b"0", b"1", b"2", b"3", b"4"]
        await role.held[0].prove()
        offset, claim = (await claims(log_settings, topic))[0]
    assert (offset, claim.holder, claim.takeover) == (5, group.holder, 1)


async def test_a_successor_raises_the_number_and_skips_what_has_ended(
    log_settings: Settings, new_topic: NewTopicName, producer: Producer
) -> None:
    topic = await new_topic(1)
    for number in range(6):
        await producer.send(topic, b"%d" % number, key=b"k", partition=0)
    first = Keeper(end_at_once=False)
    async with member(log_settings, topic, topic, first):
        await until(lambda: len(first.records) == 6)
        for offset in (0, 2, 3, 5):  # 1 and 4 stay open
            first.held[0].end(offset)
        await first.held[0].prove()
    offset, claim = (await claims(log_settings, topic))[0]
    assert (offset, claim.ended) == (1, {2, 3, 5})
    second = Keeper()
    async with member(log_settings, topic, topic, second):
        await until(lambda: len(second.records) == 2)
        await producer.send(topic, b"6", key=b"k", partition=0)
        await until(lambda: len(second.records) == 3)
        assert [value for _, value in second.records] == [b"1", b"4", b"6"]
        assert second.held[0].takeover == 2


async def test_a_rebalance_leaves_what_stays_alone_and_drops_what_goes(
    log_settings: Settings, new_topic: NewTopicName, producer: Producer
) -> None:
    topic = await new_topic(4)
    for partition in range(4):
        await producer.send(topic, b"a", key=b"k", partition=partition)
    first, second = Keeper(end_at_once=False), Keeper(end_at_once=False)
    async with member(log_settings, topic, topic, first):
        await until(lambda: len(first.records) == 4)
        tasks = {p: held.spawn(asyncio.Event().wait(), "turn") for p, held in first.held.items()}  # type: ignore[arg-type]
        async with member(log_settings, topic, topic, second):
            await until(lambda: len(second.records) == 2)
            moved = {partition for partition, _ in second.records}
            await until(lambda: set(first.drops) == moved)
            await asyncio.sleep(0)
            assert {p for p, task in tasks.items() if task.cancelled()} == moved
            stayed = set(range(4)) - moved
            for partition in stayed:
                await asyncio.wait_for(first.held[partition].prove(), 10)
                assert first.held[partition].takeover == 1
                await producer.send(topic, b"b", key=b"k", partition=partition)
            await until(lambda: len(first.records) == 6)
            # Nothing was delivered a second time.
            assert sorted(first.records[4:]) == sorted((p, b"b") for p in stayed)
            assert {held.takeover for held in second.held.values()} == {2}


async def test_a_proof_waits_through_a_rebalance(
    log_settings: Settings, new_topic: NewTopicName, producer: Producer
) -> None:
    topic = await new_topic(2)
    role, other = Keeper(), Keeper()
    async with member(log_settings, topic, topic, role) as group:
        await until(lambda: len(role.held) == 2)
        await group.on_partitions_revoked([])  # as a rebalance begins: the committer is closed
        proofs = {p: asyncio.create_task(held.prove()) for p, held in role.held.items()}
        await asyncio.sleep(0.2)
        assert not any(proof.done() for proof in proofs.values())
        async with member(log_settings, topic, topic, other):
            await until(lambda: len(other.held) == 1)
            (gone,) = other.held
            with suppress(asyncio.CancelledError):
                await asyncio.wait_for(proofs[gone], 10)
            assert proofs[gone].cancelled()
            await asyncio.wait_for(proofs[1 - gone], 10)


async def test_the_floor_of_a_role_s_state_travels_from_holder_to_holder(
    log_settings: Settings, new_topic: NewTopicName, producer: Producer
) -> None:
    topic = await new_topic(1)
    first, second = Keeper(), Keeper()
    async with member(log_settings, topic, topic, first):
        await until(lambda: 0 in first.held)
        assert first.held[0].floor == 0
        first.held[0].floor = 41
        await first.held[0].prove()
    async with member(log_settings, topic, topic, second):
        await until(lambda: 0 in second.held)
        assert second.held[0].floor == 41
        _, claim = (await claims(log_settings, topic))[0]
        assert claim.floor == 41  # the takeover itself has kept it


async def test_a_partition_stands_still_rather_than_be_given_up_record_by_record(
    log_settings: Settings, new_topic: NewTopicName, producer: Producer
) -> None:
    """More than 20 of the last 100 records: a bad deployment, not bad records. By partition; others go on."""
    topic = await new_topic(2)
    role, health = Keeper(), Health()
    async with member(log_settings, topic, topic, role, health) as group:
        await until(lambda: len(role.held) == 2)
        for number in range(30):
            await producer.send(topic, b"bad %d" % number, key=b"k", partition=0)
        await until(lambda: role.held[0].still)
        await producer.send(topic, b"good", key=b"k", partition=0)
        await producer.send(topic, b"good", key=b"k", partition=1)
        await until(lambda: (1, b"good") in role.records)
        await role.held[0].prove()
        assert role.given_up == [b"bad %d" % number for number in range(20)]
        assert f"{topic}-0 stands still" in health.readiness()
        offset, _ = (await claims(log_settings, topic))[0]
        assert offset == 20, "the first record that was not given up is there for whoever is better at it"
        await group.on_partitions_revoked([])
        await group.on_partitions_assigned(set(group.held))  # a reassignment forgets pauses
        await until(lambda: role.held[1].gate)
        await asyncio.sleep(0.5)
        assert (0, b"good") not in role.records
    better = Keeper()
    async with member(log_settings, topic, topic, better):
        await until(lambda: (0, b"good") in better.records)  # ten more were given up: within the measure


async def test_one_bad_record_in_five_is_borne(
    log_settings: Settings, new_topic: NewTopicName, producer: Producer
) -> None:
    topic = await new_topic(1)
    role = Keeper()
    async with member(log_settings, topic, topic, role):
        for number in range(200):
            await producer.send(topic, b"bad" if number % 5 == 0 else b"good", key=b"k", partition=0)
        await until(lambda: len(role.records) == 160)
        assert len(role.given_up) == 40
        assert not role.held[0].still


async def test_a_static_member_that_has_lost_its_place_is_gone_at_once(
    log_settings: Settings, new_topic: NewTopicName, producer: Producer
) -> None:
    """It stood still for longer than its session: whoever takes its place must not wait for it any longer."""
    topic = await new_topic(1)
    await producer.send(topic, b"a", key=b"k", partition=0)
    kafka = log_settings.kafka.model_copy(update={"session_timeout_ms": 1_000})
    settings = log_settings.model_copy(update={"instance": "frozen", "kafka": kafka})
    role = Keeper()
    group = Group(settings, topic, [topic], role, Health())
    running = asyncio.create_task(group.run())
    await until(lambda: len(role.records) == 1)
    time.sleep(2.5)  # noqa: ASYNC251 - the whole process stands still, heartbeats too
    loop = asyncio.get_running_loop()
    with pytest.raises(MemberLost):
        await asyncio.wait_for(asyncio.shield(group._failure), 20)  # type: ignore[arg-type]
    lost_at = loop.time()
    with pytest.raises(MemberLost):
        await asyncio.wait_for(running, 10)
    assert loop.time() - lost_at < 2
