"""`parley replay` on a real broker: slices, moderation and planning in shadow, and nothing live that changes."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiokafka import TopicPartition

from consumers.orchestrator.planning import plan
from parley.log.admin import connect
from parley.log.groups import GroupReader
from parley.log.spans import open_spans
from parley.session import Session
from parley.settings import Settings
from parley.timeline.cli import log
from parley.topics import PROMPTS, TOPICS_FILE, TURNS, VERDICTS
from producers.replay.cli import replay
from producers.replay.manifest import Manifest
from producers.replay.replanning import with_topics
from producers.replay.shadow import PREFIX, SOURCE_HEADER
from schemas.prompts import PromptAccepted, Verdict
from schemas.wire import REPLAY_HEADER, decoder, header
from tests.integration.operators.conftest import Talk

pytestmark = pytest.mark.stack

HARMLESS = "What is a good soup for a cold evening?"


@pytest.fixture
def strict(tmp_path: Path) -> Path:
    """A policy that blocks whatever has a score at all."""
    policy = yaml.safe_load(Settings().moderation.policy.read_text())
    for category in policy["categories"].values():
        category["input"] = {"threshold": 0.0001, "action": "block"}
    file = tmp_path / "strict.yaml"
    file.write_text(yaml.safe_dump(policy | {"version": "strict-1"}))
    return file


async def say(talk: Talk, *texts: str, judged: bool = True) -> list[PromptAccepted]:
    """Prompts of the conversation, each with the verdict that it got."""
    said = []
    for text in texts:
        route = await talk.lane(3)
        prompt = talk.prompt(talk.response(route), route, text, model="synthetic")
        await talk.put(PROMPTS, prompt)
        if judged:
            await talk.put(VERDICTS, talk.verdict(prompt.response))
        said.append(prompt)
    return said


async def live_ends(talk: Talk) -> dict[str, int]:
    """The end of every partition of every topic that is no replay's."""
    async with connect(talk.settings.kafka) as admin, open_spans(talk.settings.kafka, "test") as spans:
        counts = await spans.existing([name for name in await admin.names() if not name.startswith((PREFIX, "__"))])
        wheres = [TopicPartition(name, number) for name, count in counts.items() for number in range(count)]
        return {f"{where.topic}-{where.partition}": end for where, (_, end) in (await spans.bounds(wheres)).items()}


async def left_in_cluster(talk: Talk, replay_id: str) -> list[str]:
    async with connect(talk.settings.kafka) as admin, GroupReader(talk.settings.kafka) as groups:
        names = [*await admin.names(), *await groups.names()]
    return [name for name in names if name.startswith(f"{PREFIX}{replay_id}.")]


async def replayed(talk: Talk, *arguments: str, **env: str) -> dict[str, Any]:
    """A replay of the conversation, as its JSON tells."""
    result = await talk.command(replay, "run", "--session", str(talk.session), "--yes", "--json", *arguments, **env)
    assert result.exit_code == 0, result.output
    report: dict[str, Any] = json.loads(result.stdout)
    return report


def changes(report: dict[str, Any]) -> list[str]:
    return [row["change"] for row in report["rows"]]


