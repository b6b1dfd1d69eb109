"""The usage role as a process on a real broker: counts stay exact when it is killed, and when the log is read again.

On a Kafka of its own, since the log is read again from its beginning. Users are new in each test.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.structs import OffsetAndMetadata
from click.testing import CliRunner

from consumers.usage.cli import usage
from consumers.usage.main import run
from consumers.usage.names import APP
from consumers.usage.report import Row, read_usage
from consumers.usage.tally import hour_of
from parley.errors import ParleyError
from parley.ids import Keys, new_response_id, new_session
from parley.log.losses import LIMIT
from parley.log.partitions import partition_of
from parley.log.ranges import Record
from parley.settings import Settings
from parley.topics import DLQ, TOPICS_FILE, TURNS
from parley.topics_cli import apply_topics
from schemas.base import Epoch, Usage
from schemas.turns import SessionDeleted, TurnEnded
from schemas.wire import REPLAY_HEADER, encode

pytestmark = pytest.mark.stack

KEYS = Keys((b"for tests",))
PATIENCE_S = 60
ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Role:
    """The usage role, as a process."""

    bootstrap: str
    process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        self.process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            "from consumers.usage.cli import usage; usage(['serve'])",
            cwd=ROOT,
            env=os.environ | {"PARLEY_KAFKA__BOOTSTRAP": self.bootstrap, "PARLEY_KAFKA__SESSION_TIMEOUT_MS": "2000"},
        )

    async def end(self, how: signal.Signals) -> int:
        assert self.process is not None
        self.process.send_signal(how)
        try:
            async with asyncio.timeout(30):
                return await self.process.wait()
        finally:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()


@pytest.fixture
async def settings(kafka_of_its_own: str) -> Settings:
    made = Settings.model_validate({"kafka": {"bootstrap": kafka_of_its_own}})
    await apply_topics(made)
    return made


@asynccontextmanager
async def running(settings: Settings) -> AsyncIterator[Role]:
    role = Role(settings.kafka.bootstrap)
    await role.start()
    try:
        yield role
    finally:
        if role.process is not None and role.process.returncode is None:
            await role.end(signal.SIGKILL)


def turn(user: UUID, *, tokens: int = 10, epoch: Epoch = (1, 1, 1, 1), like: TurnEnded | None = None) -> TurnEnded:
    """The end of a turn; `like` another end of the same turn."""
    session = new_session() if like is None else like.session
    now_ms = time.time_ns() // 1_000_000
    return TurnEnded(
        response=new_response_id(KEYS, user, session, 0, 0, now_ms) if like is None else like.response,
        session=session,
        user=user,
        tier="paid",
        turn=1,
        parent=None,
        dispatch=epoch[:2],
        epoch=epoch,
        status="completed",
        output=(),
        usage=Usage(input_tokens=tokens, output_tokens=2 * tokens, generated_tokens=3 * tokens),
        model="synthetic",
        code="test",
        accepted_at=now_ms,
        ended_at=now_ms,
    )


@dataclass
class Log:
    """chat.turns, as writers see it."""

    producer: AIOKafkaProducer
    partitions: int

    async def write(self, *ends: TurnEnded) -> None:
        for end in ends:
            await self.raw(encode(end), end.session)

    async def raw(self, value: bytes | None, session: UUID, headers: tuple[tuple[str, bytes], ...] = ()) -> None:
        key = session.hex.encode()
        partition = partition_of(key, self.partitions)
        await self.producer.send_and_wait(TURNS, value, key=key, partition=partition, headers=list(headers))


@pytest.fixture
async def log(settings: Settings) -> AsyncIterator[Log]:
    async with AIOKafkaProducer(bootstrap_servers=settings.kafka.bootstrap, acks="all") as producer:
        yield Log(producer, settings.topics.session_partitions)


async def counted(settings: Settings, user: UUID, turns: int) -> tuple[int, int, int, int]:
    """The user's sums, once that many turns are counted and nothing changes any more."""
    deadline = time.monotonic() + PATIENCE_S
    before: list[Row] = []
    while True:
        rows = await read_usage(settings, lambda one, hour: one == user)
        if sum(row.turns for row in rows) >= turns and rows == before:
            break
        assert time.monotonic() < deadline, f"only {rows} after {PATIENCE_S} s"
        before = rows
        await asyncio.sleep(0.5)
    return (
        sum(row.turns for row in rows),
        sum(row.input_tokens for row in rows),
        sum(row.output_tokens for row in rows),
        sum(row.generated_tokens for row in rows),
    )


