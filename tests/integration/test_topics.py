"""`parley topics` against a real broker."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest
import yaml
from aiokafka import AIOKafkaProducer
from click.testing import CliRunner, Result

from parley.errors import ParleyError
from parley.ids import new_session
from parley.log.admin import connect, ensure_session_topic
from parley.log.topic_plan import LiveTopic
from parley.settings import KafkaSettings, Settings
from parley.topics import TOKENS, TOPICS_FILE
from parley.topics_cli import topics as command

pytestmark = pytest.mark.stack


class Cluster:
    """A topics file of its own, with names that no other test has, and the command against it."""

    def __init__(self, folder: Path, bootstrap: str) -> None:
        self.name = f"t{uuid4().hex[:8]}"
        self.bootstrap = bootstrap
        self.file = folder / "topics.yaml"
        self.raw = yaml.safe_load(TOPICS_FILE.read_text())
        self.raw["session_partitions"] = 2
        self.raw["topics"] = {
            TOKENS: self.raw["topics"][TOKENS],  # what session topics carry
            self.topic("turns"): {"key": "session", "retention": "7d"},
            self.topic("state"): {"key": "user", "cleanup": "compact", "partitions": 1},
        }
        self.raw["session_topics"] |= {"prefix": f"{self.name}.s.", "limit": 2}
        self.raw["inference"]["prefix"] = f"{self.name}.inference."
        self.raw["pools"] = {"synthetic": self.raw["pools"]["synthetic"]}
        self.raw["routing"] = [{"model": "synthetic", "pool": "synthetic"}]
        self.save()

    def topic(self, name: str) -> str:
        return f"{self.name}.{name}"

    def save(self) -> None:
        self.file.write_text(yaml.safe_dump(self.raw))

    @property
    def env(self) -> dict[str, str]:
        return {"PARLEY_KAFKA__BOOTSTRAP": self.bootstrap, "PARLEY_CLUSTER__TOPICS_FILE": str(self.file)}

    @property
    def settings(self) -> Settings:
        return Settings.model_validate(
            {"kafka": {"bootstrap": self.bootstrap}, "cluster": {"topics_file": str(self.file)}}
        )

    async def __call__(self, *arguments: str, **env: str) -> Result:
        return await run(*arguments, **{**self.env, **env})

    async def live(self, name: str) -> LiveTopic | None:
        async with connect(self.settings.kafka) as admin:
            return next((topic for topic in await admin.topics([name]) if topic.name == name), None)

    async def delete(self) -> None:
        async with connect(self.settings.kafka) as admin:
            await admin.delete([name for name in await admin.names() if name.startswith(self.name)])


async def run(*arguments: str, **env: str) -> Result:
    """The command runs an event loop of its own, so in a thread of its own."""
    return await asyncio.to_thread(CliRunner().invoke, command, list(arguments), env=env)


@pytest.fixture
async def cluster(tmp_path: Path, kafka_bootstrap: str) -> AsyncIterator[Cluster]:
    made = Cluster(tmp_path, kafka_bootstrap)
    yield made
    await made.delete()


async def test_plan_then_apply_then_nothing_is_left(cluster: Cluster) -> None:
    before = await cluster("plan", "--json")
    assert before.exit_code == 2
    lacking = {entry["topic"] for entry in json.loads(before.output)["create"]}
    assert lacking - {TOKENS} == set(cluster.settings.topics.topics) - {TOKENS}

    applied = await cluster("apply")
    assert applied.exit_code == 0, applied.output
    assert f"created {cluster.topic('turns')}: 2 partitions, kept 7d" in applied.output

    assert (await cluster("plan")).exit_code == 0
    turns = await cluster.live(cluster.topic("turns"))
    assert turns is not None
    assert turns.partitions == 2
    assert turns.own["message.timestamp.type"] == "LogAppendTime"
    state = await cluster.live(cluster.topic("state"))
    assert state is not None
    assert (state.partitions, state.own["cleanup.policy"]) == (1, "compact")


async def test_apply_corrects_a_setting_and_keeps_what_operators_set(cluster: Cluster) -> None:
    await cluster("apply")
    name = cluster.topic("turns")
    async with connect(cluster.settings.kafka) as admin:
        live = await admin.topics([name])
        await admin.alter({name: {"retention.ms": "1000", "flush.messages": "7"}}, live)

    planned = await cluster("plan")
    assert planned.exit_code == 2
    assert f"change {name}: retention.ms 1000 -> 604800000" in planned.output

    assert (await cluster("apply")).exit_code == 0
    live = await cluster.live(name)
    assert live is not None
    assert (live.own["retention.ms"], live.own["flush.messages"]) == ("604800000", "7")
    assert (await cluster("plan")).exit_code == 0


async def test_a_partition_count_is_an_error_and_the_topic_stays_as_it_is(cluster: Cluster) -> None:
    await cluster("apply")
    cluster.raw["session_partitions"] = 4
    cluster.save()
    for arguments in (["plan"], ["apply"]):
        result = await cluster(*arguments)
        assert result.exit_code == 1
        assert f"ERROR {cluster.topic('turns')} has 2 partitions, topics.yaml says 4" in result.output
    live = await cluster.live(cluster.topic("turns"))
    assert live is not None
    assert live.partitions == 2


async def test_a_topic_that_left_the_file_stays_until_it_is_named(cluster: Cluster) -> None:
    await cluster("apply")
    name = cluster.topic("state")
    assert "take it out of the file" in (await cluster("apply", "--delete", name)).output
    del cluster.raw["topics"][name]
    cluster.save()

    assert f"unknown {name}" in (await cluster("plan")).output
    assert (await cluster("apply")).exit_code == 0
    assert await cluster.live(name) is not None
    deleted = await cluster("apply", "--delete", name)
    assert (deleted.exit_code, f"deleted: {name}" in deleted.output) == (0, True)
    assert await cluster.live(name) is None
    assert f"was not there: {name}" in (await cluster("apply", "--delete", name)).output


async def test_no_broker_is_one_line_and_exit_code_1(cluster: Cluster) -> None:
    result = await cluster("plan", PARLEY_KAFKA__BOOTSTRAP="127.0.0.1:1")
    assert result.exit_code == 1
    assert result.output == "Error: no Kafka broker answers at 127.0.0.1:1 (PARLEY_KAFKA__BOOTSTRAP)\n"


async def test_a_file_that_does_not_say_what_it_must_is_one_clear_error(cluster: Cluster) -> None:
    cluster.raw["routing"] = [{"model": "synthetic", "pool": "gone"}]
    cluster.save()
    result = await cluster("plan")
    assert result.exit_code == 1
    assert "routing names the pool 'gone'" in result.output


async def test_check_proves_the_rules_of_the_shipped_file(kafka_bootstrap: str) -> None:
    good = await run("check", PARLEY_KAFKA__BOOTSTRAP="127.0.0.1:1")
    assert good.exit_code == 0, good.output
    assert "ok     retention of chat.tokens" in good.output
    bad = await run("check", PARLEY_PROTOCOL__RESUME_WINDOW_S="7200")
    assert bad.exit_code == 1
    assert "BROKEN retention of chat.tokens ≥ resume window + max_turn_age + margin: 2h ≥ 2h + 30m + 30s" in bad.output
    live = await run("check", "--brokers", "--json", PARLEY_KAFKA__BOOTSTRAP=kafka_bootstrap)
    creation = [rule for rule in json.loads(live.output) if "auto.create" in rule["rule"]]
    assert creation
    assert all(rule["holds"] for rule in creation)


async def test_a_session_topic_is_made_once_and_up_to_the_limit(cluster: Cluster) -> None:
    topics = cluster.settings.topics
    first, second, third = (new_session().hex for _ in range(3))
    async with connect(cluster.settings.kafka) as admin:
        assert await ensure_session_topic(admin, topics, first)
        assert await ensure_session_topic(admin, topics, first)
        assert await ensure_session_topic(admin, topics, second)
        assert not await ensure_session_topic(admin, topics, third)
        assert await ensure_session_topic(admin, topics, second), "existing ones are no news"

    wanted = topics.session_topic(first)
    live = await cluster.live(wanted.name)
    assert live is not None
    assert live.partitions == 1
    assert wanted.config(topics.min_insync_replicas).items() <= live.own.items()


async def test_two_edges_that_make_the_same_topic_both_have_it(cluster: Cluster) -> None:
    topics, session = cluster.settings.topics, new_session().hex
    async with connect(cluster.settings.kafka) as one, connect(cluster.settings.kafka) as other:
        made = await asyncio.gather(*(ensure_session_topic(admin, topics, session) for admin in (one, other)))
    assert made == [True, True]


async def test_without_a_broker_the_log_is_unavailable() -> None:
    with pytest.raises(ParleyError) as caught:
        async with connect(KafkaSettings(bootstrap="127.0.0.1:1")):
            pass
    assert caught.value.kind.code == "log_unavailable"


async def test_gc_deletes_what_is_idle_and_nothing_else(cluster: Cluster) -> None:
    """Five conversations: written just now, written and idle, never written (new and old), and of unknown age."""
    now_ms = time.time_ns() // 1_000_000
    topics = cluster.settings.topics
    busy, idle, fresh, stale = (new_session(now_ms=ms).hex for ms in (now_ms, 1, now_ms, 1))
    unknown = "0" * 32
    sessions = {name: topics.session_topic(name).name for name in (busy, idle, fresh, stale, unknown)}

    async def prepare(written: list[str]) -> None:
        async with connect(cluster.settings.kafka) as admin:
            wanted = [topics.session_topic(session) for session in sessions]
            await admin.create(wanted, replication=1, min_insync_replicas=1)
        async with AIOKafkaProducer(bootstrap_servers=cluster.bootstrap) as producer:
            for session in written:
                for _ in range(3):
                    await producer.send_and_wait(sessions[session], b"[]")

    await prepare([idle])
    await asyncio.sleep(2.5)
    await prepare([busy])
    window = {"PARLEY_PROTOCOL__RESUME_WINDOW_S": "1", "PARLEY_PROTOCOL__MAX_TURN_AGE_S": "1"}

    dry = await cluster("gc", "--dry-run", **window)
    assert f"would delete {sessions[idle]}: idle for" in dry.output
    assert await cluster.live(sessions[idle]) is not None

    # The long windows of the defaults delete only what was never written and is old.
    assert f"deleted {sessions[stale]}" in (await cluster("gc")).output
    assert await cluster.live(sessions[idle]) is not None

    await prepare([busy])  # makes the stale one anew, too
    result = await cluster("gc", **{**window, "PARLEY_PROTOCOL__RESUME_WINDOW_S": "1.4"})
    assert result.exit_code == 0, result.output
    kept = {session for session, name in sessions.items() if await cluster.live(name) is not None}
    assert idle not in kept
    assert stale not in kept
    assert {busy, unknown} <= kept