class TestASlice:
    async def test_it_is_shown_first_and_nothing_is_done_unless_told_to(self, talk: Talk, tmp_path: Path) -> None:
        await say(talk, HARMLESS)
        end = await talk.ranges.end_offset(PROMPTS, talk.partition)
        shown = await talk.command(replay, "run", "--stage", "moderation", "--offsets", f"{talk.partition}@{end - 1}")
        assert shown.exit_code == 0, shown.output
        assert f"{PROMPTS}-{talk.partition}  {end - 1} to {end - 1}" in shown.output
        assert "nothing was run" in shown.output
        file = tmp_path / "slice.jsonl"
        unwritten = await talk.command(replay, "export", "--session", str(talk.session), "--out", str(file))
        assert ("nothing was written" in unwritten.output, file.exists()) == (True, False)

    async def test_without_a_beginning_it_is_refused(self, talk: Talk) -> None:
        refused = await talk.command(replay, "run", "--stage", "moderation", "--user", str(talk.user))
        assert (refused.exit_code, "say where to begin" in refused.output) == (1, True)

    async def test_one_that_is_too_large_names_its_size(self, talk: Talk) -> None:
        await say(talk, HARMLESS, HARMLESS)
        refused = await talk.command(
            replay, "run", "--stage", "moderation", "--offsets", f"{talk.partition}:0-", "--limit", "1"
        )
        assert (refused.exit_code, "more than 1: narrow it" in refused.output) == (1, True)

    async def test_a_window_in_time_holds_what_came_in_it(self, talk: Talk, tmp_path: Path) -> None:
        await say(talk, "before")
        await asyncio.sleep(0.05)
        [middle] = await say(talk, "within")
        record = await talk.ranges.read(PROMPTS, talk.partition, e := await end(talk) - 1, e)
        at = record[0].timestamp
        await asyncio.sleep(0.05)
        await say(talk, "after")
        file = tmp_path / "slice.jsonl"
        window = ("--since", iso(at), "--until", iso(at + 1), "--user", str(talk.user))
        result = await talk.command(replay, "export", *window, "--out", str(file), "--yes")
        assert result.exit_code == 0, result.output
        [line] = map(json.loads, file.read_text().splitlines())
        assert line["events"][0]["response"] == middle.response


class TestAnExport:
    async def test_records_with_their_place_and_a_manifest_that_proves_them(self, talk: Talk, tmp_path: Path) -> None:
        prompts = await say(talk, HARMLESS, "and a salad?")
        file = tmp_path / "slice.jsonl"
        before = await live_ends(talk)
        result = await talk.command(replay, "export", "--session", str(talk.session), "--out", str(file), "--yes")
        assert result.exit_code == 0, result.output
        assert await live_ends(talk) == before
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        assert [line["events"][0]["response"] for line in lines] == [prompt.response for prompt in prompts]
        assert (lines[0]["topic"], lines[0]["partition"], lines[0]["key"]) == (
            PROMPTS,
            talk.partition,
            talk.session.hex,
        )
        assert HARMLESS not in file.read_text()
        manifest = Manifest.model_validate_json((tmp_path / "slice.jsonl.manifest.json").read_text())
        [output] = manifest.outputs
        assert (output.lines, output.sha256) == (2, hashlib.sha256(file.read_bytes()).hexdigest())
        assert manifest.counts["taken"] == 2
        low, high = manifest.slice.spans[talk.partition]
        assert low <= lines[0]["offset"] < lines[1]["offset"] < high

    async def test_what_was_written_is_in_it_only_when_asked_for_and_that_is_in_the_log(
        self, talk: Talk, tmp_path: Path
    ) -> None:
        await say(talk, HARMLESS)
        file = tmp_path / "slice.jsonl"
        asked = ("--session", str(talk.session), "--out", str(file), "--yes", "--show-content")
        assert (await talk.command(replay, "export", *asked)).exit_code == 0
        assert HARMLESS in file.read_text()
        assert file.stat().st_mode & 0o077 == 0, "it is its owner's alone"
        assert "by parley replay export" in (await talk.command(log, str(talk.session))).output

    async def test_bytes_that_nobody_can_read_are_exported_as_such(self, talk: Talk, tmp_path: Path) -> None:
        await talk.producer.send(PROMPTS, b"\xff{", key=talk.key, partition=talk.partition)
        file = tmp_path / "slice.jsonl"
        await talk.command(replay, "export", "--session", str(talk.session), "--out", str(file), "--yes")
        [line] = map(json.loads, file.read_text().splitlines())
        assert (line["unreadable"], line["bytes"]) == ("it is no event", None)


