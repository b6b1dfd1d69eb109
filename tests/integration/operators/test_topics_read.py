"""`parley log TOPIC` and `parley log archive` on a real broker."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete

from parley.log.spans import open_spans
from parley.timeline.cli import log
from parley.timeline.pick import Pick
from parley.timeline.topic import Extent, follow_topic, read_topic
from parley.timeline.turn_cli import turn
from parley.topics import AUDIT, PROMPTS, TOKENS, TURNS
from tests.integration.operators.conftest import Talk

pytestmark = pytest.mark.stack


async def told(talk: Talk, *arguments: str) -> list[dict[str, Any]]:
    result = await talk.command(log, *arguments, "--json")
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


async def test_a_topics_records_are_found_by_whom_and_what_they_concern(talk: Talk) -> None:
    one = await talk.whole_turn(await talk.lane(3), "one", ["a", "b"])
    two = await talk.whole_turn(await talk.lane(4), "two", ["c"])
    of_session = await told(talk, TURNS, "--session", str(talk.session))
    assert [(e["type"], e["response"]) for e in of_session] == [
        *(("turn.started", one), ("turn.ended", one), ("turn.started", two), ("turn.ended", two)),
    ]
    assert await told(talk, TURNS, "--user", str(talk.user)) == of_session
    assert await told(talk, TURNS, "--response", two) == of_session[2:]
    ends = await told(talk, TURNS, "--session", str(talk.session), "--type", "turn.ended")
    assert [e["offset"] for e in ends] == [of_session[1]["offset"], of_session[3]["offset"]]
    where = ("--where", '.event.status == "completed" and .event.turn == 2')
    assert await told(talk, TURNS, "--session", str(talk.session), *where) == [of_session[3]]
    deltas = await told(talk, TOKENS, "--response", one, "--type", "delta")
    assert [e["event"]["seq"] for e in deltas] == [0, 1, 0], "the zombie's, too: a topic is not judged"


async def test_offsets_and_times_choose_a_part(talk: Talk) -> None:
    await talk.whole_turn(await talk.lane(3), "one", ["a"])
    everything = await told(talk, TURNS, "--session", str(talk.session))
    place = ("--partition", str(talk.partition), "--session", str(talk.session))
    first, last = everything[0]["offset"], everything[-1]["offset"]
    assert await told(talk, TURNS, *place, "--offsets", f"{first}..{last}") == everything
    assert await told(talk, TURNS, *place, "--offsets", str(last)) == everything[-1:]
    assert await told(talk, TURNS, *place, "--until", "1m") == []
    assert await told(talk, TURNS, *place, "--since", "1m") == everything


async def test_what_cannot_be_is_refused_with_what_to_do(talk: Talk) -> None:
    missing = await talk.command(log, "chat.nothing")
    assert (missing.exit_code, "chat.nothing does not exist" in missing.output) == (1, True)
    far = await talk.command(log, TURNS, "--partition", "99")
    assert "has the partitions 0 to 15" in far.output
    await talk.whole_turn(await talk.lane(3), "one", ["a"])
    many = await talk.command(log, TURNS, "--limit", "1")
    assert "or raise --limit" in many.output
    for wrong in ((str(talk.session), "--type", "delta"), (TURNS, "--raw"), (TURNS, "--offsets", "x")):
        assert (await talk.command(log, *wrong)).exit_code == 2, wrong


async def test_what_is_no_id_is_a_topics_name_with_a_dot_or_without(talk: Talk) -> None:
    changelog = await talk.command(log, "parley-usage-hours-changelog")
    assert (changelog.exit_code, "records read" in changelog.output) == (0, True), changelog.output
    missing = await talk.command(log, "nothing-here")
    assert (missing.exit_code, "does not exist" in missing.output) == (1, True)
    assert "nor is it an id" in missing.output
    assert "names nothing" in (await talk.command(log, "resp_mistyped")).output


async def test_contents_are_left_out_also_raw_and_whoever_reads_them_is_in_the_log(talk: Talk) -> None:
    response = await talk.whole_turn(await talk.lane(3), "the quick brown fox", ["jumps"])
    only = ("--session", str(talk.session))
    hidden = await talk.command(log, PROMPTS, *only)
    assert ("quick" in hidden.output, "19 characters" in hidden.output) == (False, True)
    before = len(await told(talk, AUDIT, *only))
    shown = await talk.command(log, PROMPTS, *only, "--show-content")
    assert "│ user: the quick brown fox" in shown.output
    raw = await talk.command(log, PROMPTS, *only, "--raw", "--show-content")
    assert json.loads(raw.stdout)["response"] == response
    readings = (await told(talk, AUDIT, *only))[before:]
    assert [(e["event"]["command"], e["event"]["what"]) for e in readings] == [("parley log", PROMPTS)] * 2


async def test_following_shows_what_comes(talk: Talk) -> None:
    pick = Pick(session=talk.session, types=frozenset({"turn.ended"}))
    async with open_spans(talk.settings.kafka, "test") as spans:
        found = await read_topic(talk.settings, spans, TURNS, Extent(), pick)

    async def first() -> str | None:
        async with aclosing(follow_topic(talk.settings, found.positions, pick)) as coming:
            return (await anext(coming))[1].response

    watching = asyncio.create_task(first())
    response = await talk.whole_turn(await talk.lane(3), "one", ["a"])
    assert await asyncio.wait_for(watching, 20) == response


async def archived(talk: Talk, folder: Path, *options: str) -> dict[str, int]:
    """Records that a run took, by topic."""
    result = await talk.command(log, "archive", str(folder), "--json", *options)
    assert result.exit_code == 0, result.output
    return {one["topic"]: one["records"] for one in map(json.loads, result.stdout.splitlines())}


async def test_an_archive_tells_a_conversation_as_the_log_does_when_the_log_has_forgotten_it(
    talk: Talk, tmp_path: Path
) -> None:
    """Also the session's own topic, of which retention then takes everything."""
    route = await talk.own_topic()
    response = await talk.whole_turn(route, "hi", ["a", "b"])
    session = str(talk.session)
    topics = [name for topic in (PROMPTS, "chat.verdicts", TURNS, route.topic) for name in ("--topic", topic)]
    assert (await archived(talk, tmp_path, *topics))[route.topic] == 7
    fresh = await archived(talk, tmp_path, *topics)
    assert fresh[route.topic] == 0, "nothing twice"
    before = await told(talk, session)
    turn_before = json.loads((await talk.command(turn, response, "--json")).stdout)

    admin = AIOKafkaAdminClient(bootstrap_servers=talk.settings.kafka.bootstrap)
    await admin.start()
    try:
        await admin.delete_records({TopicPartition(route.topic, 0): RecordsToDelete(7)})
    finally:
        await admin.close()
    gone = await talk.command(log, session, "--json")
    assert "token routes of 1 turns are gone" in gone.stderr

    archive = ("--from-archive", str(tmp_path))
    assert [e for e in await told(talk, session, *archive) if e["type"] != "content.read"] == before
    assert [e["offset"] for e in await told(talk, route.topic, *archive)] == list(range(7))
    from_archive = await talk.command(turn, response, "--json", *archive)
    assert json.loads(from_archive.stdout) == turn_before
    checked = await talk.command(log, "archive", str(tmp_path), "--check")
    assert (checked.exit_code, "0 damaged" in checked.output) == (0, True)


