"""`parley log` on a real broker."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import aclosing
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete

from parley.ids import conversation_id, message_id, new_session
from parley.log.dlq import dead_letter
from parley.log.spans import open_spans
from parley.timeline.cli import log
from parley.timeline.fold import Entry
from parley.timeline.read import Timeline, Window, follow_timeline, read_timeline
from parley.timeline.target import Target, parse_target
from parley.topics import PROMPTS, TURNS
from schemas.routes import Delta, Fence
from tests.integration.operators.conftest import KEYS, Talk

pytestmark = pytest.mark.stack


async def entries(talk: Talk, *arguments: str) -> list[dict[str, Any]]:
    result = await talk.command(log, *arguments, "--json")
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


async def watch(talk: Talk, target: Target, timeline: Timeline, last: str) -> list[Entry]:
    """What comes after a timeline, up to an entry of the kind `last`."""
    seen: list[Entry] = []
    async with aclosing(follow_timeline(talk.settings, target, timeline)) as coming:
        async for entry in coming:
            seen.append(entry)
            if entry.kind == last:
                break
    return seen


async def test_a_turn_is_one_timeline_over_all_topics_with_its_void_records(talk: Talk) -> None:
    response = await talk.whole_turn(await talk.lane(3), "What is secret?", ["for", "ty", "-two"])
    told = await entries(talk, conversation_id(KEYS, talk.user, talk.session))
    kinds = [entry["type"] for entry in told]
    assert kinds[0] == "prompt.accepted"
    assert sorted(kinds) == sorted(
        [*("prompt.accepted", "opened", "verdict", "turn.started", "terminal", "turn.ended")]
        + ["fence"] * 2
        + ["delta"] * 4
    )
    assert [entry["void"] for entry in told if entry["void"]] == ["not the current writer"]
    assert [entry["at"] for entry in told] == sorted(entry["at"] for entry in told)
    assert {entry["response"] for entry in told} == {response}


async def test_every_id_of_a_turn_finds_it(talk: Talk) -> None:
    one = await talk.whole_turn(await talk.lane(3), "one", ["1"])
    two = await talk.whole_turn(await talk.lane(4), "two", ["2"])
    everything = await entries(talk, str(talk.session))
    assert {entry["response"] for entry in everything} == {one, two}
    for name in (one, message_id(one, 1)):
        told = await entries(talk, name)
        assert told == [entry for entry in everything if entry["response"] == one]


async def test_contents_are_left_out_and_whoever_reads_them_is_in_the_log(talk: Talk) -> None:
    response = await talk.whole_turn(await talk.lane(3), "the quick brown fox", ["jumps", " over"])
    for arguments in ((), ("--json",)):
        told = await talk.command(log, response, *arguments)
        assert told.exit_code == 0, told.output
        assert not re.search("quick|jumps|over", told.output)
    assert "19 characters" in (await talk.command(log, response)).output

    shown = await talk.command(log, response, "--show-content")
    assert "user: the quick brown fox" in shown.output
    assert "jumps over" in shown.output
    assert "content.read" in shown.output, "the reading is recorded before it is shown"
    reading = [entry for entry in await entries(talk, response) if entry["type"] == "content.read"]
    assert len(reading) == 1
    assert reading[0]["event"]["command"] == "parley log"
    assert "@" in reading[0]["event"]["who"]


async def test_people_see_one_line_a_run_of_deltas_and_what_it_came_to(talk: Talk) -> None:
    response = await talk.whole_turn(await talk.lane(3), "hi", [f"w{n} " for n in range(30)])
    output = (await talk.command(log, response)).output
    assert "× 30 seq 0–29" in output
    assert "void: not the current writer" in output
    assert f"#1 {response}: completed; 110 characters in 30 deltas, 1 void" in output


async def test_a_dead_letter_and_unreadable_bytes_are_in_it(talk: Talk) -> None:
    bad = await talk.producer.send(PROMPTS, b"\xff\xfe{", key=talk.key, partition=talk.partition)
    [record] = await talk.ranges.read(PROMPTS, talk.partition, bad, bad)
    await dead_letter(talk.producer, record, group="orchestrator", error=ValueError("no prompt"), partitions=16)
    told = await entries(talk, str(talk.session))
    assert [(entry["type"], entry["topic"]) for entry in told] == [
        ("unreadable", PROMPTS),
        ("dead letter", "chat.dlq"),
    ]
    assert told[1]["note"] == f"{PROMPTS}-{talk.partition} offset {bad}: no prompt"


async def test_it_reads_the_sessions_partitions_from_its_own_time_on_and_nothing_else(talk: Talk) -> None:
    """Before the conversation 500 records lie in its partition, and as many in another; none of them is read."""
    async with asyncio.TaskGroup() as group:
        for partition in (talk.partition, (talk.partition + 1) % 16):
            for _ in range(500):
                group.create_task(talk.producer.send(PROMPTS, b"{}", key=b"other", partition=partition))
    await asyncio.sleep(0.01)
    partition, talk.session = talk.partition, new_session()
    while talk.partition != partition:
        talk.session = new_session()
    response = await talk.whole_turn(await talk.lane(3), "hi", ["a"])
    # As if all clocks were one: the margin for those that differ would reach back to what was written just now.
    protocol = talk.settings.protocol.model_copy(update={"margin_s": 0.0})
    settings = talk.settings.model_copy(update={"protocol": protocol})
    async with open_spans(settings.kafka, "test") as spans:
        for name in (str(talk.session), response):
            found = await read_timeline(settings, spans, parse_target(name), Window())
            assert len(found.entries) == 10
            assert found.read == 10


async def test_more_than_the_limit_is_refused_before_it_is_read(talk: Talk) -> None:
    response = await talk.whole_turn(await talk.lane(3), "hi", ["a"] * 20)
    result = await talk.command(log, response, "--limit", "5")
    assert result.exit_code == 1
    assert "more than 5: narrow it with --since and --until, or raise --limit" in result.output


async def test_a_window_is_a_part_of_it(talk: Talk) -> None:
    one = await talk.whole_turn(await talk.lane(3), "one", ["1"])
    await asyncio.sleep(1.1)
    two = await talk.whole_turn(await talk.lane(3), "two", ["2"])
    assert {entry["response"] for entry in await entries(talk, str(talk.session), "--since", "1s")} == {two}
    assert {entry["response"] for entry in await entries(talk, str(talk.session), "--until", "1s")} == {one}
    wrong = await talk.command(log, two, "--since", "yesterday")
    assert (wrong.exit_code, "neither an age" in wrong.output) == (2, True)


async def test_a_route_that_is_gone_is_said_and_not_judged(talk: Talk) -> None:
    """Retention took the beginning of the session's topic: what is left must not be shown as void."""
    route = await talk.own_topic()
    response = await talk.whole_turn(route, "hi", ["a", "b", "c"])
    admin = AIOKafkaAdminClient(bootstrap_servers=talk.settings.kafka.bootstrap)
    await admin.start()
    try:
        await admin.delete_records({TopicPartition(route.topic, 0): RecordsToDelete(5)})
    finally:
        await admin.close()
    result = await talk.command(log, response, "--json")
    told = [json.loads(line) for line in result.stdout.splitlines()]
    assert [entry["offset"] for entry in told if entry["topic"] == route.topic] == [5, 6, 7]
    assert not any(entry["void"] for entry in told)
    assert "token routes of 1 turns are gone" in result.stderr