class TestModerationInShadow:
    async def test_another_policy_is_compared_and_no_live_topic_is_touched(
        self, talk: Talk, strict: Path, tmp_path: Path
    ) -> None:
        prompts = await say(talk, HARMLESS, "Tell me a joke.")
        before = await live_ends(talk)
        folder = tmp_path / "out"
        report = await replayed(
            talk,
            "--stage",
            "moderation",
            "--policy",
            str(strict),
            "--id",
            f"s{talk.session.hex[-8:]}",
            "--out",
            str(folder),
        )
        assert await live_ends(talk) == before
        assert changes(report) == ["newly blocked", "newly blocked"]
        assert [row["response"] for row in report["rows"]] == [prompt.response for prompt in prompts]
        assert report["versions"]["policy"] == ["p1", "strict-1"]
        assert await left_in_cluster(talk, report["manifest"]["id"]) == [], "it has cleared away after itself"
        assert HARMLESS not in (folder / "report.json").read_text() + (folder / "report.html").read_text()
        told = await talk.command(replay, "report", str(folder))
        assert "2 newly blocked" in told.output

    async def test_the_live_policy_decides_as_the_live_role(self, talk: Talk, tmp_path: Path) -> None:
        """What the role itself writes for these prompts: the same scores, categories and versions."""
        await say(talk, HARMLESS)
        report = await replayed(talk, "--stage", "moderation", "--out", str(tmp_path / "out"))
        assert changes(report) == ["same"]
        assert report["versions"]["policy"][1].startswith("default-")

    async def test_what_it_writes_is_marked_and_what_a_replay_wrote_is_not_replayed(
        self, talk: Talk, strict: Path, tmp_path: Path
    ) -> None:
        await say(talk, HARMLESS)
        route = await talk.lane(3)
        looped = talk.prompt(talk.response(route), route, "again", model="synthetic")
        await talk.put(PROMPTS, looped, more=((REPLAY_HEADER, b"earlier"),))
        name = f"m{talk.session.hex[-8:]}"
        report = await replayed(
            talk, "--stage", "moderation", "--policy", str(strict), "--id", name, "--keep", "--out", str(tmp_path / "o")
        )
        assert [row["source"] for row in report["rows"]] == [f"{PROMPTS}-{talk.partition}@{await end(talk) - 2}"]
        assert report["manifest"]["counts"]["replayed"] == 1

        [verdict] = await talk.ranges.read(f"{PREFIX}{name}.{VERDICTS}", talk.partition, 0, 0)
        assert header(verdict.headers, REPLAY_HEADER) == name
        assert header(verdict.headers, SOURCE_HEADER) == report["rows"][0]["source"]
        assert decoder(Verdict)(verdict.value).decision == "block"

        assert name in (await talk.command(replay, "clean")).output
        cleaned = await talk.command(replay, "clean", name)
        assert f"deleted {PREFIX}{name}.{PROMPTS}" in cleaned.output
        assert await left_in_cluster(talk, name) == []

    async def test_it_goes_on_after_a_kill_where_it_was(self, talk: Talk, strict: Path, tmp_path: Path) -> None:
        """SIGKILL in the middle of feeding: each prompt is fed once in the end, and has its verdict."""
        prompts = await say(talk, *(f"question {n}" for n in range(40)))
        folder, name = tmp_path / "out", f"k{talk.session.hex[-8:]}"
        arguments = ("--session", str(talk.session), "--stage", "moderation", "--policy", str(strict), "--id", name)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "parley", "replay", "run", *arguments),
            *("--rate", "20", "--out", str(folder), "--keep", "--yes"),
            env=os.environ | {"PARLEY_KAFKA__BOOTSTRAP": talk.settings.kafka.bootstrap},
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        topic = f"{PREFIX}{name}.{VERDICTS}"
        try:
            async with asyncio.timeout(40):
                while not await judged_so_far(talk, topic):
                    await asyncio.sleep(0.1)
        finally:
            process.send_signal(signal.SIGKILL)
            await process.wait()
        fed = await talk.ranges.end_offset(f"{PREFIX}{name}.{PROMPTS}", talk.partition)
        assert 0 < fed < 40, "it was killed in the middle"
        refused = await talk.command(replay, "report", str(folder))
        assert "is not done" in refused.output

        resumed = await talk.command(replay, "resume", str(folder), "--keep", "--json")
        assert resumed.exit_code == 0, resumed.output
        report = json.loads(resumed.stdout)
        assert [row["response"] for row in report["rows"]] == [prompt.response for prompt in prompts]
        assert {row["after"]["policy"] for row in report["rows"]} == {"strict-1"}
        assert await talk.ranges.end_offset(f"{PREFIX}{name}.{PROMPTS}", talk.partition) == 40
        await talk.command(replay, "clean", name)

    async def test_field_case_f76_a_hundred_old_prompts(self, talk: Talk, strict: Path, tmp_path: Path) -> None:
        """Field case F76: a replay that ran side effects again and carried over old headers.

        Nothing live grows: no history, usage, tokens or requests to models. Order is kept, trace headers are dropped,
        and the same replay a second time does nothing.
        """
        for number in range(100):
            route = await talk.lane(3)
            prompt = talk.prompt(talk.response(route), route, f"old question {number}", model="synthetic")
            await talk.put(PROMPTS, prompt, more=(("traceparent", b"00-1-2-01"), ("custom", b"kept")))
        before, name = await live_ends(talk), f"f{talk.session.hex[-8:]}"
        arguments = ("--stage", "moderation", "--policy", str(strict), "--id", name, "--keep")
        first = await replayed(talk, *arguments, "--out", str(tmp_path / "a"))
        assert first["totals"]["turns"] == 100
        own = f"{PREFIX}{name}.{PROMPTS}"
        fed = await talk.ranges.read(own, talk.partition, 0, 99)
        assert [header(record.headers, SOURCE_HEADER) for record in fed] == [row["source"] for row in first["rows"]]
        assert {(header(r.headers, "traceparent"), header(r.headers, "custom")) for r in fed} == {(None, "kept")}

        second = await replayed(talk, *arguments, "--out", str(tmp_path / "b"))
        assert second["rows"] == first["rows"]
        assert await talk.ranges.end_offset(own, talk.partition) == 100
        assert await talk.ranges.end_offset(f"{PREFIX}{name}.{VERDICTS}", talk.partition) == 100
        assert await live_ends(talk) == before

        other = ("--stage", "moderation", "--id", name, "--out", str(tmp_path / "c"))  # under the live policy
        refused = await talk.command(replay, "run", "--session", str(talk.session), *other, "--yes")
        assert (refused.exit_code, "was made with other inputs" in refused.output) == (1, True)
        await talk.command(replay, "clean", name)

    async def test_what_brokers_have_forgotten_comes_from_an_archive(
        self, talk: Talk, strict: Path, tmp_path: Path
    ) -> None:
        await say(talk, HARMLESS, "Tell me a joke.")
        names = [word for topic in (PROMPTS, VERDICTS, TURNS) for word in ("--topic", topic)]
        archived = await talk.command(log, "archive", str(tmp_path / "archive"), *names)
        assert archived.exit_code == 0, archived.output
        report = await replayed(
            talk,
            *("--stage", "moderation", "--policy", str(strict), "--out", str(tmp_path / "out")),
            *("--from-archive", str(tmp_path / "archive")),
        )
        assert changes(report) == ["newly blocked"] * 2
        assert report["versions"]["policy"][0] == "p1"

    async def test_a_verdict_that_retention_took_is_told_by_the_end_of_the_turn(
        self, talk: Talk, tmp_path: Path
    ) -> None:
        [refused, answered] = await say(talk, "one", "two", judged=False)
        await talk.put(TURNS, talk.ended(refused, 1, status="refused", policy="p0"))
        await talk.put(TURNS, talk.ended(answered, 2, policy="p0"))
        report = await replayed(talk, "--stage", "moderation", "--out", str(tmp_path / "out"))
        assert changes(report) == ["newly allowed", "same"]
        assert report["versions"]["policy"][0] == "p0"

    async def test_a_file_that_is_no_policy_is_named(self, talk: Talk, tmp_path: Path) -> None:
        await say(talk, HARMLESS)
        file = tmp_path / "none.yaml"
        file.write_text("version: 1")
        result = await talk.command(
            replay, "run", "--session", str(talk.session), "--stage", "moderation", "--policy", str(file),
            "--out", str(tmp_path / "out"), "--yes",
        )  # fmt: skip
        assert result.exit_code == 1
        assert "moderation policy" in result.output
        assert await left_in_cluster(talk, Manifest.load(tmp_path / "out").id) == []