async def test_making_an_archive_is_a_reading(talk: Talk, tmp_path: Path) -> None:
    await archived(talk, tmp_path, "--topic", PROMPTS)
    what = f"chat.prompts to {tmp_path}"
    program = f'.event.command == "parley log archive" and .event.what == "{what}"'
    assert len(await told(talk, AUDIT, "--since", "1m", "--where", program)) == 1
    absent = await talk.command(log, "archive", str(tmp_path), "--topic", "chat.nothing")
    assert (absent.exit_code, "there is no topic chat.nothing" in absent.output) == (1, True)


async def test_the_waterfall_of_a_turn_comes_from_the_log_alone(talk: Talk) -> None:
    response = await talk.whole_turn(await talk.lane(3), "hi", ["a", "b", "c"])
    fall = json.loads((await talk.command(turn, response, "--json")).stdout)
    assert (fall["status"], [run["deltas"] for run in fall["runs"]], fall["void_records"]) == ("completed", [0, 3], 1)
    assert {"log", "moderation", "orchestration", "takeover", "answer", "proof"} <= {s["stage"] for s in fall["stages"]}
    drawing = await talk.command(turn, response)
    assert "2 runs: the answer was taken over 1 times" in drawing.output
    of_session = await talk.command(turn, str(talk.session))
    assert (of_session.exit_code, "names its responses" in of_session.output) == (1, True)