async def all_read(settings: Settings, log: Log) -> None:
    """Every partition has been read up to now: a marker behind everything in each has been counted."""
    user, markers = uuid4(), dict[int, TurnEnded]()
    while len(markers) < settings.topics.session_partitions:
        marker = turn(user)
        markers[partition_of(marker.session.hex.encode(), settings.topics.session_partitions)] = marker
    await log.write(*markers.values())
    await counted(settings, user, len(markers))


async def rewind(settings: Settings) -> None:
    """Reset the role's group to the beginning of the log; the role must be down and its session over."""
    partitions = [TopicPartition(TURNS, number) for number in range(settings.topics.session_partitions)]
    consumer = AIOKafkaConsumer(bootstrap_servers=settings.kafka.bootstrap, group_id=APP, enable_auto_commit=False)
    await consumer.start()
    try:
        consumer.assign(partitions)
        await consumer.commit({one: OffsetAndMetadata(0, "") for one in partitions})
    finally:
        await consumer.stop()


async def test_turns_and_tokens_are_counted_by_user_and_hour(settings: Settings, log: Log) -> None:
    ada, ben = uuid4(), uuid4()
    ends = [turn(ada, tokens=number) for number in range(1, 41)]
    async with running(settings) as role:
        await log.write(*ends, turn(ben, tokens=7))
        assert await counted(settings, ada, 40) == (40, 820, 1640, 2460)
        assert await counted(settings, ben, 1) == (1, 7, 14, 21)
        assert await role.end(signal.SIGTERM) == 0

    shown = await asyncio.to_thread(
        CliRunner().invoke,
        usage,
        ["--user", str(ada), "--json"],
        env={"PARLEY_KAFKA__BOOTSTRAP": settings.kafka.bootstrap},
    )
    assert shown.exit_code == 0, shown.output
    rows = json.loads(shown.output)
    assert sum(row["turns"] for row in rows) == 40
    assert {row["hour"][:13] for row in rows} == set(hours_of(ends))


def hours_of(ends: list[TurnEnded]) -> Iterator[str]:
    for end in ends:
        yield time.strftime("%Y-%m-%dT%H", time.gmtime(hour_of(end.response) * 3600))


async def test_a_turn_with_several_ends_is_counted_once_and_the_greatest_epoch_stands(
    settings: Settings, log: Log
) -> None:
    user = uuid4()
    async with running(settings):
        first, second = turn(user, tokens=5), turn(user, tokens=1)
        await log.write(first, first, second)
        assert await counted(settings, user, 2) == (2, 6, 12, 18)
        await log.write(turn(user, tokens=100, epoch=(1, 2, 1, 1), like=first))
        await log.write(turn(user, tokens=999, epoch=(1, 1, 9, 9), like=first))
        await all_read(settings, log)
        assert await counted(settings, user, 2) == (2, 101, 202, 303)


async def test_killed_in_the_middle_and_read_again_from_the_beginning_the_sums_stay(
    settings: Settings, log: Log
) -> None:
    user = uuid4()
    expected = (300, 3000, 6000, 9000)
    ends = [turn(user) for _ in range(300)]
    async with running(settings) as role:
        await log.write(*ends[:100])
        await counted(settings, user, 1)
        await log.write(*ends[100:200])
        await role.end(signal.SIGKILL)
    async with running(settings) as role:
        await log.write(*ends[200:], *ends[:50])
        assert await counted(settings, user, 300) == expected
        await all_read(settings, log)
        assert await role.end(signal.SIGTERM) == 0

    await rewind(settings)
    async with running(settings):
        await all_read(settings, log)
        assert await counted(settings, user, 300) == expected


async def test_two_processes_share_the_partitions_and_one_takes_over_from_the_other(
    settings: Settings, log: Log
) -> None:
    user = uuid4()
    async with running(settings), running(settings) as second:
        await log.write(*(turn(user) for _ in range(60)))
        assert await counted(settings, user, 60) == (60, 600, 1200, 1800)
        await second.end(signal.SIGKILL)
        await log.write(*(turn(user) for _ in range(60)))
        assert await counted(settings, user, 120) == (120, 1200, 2400, 3600)