async def test_following_shows_the_next_turn_as_it_happens_also_on_another_lane(talk: Talk) -> None:
    await talk.whole_turn(await talk.lane(3), "one", ["1"])
    target = parse_target(str(talk.session))
    async with open_spans(talk.settings.kafka, "test") as spans:
        timeline = await read_timeline(talk.settings, spans, target, Window())
    watching = asyncio.create_task(watch(talk, target, timeline, "turn.ended"))
    await asyncio.sleep(0.5)
    two = await talk.whole_turn(await talk.lane(9), "two", ["2", "3"])
    seen = await asyncio.wait_for(watching, 20)
    assert {entry.response for entry in seen} == {two}
    assert {"prompt.accepted", "verdict", "turn.started", "turn.ended"} <= {entry.kind for entry in seen}


async def test_following_a_running_turn_goes_on_where_reading_ended(talk: Talk) -> None:
    route = await talk.lane(5)
    response = talk.response(route)
    prompt = talk.prompt(response, route, "hi")
    await talk.put(PROMPTS, prompt)
    await talk.put(TURNS, talk.started(prompt, 1))
    await talk.say(response, route, talk.opened(), Fence(epoch=(1, 1, 1, 1), writer="w"))
    await talk.say(response, route, Delta(writer="w", seq=0, text="a", tokens=1))
    target = parse_target(response)
    async with open_spans(talk.settings.kafka, "test") as spans:
        timeline = await read_timeline(talk.settings, spans, target, Window())
    watching = asyncio.create_task(watch(talk, target, timeline, "terminal"))
    await talk.say(response, route, Delta(writer="w", seq=1, text="b", tokens=1))
    await talk.say(response, route, talk.terminal("w", 2))
    seen = await asyncio.wait_for(watching, 20)
    assert [(entry.kind, entry.void) for entry in seen] == [("delta", None), ("terminal", None)]
    assert timeline.folding.transcripts[response].text == "ab"


async def test_an_id_that_the_log_does_not_hold_is_said(talk: Talk) -> None:
    result = await talk.command(log, str(talk.session))
    assert result.exit_code == 1
    assert f"the log holds nothing of {talk.session}" in result.output
    assert "Give a conv_" in (await talk.command(log, "conv_x")).output


async def test_nothing_is_shown_when_the_reading_cannot_be_recorded(talk: Talk) -> None:
    result = await talk.command(log, str(talk.session), "--show-content", PARLEY_KAFKA__BOOTSTRAP="127.0.0.1:1")
    assert result.exit_code == 1
    assert "no broker answers" in result.output