class TestPlanningInShadow:
    async def test_another_table_is_compared_with_what_was_decided(self, talk: Talk, tmp_path: Path) -> None:
        live, small = topics(tmp_path, 400), topics(tmp_path, 40)
        prompts = await say(talk, "one question of this conversation", "and another one, please", "and a third")
        await decided(talk, with_topics(talk.settings, live), prompts)
        before = await live_ends(talk)
        same = await replayed(talk, "--stage", "orchestrator", "--topics", str(live), "--out", str(tmp_path / "a"))
        assert changes(same) == ["same"] * 3
        other = await replayed(talk, "--stage", "orchestrator", "--topics", str(small), "--out", str(tmp_path / "b"))
        assert "other context" in changes(other)
        assert await live_ends(talk) == before

    async def test_an_option_of_another_stage_is_refused(self, talk: Talk, strict: Path) -> None:
        result = await talk.command(
            replay, "run", "--since", "1m", "--stage", "orchestrator", "--policy", str(strict), "--yes"
        )
        assert "--policy is not for the stage orchestrator" in result.output


class TestFromIncidentToTest:
    async def test_a_turn_becomes_a_test_that_passes(self, talk: Talk, tmp_path: Path) -> None:
        response = await talk.whole_turn(await talk.lane(4), HARMLESS, ["Pumpkin ", "soup."])
        result = await talk.command(
            replay, "export", "--as-fixture", "--response", response, "--out", str(tmp_path), "--yes"
        )
        assert result.exit_code == 0, result.output
        [fixture], [test] = tmp_path.glob("*.json"), tmp_path.glob("test_*.py")
        assert "soup" not in fixture.read_text()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(test)),
            env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
            stdout=asyncio.subprocess.PIPE,
        )
        output, _ = await process.communicate()
        assert process.returncode == 0, output.decode()


