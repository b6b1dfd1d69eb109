"""The embedded stack for real: data outlives any end, and nothing outlives the supervisor."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psutil
import psycopg
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, Session
from cassandra.io.libevreactor import LibevConnection
from cassandra.policies import RoundRobinPolicy

from infra.local.aside import settings_aside
from infra.local.cassandra import MessageStore
from infra.local.problems import StackError
from infra.local.process import lives
from infra.local.settings import LocalSettings
from infra.local.stack import LocalStack

pytestmark = pytest.mark.stack

TOPIC = "kept"


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[LocalStack]:
    """A stack of the test's own, so that it may be killed."""
    async with LocalStack(settings_aside(tmp_path)) as stack:
        yield stack


async def write_record(bootstrap: str, value: bytes) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    await admin.create_topics([NewTopic(TOPIC, num_partitions=1, replication_factor=1)])
    await admin.close()
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all") as producer:
        await producer.send_and_wait(TOPIC, value)


async def read_record(bootstrap: str) -> bytes:
    async with AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(TOPIC, 0)])
        async with asyncio.timeout(15):
            value = (await consumer.getone()).value
    assert isinstance(value, bytes)
    return value


@contextlib.contextmanager
def cql(host: str, port: int) -> Iterator[Session]:
    profile = ExecutionProfile(load_balancing_policy=RoundRobinPolicy(), request_timeout=60)
    profiles = {EXEC_PROFILE_DEFAULT: profile}
    cluster = Cluster([host], port, execution_profiles=profiles, connection_class=LibevConnection, connect_timeout=60)
    try:
        yield cluster.connect()
    finally:
        cluster.shutdown()


class TestDataOutlives:
    async def test_kafka_keeps_its_records_over_a_kill_and_over_an_orderly_end(self, stack: LocalStack) -> None:
        await stack.start("kafka")
        await write_record(stack.kafka.bootstrap, b"hello")

        stack.kafka.kill()
        await stack.restart("kafka")
        assert await read_record(stack.kafka.bootstrap) == b"hello"

        await stack.stop()
        await stack.start("kafka")
        assert await read_record(stack.kafka.bootstrap) == b"hello"

    async def test_cassandra_keeps_its_rows_over_a_kill_and_over_an_orderly_end(self, stack: LocalStack) -> None:
        def write() -> None:
            with cql("127.0.0.1", stack.cassandra.port) as session:
                session.execute(
                    "CREATE KEYSPACE kept WITH replication = {'class': 'NetworkTopologyStrategy', 'datacenter1': 1}"
                )
                session.execute("CREATE TABLE kept.words (id int PRIMARY KEY, word text)")
                session.execute("INSERT INTO kept.words (id, word) VALUES (1, 'hello')")

        def read() -> str:
            with cql("127.0.0.1", stack.cassandra.port) as session:
                return str(session.execute("SELECT word FROM kept.words WHERE id = 1").one().word)

        await stack.start("cassandra")
        await asyncio.to_thread(write)

        stack.cassandra.kill()
        await stack.restart("cassandra")
        assert await asyncio.to_thread(read) == "hello"

        await stack.stop()
        await stack.start("cassandra")
        assert await asyncio.to_thread(read) == "hello"

    async def test_postgres_keeps_its_rows_and_its_password_over_a_kill_and_over_an_orderly_end(
        self, stack: LocalStack
    ) -> None:
        async def read() -> object:
            async with await psycopg.AsyncConnection.connect(stack.postgres.dsn) as connection:
                row = await (await connection.execute("SELECT word FROM kept")).fetchone()
            return row and row[0]

        await stack.start("postgres")
        async with await psycopg.AsyncConnection.connect(stack.postgres.dsn) as connection:
            await connection.execute("CREATE TABLE kept (word text)")
            await connection.execute("INSERT INTO kept VALUES ('hello')")

        stack.postgres.kill()
        await stack.restart("postgres")
        assert await read() == "hello"

        await stack.stop()
        await stack.start("postgres")
        assert await read() == "hello"


