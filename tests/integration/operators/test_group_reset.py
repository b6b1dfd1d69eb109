"""`parley group reset` on a real broker: what is refused, where offsets land, and what members make of it."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from click.testing import Result

from parley.errors import ParleyError
from parley.log.groups import GroupReader, GroupState
from parley.log.held import Held
from parley.log.partitions import partition_of
from parley.log.ranges import Record
from parley.log.spans import open_spans
from parley.offsets.cli import group as group_command
from parley.offsets.moving import Mover
from parley.ownership import Claim
from parley.topics import AUDIT
from schemas.operations import OffsetsMoved
from schemas.wire import decoder, header
from tests.integration.lag.conftest import holding
from tests.integration.operators.conftest import Talk, now_ms

pytestmark = pytest.mark.stack

RECORDS = 100
STEP_MS = 1_000


@dataclass
class Reset:
    """A group of its own, on a topic of its own: two partitions, in each a record a second, by the producer's clock."""

    talk: Talk
    topic: str
    group: str
    first_ms: int

    async def command(self, *arguments: str) -> Result:
        return await self.talk.command(group_command, "reset", self.group, *arguments)

    async def state(self) -> GroupState:
        async with GroupReader(self.talk.settings.kafka) as reader:
            return await reader.read(self.group)

    async def offsets(self) -> dict[int, int]:
        return {where.partition: offset for where, (offset, _) in (await self.state()).committed.items()}

    async def member(self) -> AIOKafkaConsumer:
        """One that has read and committed everything, and stays."""
        consumer = AIOKafkaConsumer(
            self.topic,
            bootstrap_servers=self.talk.settings.kafka.bootstrap,
            group_id=self.group,
            client_id="reader",
            enable_auto_commit=False,
            auto_offset_reset="earliest",
        )
        await consumer.start()
        for _ in range(2 * RECORDS):
            await asyncio.wait_for(consumer.getone(), 30)
        await consumer.commit()
        return consumer

    async def read_next(self) -> dict[int, int]:
        """The first offset of each partition that a member gets now."""
        first: dict[int, int] = {}
        async with AIOKafkaConsumer(
            self.topic,
            bootstrap_servers=self.talk.settings.kafka.bootstrap,
            group_id=self.group,
            enable_auto_commit=False,
            auto_offset_reset="none",
        ) as consumer:
            while len(first) < 2:
                record = await asyncio.wait_for(consumer.getone(), 30)
                first.setdefault(record.partition, record.offset)
        return first

    def at(self, offset: int, after_ms: int = 0) -> str:
        """The time of a record, as an operator writes it."""
        moment = datetime.fromtimestamp((self.first_ms + offset * STEP_MS + after_ms) / 1000, UTC)
        return moment.replace(tzinfo=None).isoformat(timespec="milliseconds")

    async def audited(self) -> list[OffsetsMoved]:
        where = TopicPartition(
            AUDIT, partition_of(self.group.encode(), self.talk.settings.topics.topics[AUDIT].partitions)
        )
        found = []
        async with open_spans(self.talk.settings.kafka, "test") as spans:

            def take(record: Record) -> None:
                if header(record.headers, "type") == "offsets.moved":
                    found.append(decoder(OffsetsMoved)(record.value))

            await spans.read(await spans.bounds([where]), take)
        return [event for event in found if event.group == self.group]


@pytest.fixture
async def reset(talk: Talk) -> AsyncIterator[Reset]:
    topic, bootstrap = f"reset.{secrets.token_hex(6)}", talk.settings.kafka.bootstrap
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    first_ms = now_ms() - 3_600_000
    try:
        await admin.create_topics([NewTopic(topic, 2, 1, topic_configs={"message.timestamp.type": "CreateTime"})])
        async with AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all") as producer:
            for partition in range(2):
                for number in range(RECORDS):
                    at = first_ms + number * STEP_MS
                    await producer.send(topic, b"x", partition=partition, timestamp_ms=at)
        yield Reset(talk, topic, f"reset-{secrets.token_hex(4)}", first_ms)
        await admin.delete_topics([topic])
    finally:
        await admin.close()


def lines(result: Result, start: str) -> list[str]:
    return [line for line in result.output.splitlines() if line.startswith(start)]


