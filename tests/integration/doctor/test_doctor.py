"""`parley doctor` on real services: well, absent, and wrong in the ways that operators meet."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest
import yaml
from click.testing import CliRunner

from infra.doctor import engines, log, stores
from infra.doctor.cli import doctor, examine
from infra.doctor.findings import Finding, Level
from infra.local.cassandra import MessageStore
from infra.local.checks import free_ports
from parley.clock import now_ms
from parley.log.admin import connect
from parley.log.producer import Producer
from parley.settings import Settings
from parley.stores.migrate import migrate
from parley.topics import CAPACITY, TOPICS_FILE
from parley.topics_cli import apply_topics
from schemas.operations import PoolStatus
from schemas.wire import encode, headers
from tests.integration.stores_parts import all_settings, fresh_database, messages_settings

pytestmark = pytest.mark.stack


def told(findings: list[Finding], level: Level) -> list[str]:
    return [f"{finding.found} → {finding.todo}" for finding in findings if finding.level is level]


def write_topics(folder: Path, name: str, **fields: object) -> Path:
    """The topics file with a topic more, that no other test has."""
    raw = yaml.safe_load(TOPICS_FILE.read_text())
    raw["topics"][name] = {"key": "session", "retention": "7d", "events": ["turn.ended"], **fields}
    path = folder / "topics.yaml"
    path.write_text(yaml.safe_dump(raw))
    return path


@pytest.fixture
def name() -> str:
    """Of that topic."""
    return f"t{uuid4().hex[:8]}.turns"


@pytest.fixture
async def own(kafka_bootstrap: str, tmp_path: Path, name: str) -> AsyncIterator[Settings]:
    """Settings with that topic, the only one that is not there yet; it is taken away again."""
    await apply_topics(settings_with(kafka_bootstrap, TOPICS_FILE))
    settings = settings_with(kafka_bootstrap, write_topics(tmp_path, name))
    yield settings
    async with connect(settings.kafka) as admin:
        await admin.delete([name])


def settings_with(bootstrap: str, topics_file: Path) -> Settings:
    return Settings.model_validate({"kafka": {"bootstrap": bootstrap}, "cluster": {"topics_file": topics_file}})


async def test_topics_that_are_missing_or_differ_say_what_to_do(own: Settings, tmp_path: Path, name: str) -> None:
    [missing] = told(await log.topics(own), Level.FAIL)
    assert (name in missing, missing.endswith("→ `parley topics apply`")) == (True, True)
    await apply_topics(own)
    assert told(await log.topics(own), Level.FAIL) == []

    other = settings_with(own.kafka.bootstrap, write_topics(tmp_path, name, retention="8d", partitions=3))
    partitions, retention, equal = told(await log.topics(other), Level.FAIL)
    assert f"{name} has 16 partitions, topics.yaml says 3 → correct topics.yaml, or make a new cell" in partitions
    assert f"{name}: retention.ms is 604800000, topics.yaml says 691200000 → `parley topics apply`" in retention
    assert "session-keyed topics" in equal


async def test_brokers_are_asked_for_what_the_protocol_needs(kafka_bootstrap: str) -> None:
    settings = Settings.model_validate({"kafka": {"bootstrap": kafka_bootstrap}})
    findings = await log.brokers(settings)
    assert any("Kafka 4.0 or newer" in one for one in told(findings, Level.OK))
    large = Settings.model_validate({"kafka": {"bootstrap": kafka_bootstrap, "max_request_size": 1 << 30}})
    assert any("message.max.bytes ≥" in one for one in told(await log.brokers(large), Level.FAIL))
    three = Settings.model_validate({"kafka": {"bootstrap": kafka_bootstrap}, "cluster": {"replication": 3}})
    assert any("replication 3 needs as many" in one for one in told(await log.brokers(three), Level.FAIL))


async def test_a_record_that_this_version_cannot_read_is_found(own: Settings, name: str) -> None:
    await apply_topics(own)
    producer = Producer(own.kafka, "test")
    await producer.start()
    try:
        await producer.send(name, b'{"v": 2}', key=b"k", partition=5, headers=headers("turn.ended"))
    finally:
        await producer.stop()
    unreadable = await log.unreadable_records(own, [name])
    assert [one.split(":")[0] for one in unreadable] == [f"{name}-5@0"]
    [found] = told(await log.records(own), Level.WARN)
    assert "upgrade readers first" in found


async def test_the_brokers_clock_is_read_from_the_next_report_of_a_worker(kafka_bootstrap: str) -> None:
    settings = Settings.model_validate({"kafka": {"bootstrap": kafka_bootstrap}})
    await apply_topics(settings)
    producer = Producer(settings.kafka, "test")
    await producer.start()

    async def report() -> None:
        """As a worker does, each second."""
        about = {"pool": "test", "worker": "test", "slots": 1, "running": 0, "queued": {}, "oldest_queued_ms": {}}
        status = PoolStatus.model_validate(about | {"at": now_ms()})
        while True:
            await producer.send(CAPACITY, encode(status), key=b"test", partition=0, headers=headers(status.type))
            await asyncio.sleep(0.2)

    reporting = asyncio.create_task(report())
    try:
        [finding] = await log.clocks(settings)
        assert (finding.level, "brokers: " in finding.found) == (Level.OK, True)
    finally:
        reporting.cancel()
        await asyncio.gather(reporting, return_exceptions=True)
        await producer.stop()


async def test_groups_without_members_are_named(kafka_bootstrap: str) -> None:
    settings = Settings.model_validate({"kafka": {"bootstrap": kafka_bootstrap}})
    dead = told(await log.groups(settings), Level.FAIL)
    assert "worker-smol has no members → start the role; `parley lag` tells more" in dead


async def test_stores_want_a_migration_until_they_have_it(postgres_dsn: str, message_store: MessageStore) -> None:
    settings = all_settings(messages=messages_settings(message_store), postgres=await fresh_database(postgres_dsn))
    for check in (stores.postgres, stores.messages):
        [lacking] = told(await check(settings), Level.FAIL)
        assert lacking.endswith("→ `parley migrate`")
    await migrate(settings)
    for check in (stores.postgres, stores.messages):
        findings = await check(settings)
        assert [finding.level for finding in findings] == [Level.OK, Level.OK], findings
        assert "ms from this machine's" in findings[1].found


async def test_each_engine_is_asked_for_a_token(synthetic_engine: str) -> None:
    [port] = free_ports(1)
    addresses = {"synthetic": [synthetic_engine, f"127.0.0.1:{port}"], "nowhere": ["127.0.0.1:1"]}
    findings = await engines.engines(Settings.model_validate({"engines": addresses}))
    assert [one for one in told(findings, Level.OK) if f"at {synthetic_engine}: a token in" in one]
    [dead] = told(findings, Level.FAIL)
    assert f"pool synthetic at 127.0.0.1:{port}" in dead
    unset, unknown = told(findings, Level.WARN)
    assert 'PARLEY_ENGINES={"smol": "host:port"}' in unset
    assert "nowhere is no pool" in unknown


async def test_what_is_away_is_a_finding_and_the_rest_is_looked_at_all_the_same() -> None:
    [port] = free_ports(1)
    dead = {"kafka": {"bootstrap": f"127.0.0.1:{port}"}, "messages": {"port": port}}
    postgres = {"postgres": {"dsn": f"postgresql://nobody@127.0.0.1:{port}/none"}}
    settings = Settings.model_validate(dead | postgres)
    findings = await examine(settings, ["versions", "kafka", "topics", "groups", "postgresql", "message store"])
    assert [(finding.check, finding.level) for finding in findings] == [
        ("versions", Level.OK),
        *((name, Level.FAIL) for name in ("kafka", "topics", "groups", "postgresql", "message store")),
    ]
    assert all("start" in finding.todo for finding in findings[1:])


async def test_scripts_get_an_exit_code_and_json() -> None:
    [port] = free_ports(1)
    env = {"PARLEY_KAFKA__BOOTSTRAP": f"127.0.0.1:{port}"}
    arguments = ["--only", "kafka", "--only", "versions", "--json"]
    result = await asyncio.to_thread(CliRunner().invoke, doctor, arguments, env=env)
    assert result.exit_code == 5
    kafka, versions = json.loads(result.output)
    assert (kafka["level"], versions["level"], versions["todo"]) == ("fail", "ok", None)
    well = await asyncio.to_thread(CliRunner().invoke, doctor, ["--only", "schemas", "--quiet"])
    assert (well.exit_code, well.output.strip()) == (0, "")