class TestServices:
    async def test_postgres_lets_nobody_in_without_the_password(self, postgres_dsn: str) -> None:
        with pytest.raises(psycopg.OperationalError, match="password"):
            await psycopg.AsyncConnection.connect(re.sub(r"//(\w+):[^@]*@", r"//\1@", postgres_dsn))

    async def test_kafka_makes_no_topic_by_itself_and_stamps_records_itself(self, kafka_bootstrap: str) -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=kafka_bootstrap)
        await admin.start()
        try:
            (described,) = await admin.describe_topics(["nobody-made-this"])
            assert described["error_code"] == 3  # UNKNOWN_TOPIC_OR_PARTITION
            assert "nobody-made-this" not in await admin.list_topics()
        finally:
            await admin.close()

    async def test_the_message_store_answers_cql(self, message_store: MessageStore) -> None:
        def ask() -> str:
            with cql(message_store.host, message_store.port) as session:
                return str(session.execute("SELECT data_center FROM system.local").one().data_center)

        assert await asyncio.to_thread(ask) == message_store.datacenter

    async def test_an_engine_that_is_killed_leaves_the_other_alone(self, stack: LocalStack) -> None:
        await stack.start_services("triton-smol", "triton-synthetic")
        stack.engines["synthetic"].kill()
        assert stack.engines["synthetic"].process is not None
        await stack.engines["synthetic"].process.wait()
        await stack.engines["smol"].probe()
        with pytest.raises(OSError, match="Connect call failed"):
            await stack.engines["synthetic"].probe()
        await stack.restart("triton-synthetic")
        await stack.engines["synthetic"].probe()

    async def test_a_service_that_cannot_start_says_its_last_words(self, tmp_path: Path) -> None:
        settings = settings_aside(tmp_path)
        kafka = settings.kafka.model_copy(update={"heap": "1m"})
        async with LocalStack(settings.model_copy(update={"kafka": kafka})) as stack:
            with pytest.raises(
                StackError, match=r"Kafka ended with exit code 1 while starting; its last words in .*heap"
            ):
                await stack.start("kafka")


UP = """
import asyncio, json, sys
from infra.local.checks import PortUse
from infra.local.roles import Hook, RoleSpec
from infra.local.process import lives
from infra.local.settings import LocalSettings
from infra.local.up import Plan, up

async def announce(console, settings, environment):
    console.say("ready")

ROLE = "import os, time; print('role', os.getpid(), os.environ['PARLEY_POSTGRES__DSN'][:13]); time.sleep(600)"
settings = LocalSettings()
plan = Plan(
    hooks=[Hook("migrate", [sys.executable, "-c", "print('migrated')"], needs=("postgres",))],
    roles=[RoleSpec("worker", [sys.executable, "-c", ROLE], needs=("kafka",))],
    ports=[PortUse(settings.edge.port, "the edge", "PARLEY_LOCAL_EDGE__PORT")],
    announce=announce,
)
sys.exit(asyncio.run(up(settings, plan)))
"""


class Up:
    """`up` as a process of its own: PostgreSQL and one small role; everything else runs elsewhere already."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[str] = []

    @classmethod
    async def start(cls, settings: LocalSettings) -> Up:
        environment = {
            **os.environ,
            "PARLEY_LOCAL_DATA": str(settings.data),
            "PARLEY_LOCAL_KAFKA__BOOTSTRAP": str(settings.kafka.bootstrap),
            "PARLEY_LOCAL_CASSANDRA__HOSTS": json.dumps(settings.cassandra.hosts),
            "PARLEY_LOCAL_CASSANDRA__PORT": str(settings.cassandra.port),
            "PARLEY_LOCAL_POSTGRES__PORT": str(settings.postgres.port),
            "PARLEY_LOCAL_ENGINES": "{}",
            "PARLEY_LOCAL_EDGE__PORT": str(settings.edge.port),
        }
        out = asyncio.subprocess.PIPE
        return cls(
            await asyncio.create_subprocess_exec(
                sys.executable, "-u", "-c", UP, env=environment, stdout=out, stderr=asyncio.subprocess.STDOUT
            )
        )

    async def line(self, pattern: str) -> re.Match[str]:
        """The first line with `pattern`, of those that have come or will."""
        assert self.process.stdout is not None
        seen = 0
        async with asyncio.timeout(120):
            while True:
                for line in self.lines[seen:]:
                    if match := re.search(pattern, line):
                        return match
                seen = len(self.lines)
                if not (raw := await self.process.stdout.readline()):
                    break
                self.lines.append(raw.decode().rstrip())
        raise AssertionError(f"no line with {pattern!r} among {self.lines}")

    async def ready(self) -> list[psutil.Process]:
        """Wait until all runs; everything that it has started."""
        role = int((await self.line(r"^worker +\| role (\d+) postgresql://")).group(1))
        await self.line(r"^parley +\| ready$")
        family = psutil.Process(self.process.pid).children(recursive=True)
        assert role in [member.pid for member in family]
        assert "postgres" in [member.name() for member in family]
        return family


@pytest.fixture
def up_settings(tmp_path: Path, kafka_bootstrap: str, message_store: MessageStore) -> LocalSettings:
    settings = settings_aside(tmp_path)
    elsewhere = {"hosts": (message_store.host,), "port": message_store.port}
    return settings.model_copy(
        update={
            "kafka": settings.kafka.model_copy(update={"bootstrap": kafka_bootstrap}),
            "cassandra": settings.cassandra.model_copy(update=elsewhere),
            "engines": {},
        }
    )


@pytest.fixture
async def up(up_settings: LocalSettings) -> AsyncIterator[Up]:
    up = await Up.start(up_settings)
    yield up
    if up.process.returncode is None:
        up.process.kill()
    await up.process.wait()


async def gone(family: list[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Those that are left after at most `seconds`."""
    deadline = time.monotonic() + seconds
    while any(map(lives, family)) and time.monotonic() < deadline:
        await asyncio.sleep(0.1)
    return [process for process in family if lives(process)]