async def test_a_view_is_moved_when_it_is_empty_to_where_it_was_asked_for(reset: Reset) -> None:
    """Field case F75: refused with the state while it is active; then done, read back, and told by partition."""
    member = await reset.member()
    try:
        refused = await reset.command("--to", "earliest", "--yes")
        assert refused.exit_code == 1
        assert f"nothing was moved: {reset.group} is Stable with 1 member: reader at" in refused.output
        shown = await reset.command("--to", "earliest")
        assert (shown.exit_code, "--yes would be refused" in shown.output) == (0, True)

        async with Mover(reset.talk.settings.kafka) as mover:  # one that joins after the look: Kafka itself refuses
            with pytest.raises(ParleyError, match="is Stable"):
                await mover.commit(reset.group, {TopicPartition(reset.topic, 0): (0, "")})
        assert await reset.offsets() == {0: RECORDS, 1: RECORDS}
    finally:
        await member.stop()
    assert await reset.audited() == []

    dry = await reset.command("--to", "earliest")
    assert (dry.exit_code, dry.output.splitlines()[-1]) == (0, "nothing was moved: --yes moves")
    assert lines(dry, f"{reset.topic}-0")[0].split() == [f"{reset.topic}-0", "0–100", "100", "0", "100", "0"]
    assert await reset.offsets() == {0: RECORDS, 1: RECORDS}

    done = await reset.command("--to", "earliest", "--yes")
    assert done.exit_code == 0, done.output
    assert lines(done, reset.topic)[-2:] == [f"{reset.topic}-0  100 -> 0", f"{reset.topic}-1  100 -> 0"]
    assert await reset.offsets() == {0: 0, 1: 0}
    assert await reset.read_next() == {0: 0, 1: 0}

    [said] = await reset.audited()
    assert [(one.partition, one.before, one.after) for one in said.moved] == [(0, 100, 0), (1, 100, 0)]
    assert (said.topic, said.command) == (reset.topic, "parley group reset")


async def test_times_and_offsets_are_met_exactly_also_by_one_partition_alone(reset: Reset) -> None:
    """Field case F75: a time is the brokers' index's, never the end by mistake."""
    await (await reset.member()).stop()

    async def lands(*arguments: str) -> dict[int, int]:
        result = await reset.command(*arguments, "--yes")
        assert result.exit_code == 0, result.output
        return await reset.offsets()

    assert await lands("--to", reset.at(40)) == {0: 40, 1: 40}
    assert await reset.read_next() == {0: 40, 1: 40}
    assert await lands("--to", reset.at(40, after_ms=1), "--partition", "1") == {0: 40, 1: 41}
    assert await lands("--to", "70", "--partition", "0", "--topic", reset.topic) == {0: 70, 1: 41}
    assert await lands("--to", reset.at(0, after_ms=-5_000)) == {0: 0, 1: 0}, "before the first record"
    assert await lands("--to", "1s") == {0: RECORDS, 1: RECORDS}, "after the last one"
    assert "no record since then: the end" in (await reset.command("--to", "1s")).output


async def test_what_is_not_there_is_refused_with_what_there_is(reset: Reset) -> None:
    unknown = await reset.command("--to", "earliest")
    assert (unknown.exit_code, f"there is no group {reset.group}: there are" in unknown.output) == (1, True)
    await (await reset.member()).stop()
    for arguments, reason in (
        (("--to", "101"), f"no offset 101: {reset.topic}-0 has 0 to 100, {reset.topic}-1 has 0 to 100"),
        (("--to", "5", "--partition", "2"), "2 partitions, so none numbered 2"),
        (("--to", "5", "--topic", "chat.turns"), f"has no offsets in chat.turns: it has some in {reset.topic}"),
    ):
        result = await reset.command(*arguments, "--yes")
        assert (result.exit_code, reason in result.output) == (1, True), result.output
    assert await reset.offsets() == {0: RECORDS, 1: RECORDS}


async def test_a_group_with_claims_is_taken_over_by_the_move(reset: Reset) -> None:
    """Takeover numbers go on rising, and records that had ended are taken once more."""
    taken: list[int] = []

    async def run(until: int, keeps: Iterable[int] = ()) -> int:
        """A member for as long as it takes to get a record of partition 0; gives its takeover of that."""
        taken.clear()
        number = 0

        def note(held: Held, record: Record) -> bool:
            nonlocal number
            if held.partition == 0:
                number = held.takeover
                taken.append(record.offset)
            return record.offset in keeps

        async with holding(reset.talk.settings, reset.group, reset.topic, note), asyncio.timeout(60):
            while not taken or taken[-1] < until:
                await asyncio.sleep(0.05)
            await asyncio.sleep(0.3)  # what has ended is committed
        return number

    def claim(state: GroupState) -> tuple[int, Claim]:
        offset, metadata = state.committed[TopicPartition(reset.topic, 0)]
        return offset, Claim.decode(metadata, offset)

    first = await run(until=99, keeps={30})
    committed, before = claim(await reset.state())
    assert (committed, before.takeover, len(before.ended)) == (30, first, 69)

    moved = await reset.command("--to", "20", "--yes")
    assert moved.exit_code == 0, moved.output
    assert lines(moved, f"{reset.topic}-0")[-1] == f"{reset.topic}-0  30 -> 20"
    committed, after = claim(await reset.state())
    assert (committed, after.takeover, after.ended) == (20, first + 1, frozenset())
    assert after.holder != before.holder

    assert await run(until=99) == first + 2
    assert taken == list(range(20, 100))