async def test_bad_records_go_to_the_dead_letters_and_the_next_good_one_counts(settings: Settings, log: Log) -> None:
    user, session = uuid4(), new_session()
    good = turn(user, tokens=3).model_copy(update={"session": session})
    start = await ends_of(settings, DLQ)
    async with running(settings):
        for value in (b"\xff\xfe{", None, encode(good).replace(b'"v":1', b'"v":99')):
            await log.raw(value, session, headers=(("type", b"turn.ended"),))
        await log.raw(encode(turn(user, tokens=1000)), session, headers=((REPLAY_HEADER, b"r1"),))
        await log.raw(encode(SessionDeleted(session=session, user=user, at=1)), session)
        await log.raw(encode(good), session)
        assert await counted(settings, user, 1) == (1, 3, 6, 9)
        await all_read(settings, log)

    # A record may be read, and buried, again when partitions move before it is committed: told apart by its offset.
    records = [record for record in await records_from(settings, DLQ, start) if record.key == session.hex.encode()]
    buried = {dict(record.headers)["x-dlq-offset"]: record for record in records}
    assert [record.value for record in buried.values()][:2] == [b"\xff\xfe{", None]
    assert len(buried) == 3
    about = dict(records[0].headers)
    assert (about["x-dlq-topic"], about["x-dlq-group"], about["type"]) == (
        b"chat.turns",
        b"parley-usage",
        b"turn.ended",
    )


async def test_a_partition_of_which_hardly_anything_can_be_read_stands_still_and_the_others_go_on(
    settings: Settings, log: Log
) -> None:
    """A bad deployment must not empty the topic into the dead letters; the right one counts what comes then."""
    user, session = uuid4(), new_session()
    beside = next(one for one in iter(lambda: turn(user), None) if _where(one.session, log) != _where(session, log))
    start = await ends_of(settings, DLQ)
    async with running(settings):
        for _ in range(LIMIT + 5):
            await log.raw(b"{", session)
        await log.write(turn(user).model_copy(update={"session": session}), beside)
        assert await counted(settings, user, 1) == (1, 10, 20, 30)
        letters = [one for one in await records_from(settings, DLQ, start) if one.key == session.hex.encode()]
        assert len({dict(one.headers)["x-dlq-offset"] for one in letters}) == LIMIT
    async with running(settings):  # what was given up is behind it: the few that are left are bad records
        assert await counted(settings, user, 2) == (2, 20, 40, 60)


def _where(session: UUID, log: Log) -> int:
    return partition_of(session.hex.encode(), log.partitions)


async def ends_of(settings: Settings, topic: str) -> dict[TopicPartition, int]:
    async with AIOKafkaConsumer(bootstrap_servers=settings.kafka.bootstrap) as consumer:
        partitions = [TopicPartition(topic, one) for one in range(settings.topics.topics[topic].partitions)]
        return dict(await consumer.end_offsets(partitions))


async def records_from(settings: Settings, topic: str, start: dict[TopicPartition, int]) -> list[Record]:
    """Everything between these offsets and the present ends."""
    ends = await ends_of(settings, topic)
    grown = [one for one in ends if ends[one] > start[one]]
    records: list[Record] = []
    async with AIOKafkaConsumer(bootstrap_servers=settings.kafka.bootstrap) as consumer:
        consumer.assign(grown)
        for one in grown:
            consumer.seek(one, start[one])
        while len(records) < sum(ends[one] - start[one] for one in grown):
            for batch in (await consumer.getmany(timeout_ms=500)).values():
                records += batch
    return records


async def test_without_a_broker_the_role_says_so(settings: Settings) -> None:
    kafka = settings.kafka.model_copy(update={"bootstrap": "127.0.0.1:1"})
    with pytest.raises(ParleyError, match=r"no Kafka broker answers at 127\.0\.0\.1:1"):
        await run(settings.model_copy(update={"kafka": kafka}))


async def test_with_topics_that_do_not_fit_the_role_says_what_to_do(settings: Settings, tmp_path: Path) -> None:
    file = tmp_path / "topics.yaml"
    file.write_text(TOPICS_FILE.read_text().replace("session_partitions: 16", "session_partitions: 8"))
    other = Settings.model_validate({"kafka": settings.kafka, "cluster": {"topics_file": str(file)}})
    with pytest.raises(ParleyError, match="has 16 partitions, not 8: run `parley topics apply`"):
        await run(other)