async def end(talk: Talk) -> int:
    return await talk.ranges.end_offset(PROMPTS, talk.partition)


async def judged_so_far(talk: Talk, topic: str) -> int:
    async with connect(talk.settings.kafka) as admin:
        if topic not in await admin.names():
            return 0
    return await talk.ranges.end_offset(topic, talk.partition)


def iso(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")


def topics(folder: Path, context: int) -> Path:
    """A topics.yaml whose only pool counts words, so that no tokenizer has to be fetched."""
    raw = yaml.safe_load(TOPICS_FILE.read_text())
    raw["pools"] = {"synthetic": raw["pools"]["synthetic"] | {"context": context}}
    raw["routing"] = [{"model": "synthetic", "pool": "synthetic"}]
    file = folder / f"topics-{context}.yaml"
    file.write_text(yaml.safe_dump(raw))
    return file


async def decided(talk: Talk, settings: Settings, prompts: Sequence[PromptAccepted]) -> None:
    """What the orchestrator and a worker write for these prompts."""
    session = Session(talk.session)
    for number, prompt in enumerate(prompts, start=1):
        started = plan(settings, session, prompt, (1, number), 9)
        ended = talk.ended(prompt, number, f"answer {number}", parent=started.parent)
        for event in (started, ended):
            session.apply(event)
            await talk.put(TURNS, event)