class TestUp:
    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    async def test_a_signal_ends_everything_at_once(self, up: Up, number: signal.Signals) -> None:
        family = await up.ready()
        told = time.monotonic()
        up.process.send_signal(number)
        assert await up.process.wait() == 0
        assert time.monotonic() - told < 10
        assert await gone(family, 1) == []

    async def test_nothing_is_left_when_the_supervisor_is_killed(self, up: Up) -> None:
        family = await up.ready()
        up.process.kill()
        await up.process.wait()
        assert await gone(family, 10) == []

    async def test_after_a_kill_it_starts_again_at_once(self, up: Up, up_settings: LocalSettings) -> None:
        await up.ready()
        up.process.kill()
        again = await Up.start(up_settings)
        try:
            await again.ready()
        finally:
            again.process.terminate()
            await again.process.wait()

    async def test_a_second_start_is_refused_in_one_sentence(self, up: Up, up_settings: LocalSettings) -> None:
        await up.ready()
        second = await Up.start(up_settings)
        await second.line(rf"^parley: Parley already runs on {up_settings.data} \(process {up.process.pid}\)")
        assert await second.process.wait() == 1
        assert len(second.lines) == 1

    async def test_a_taken_port_is_refused_in_one_sentence(self, up_settings: LocalSettings) -> None:
        server = await asyncio.start_server(lambda *_: None, "127.0.0.1", up_settings.edge.port)
        async with server:
            refused = await Up.start(up_settings)
            sentence = rf"^parley: Port {up_settings.edge.port} \(the edge\) is taken by .*\(process {os.getpid()}\)"
            await refused.line(sentence)
            assert await refused.process.wait() == 1
            assert len(refused.lines) == 1

    async def test_a_service_that_dies_is_started_again(self, up: Up, up_settings: LocalSettings) -> None:
        family = await up.ready()
        first = min((member for member in family if member.name() == "postgres"), key=lambda member: member.pid)
        first.kill()
        await up.line(r"PostgreSQL ended with signal SIGKILL; starting it again in 0\.1 s")
        await answers_again(up_settings)

    async def test_a_service_that_ends_while_it_starts_again_is_tried_again(
        self, up: Up, up_settings: LocalSettings
    ) -> None:
        family = await up.ready()
        first = min((member for member in family if member.name() == "postgres"), key=lambda member: member.pid)
        data = up_settings.data / "postgres" / "data"
        data.rename(data.with_name("away"))
        first.kill()
        await up.line(r"PostgreSQL ended with exit code \d while starting.*; starting it again in 0\.2 s")
        data.with_name("away").rename(data)
        await answers_again(up_settings)


async def answers_again(settings: LocalSettings) -> None:
    """PostgreSQL takes connections, after a while."""
    dsn = re.search(r"PARLEY_POSTGRES__DSN=(\S+)", (settings.data / "environment").read_text())
    assert dsn is not None
    async with asyncio.timeout(20):
        while True:
            with contextlib.suppress(psycopg.OperationalError):
                async with await psycopg.AsyncConnection.connect(dsn.group(1)):
                    break
            await asyncio.sleep(0.1)
