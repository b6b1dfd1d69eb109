"""What `parley doctor` makes of what it sees, without a stack."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiokafka.structs import ConsumerRecord

from infra.doctor import here
from infra.doctor.cli import CHECKS, examine
from infra.doctor.findings import Check, Finding, Level, exit_code, fail, ok, warn
from infra.doctor.log import compared, compared_clocks, unreadable
from infra.doctor.stores import migrated
from parley.log.topic_plan import LiveTopic, plan
from parley.settings import Settings
from parley.stores.migrate import MIGRATIONS, load
from parley.topics import TURNS, load_topics
from schemas.routes import encode_route_record
from schemas.wire import encode, headers
from tests.unit.core.core_events import delta, started

TOPICS = load_topics()


def looked(check: Check, **fields: Any) -> list[Finding]:
    return asyncio.run(check(Settings.model_validate(fields)))


def worst(findings: list[Finding]) -> Level:
    return max(finding.level for finding in findings)


def secret(length: int) -> str:
    return b64encode(b"k" * length).decode()


@pytest.mark.parametrize(
    ("findings", "code"),
    [
        ([], 0),
        ([ok("a", "")], 0),
        ([ok("a", ""), warn("b", "", "do")], 3),
        ([warn("b", "", "do"), fail("c", "", "do"), ok("a", "")], 5),
    ],
)
def test_scripts_learn_the_worst(findings: list[Finding], code: int) -> None:
    assert exit_code(findings) == code


async def test_a_check_that_fails_by_what_nobody_foresaw_is_a_finding_among_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def denied(settings: Settings) -> list[Finding]:
        raise PermissionError("permission denied for table schema_migration")

    monkeypatch.setitem(CHECKS, "postgresql", denied)
    versions, postgres = await examine(Settings(), ["versions", "postgresql"])
    assert versions.level is Level.OK
    assert (postgres.check, postgres.level) == ("postgresql", Level.FAIL)
    assert "permission denied for table" in postgres.found


class TestHere:
    @pytest.mark.parametrize(
        ("keys", "level"),
        [((), Level.FAIL), (("abc",), Level.FAIL), ((secret(8),), Level.WARN), ((secret(32), secret(32)), Level.OK)],
        ids=["none", "no base64", "short", "two"],
    )
    def test_id_keys(self, keys: tuple[str, ...], level: Level) -> None:
        [finding] = looked(here.id_keys, id_keys=keys)
        assert finding.level is level
        assert bool(finding.todo) == bool(level)
        assert "kkk" not in finding.found
        assert not any(key in finding.found for key in keys if len(key) > 1), "a secret is not shown"

    def test_the_schemas_are_the_codes(self) -> None:
        assert worst(looked(here.schemas)) is Level.OK

    def test_a_tokenizer_that_is_not_there_is_named_with_how_to_make_it(self, tmp_path: Path) -> None:
        smol, synthetic = looked(here.tokenizers, tokenizers_dir=tmp_path)
        assert (smol.level, synthetic.level) == (Level.FAIL, Level.OK)
        assert "make setup" in smol.todo
        (tmp_path / "smollm2.json").write_text("{")
        assert looked(here.tokenizers, tokenizers_dir=tmp_path)[0].level is Level.FAIL

    def test_moderation_needs_a_model_and_a_policy_that_fit(self, tmp_path: Path) -> None:
        assert worst(looked(here.moderation)) is Level.OK
        settings = Settings()
        policy = tmp_path / "policy.yaml"
        policy.write_text(settings.moderation.policy.read_text().replace("categories:", "categories: {}\nunused:"))
        for broken in ({"model": tmp_path / "none.bin"}, {"policy": tmp_path / "none.yaml"}, {"policy": policy}):
            [finding] = looked(here.moderation, moderation=broken)
            assert (finding.level, "PARLEY_MODERATION__" in finding.todo) == (Level.FAIL, True)

    def test_a_full_disk_is_a_failure(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        assert here.space("disk", tmp_path / "nowhere").level is Level.WARN
        monkeypatch.setattr(here, "LITTLE_SPACE", 1 << 60)
        assert here.space("disk", tmp_path).level is Level.FAIL


class TestTopics:
    def live(self) -> dict[str, LiveTopic]:
        return {
            topic.name: LiveTopic(topic.name, topic.partitions, 1, topic.config(1), {})
            for topic in TOPICS.topics.values()
        }

    def test_a_cluster_that_is_as_the_file_says_is_well(self) -> None:
        assert [f.level for f in compared(TOPICS, plan(TOPICS, self.live().values()))] == [Level.OK]

    @pytest.mark.parametrize(
        ("change", "todo"),
        [
            (lambda live: live.pop(TURNS), "parley topics apply"),
            (lambda live: live.update({TURNS: replace(live[TURNS], partitions=8)}), "make a new cell"),
            (
                lambda live: live.update(
                    {TURNS: replace(live[TURNS], config={**live[TURNS].config, "message.timestamp.type": "CreateTime"})}
                ),
                "parley topics apply",
            ),
        ],
        ids=["missing", "partitions", "timestamps"],
    )
    def test_what_differs_says_what_to_do(self, change: Callable[[dict[str, LiveTopic]], Any], todo: str) -> None:
        live = self.live()
        change(live)
        [finding] = compared(TOPICS, plan(TOPICS, live.values()))
        assert (finding.level, TURNS in finding.found, todo in finding.todo) == (Level.FAIL, True, True)

    def test_session_topics_at_their_limit_want_a_broom(self) -> None:
        live = self.live()
        for number in range(TOPICS.session_topics.limit):
            name = f"{TOPICS.session_topics.prefix}{number:032x}"
            live[name] = LiveTopic(name, 1, 1, {}, {})
        [finding] = compared(TOPICS, plan(TOPICS, live.values()))
        assert (finding.level, "parley topics gc" in finding.todo) == (Level.WARN, True)


def record(value: bytes | None, kind: str | None) -> ConsumerRecord[Any, Any]:
    about = headers(kind) if kind else ()
    return ConsumerRecord(TURNS, 3, 7, 1, 1, b"", value, None, 0, 0, about)


@pytest.mark.parametrize(
    ("one", "why"),
    [
        (record(encode(started(1)), "turn.started"), ""),
        (record(encode_route_record((delta(0, "a"),)), "delta"), ""),
        (record(b'{"secret": 1}', "turn.started"), "response: Field required"),
        (record(b"[{}]", None), "no list of route events"),
        (record(b"{}", "turn.invented"), "no event 'turn.invented'"),
        (record(b"{}", None), "its headers name no event"),
    ],
    ids=["event", "route", "bad", "bad route", "unknown", "nameless"],
)
def test_records_that_this_version_cannot_read_say_why_and_not_what(one: ConsumerRecord[Any, Any], why: str) -> None:
    told = unreadable(one)
    assert told.startswith(why) if why else told == ""
    assert "secret" not in told


def test_clocks_that_differ_are_named_with_the_direction() -> None:
    assert compared_clocks("brokers", 10_100, 10_000).level is Level.OK
    assert "brokers: 2.0 s ahead of" in compared_clocks("brokers", 12_000, 10_000).found
    assert "PostgreSQL: 3.0 s behind" in compared_clocks("PostgreSQL", 7_000, 10_000).found


def test_tables_older_than_the_code_want_a_migration_and_newer_ones_are_fine() -> None:
    known = load(MIGRATIONS / "postgres")
    applied = {migration.number: migration.checksum for migration in known}
    assert migrated("postgresql", "PostgreSQL 18", "postgres", applied).level is Level.OK
    assert "1 of a newer version" in migrated("postgresql", "PostgreSQL 18", "postgres", applied | {999: "x"}).found
    lacking = migrated("postgresql", "PostgreSQL 18", "postgres", {})
    assert (lacking.level, lacking.todo) == (Level.FAIL, "`parley migrate`")
    other = migrated("postgresql", "PostgreSQL 18", "postgres", {1: "of another text"})
    assert (other.level, "was changed after it had been applied" in other.found) == (Level.FAIL, True)
