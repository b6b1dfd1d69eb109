"""`parley dlq` on a real broker: letters as roles write them, and what goes back where."""

from __future__ import annotations

import json
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete

from parley.log.dlq import PREFIX, dead_letter
from parley.log.ranges import Record
from parley.timeline.cli import log
from parley.topics import DLQ, PROMPTS, TURNS
from producers.replay.dlq_cli import dlq
from producers.replay.letters import SOURCE_HEADER
from schemas.prompts import PromptAccepted
from schemas.wire import decoder, encode, header
from tests.integration.operators.conftest import Talk

pytestmark = pytest.mark.stack


async def give_up(talk: Talk, record: Record, group: str = "history-messages", why: str = "no event") -> str:
    """What a role does with a record that it can't process; gives the letter's name."""
    offset = await dead_letter(talk.producer, record, group=group, error=ValueError(why), partitions=16)
    return f"{talk.partition}@{offset}"


async def at(talk: Talk, topic: str, offset: int) -> Record:
    [record] = await talk.ranges.read(topic, talk.partition, offset, offset)
    return record


async def an_end(talk: Talk) -> tuple[Record, str]:
    """The record of a turn's end that history could not keep, and its letter."""
    route = await talk.lane(3)
    prompt = talk.prompt(talk.response(route), route, "hi")
    record = await at(talk, TURNS, await talk.put(TURNS, talk.ended(prompt, 1, "the answer")))
    return record, await give_up(talk, record)


async def newest(talk: Talk, topic: str) -> int:
    return await talk.ranges.end_offset(topic, talk.partition) - 1


async def letters(talk: Talk, *arguments: str) -> list[dict[str, Any]]:
    result = await talk.command(dlq, "list", "--json", "--limit", "1000", *arguments)
    assert result.exit_code == 0, result.output
    shown: list[dict[str, Any]] = json.loads(result.output)["shown"]
    return shown


async def test_letters_are_listed_with_where_they_came_from_why_and_how_old(talk: Talk) -> None:
    record, name = await an_end(talk)
    [mine] = [one for one in await letters(talk, "--group", "history-messages") if one["letter"] == name]
    assert (mine["source"], mine["error"], mine["reason"]) == (
        f"{TURNS}-{talk.partition}@{record.offset}",
        "ValueError",
        "no event",
    )
    assert 0 <= mine["age_s"] < 30
    assert name not in {one["letter"] for one in await letters(talk, "--topic", PROMPTS)}
    table = await talk.command(dlq, "list", "--since", "1m", "--limit", "1")
    assert name in table.output
    assert "ValueError: no event" in table.output


async def test_one_letter_shows_all_but_what_people_wrote(talk: Talk) -> None:
    _, name = await an_end(talk)
    shown = await talk.command(dlq, "show", name)
    assert shown.exit_code == 0, shown.output
    assert "readable as turn.ended" in shown.output
    assert "the answer" not in shown.output
    asked = await talk.command(dlq, "show", name, "--show-content", "--json")
    assert "the answer" in json.loads(asked.output)["value"]
    told = await talk.command(log, str(talk.session))
    assert "by parley dlq show" in told.output, "that it was shown is in the session's timeline"


async def test_an_event_goes_back_to_its_own_partition_as_it_was_and_only_when_told_to(talk: Talk) -> None:
    record, name = await an_end(talk)
    before = await newest(talk, TURNS)
    dry = await talk.command(dlq, "redrive", name)
    assert (dry.exit_code, await newest(talk, TURNS)) == (0, before)
    assert dry.output == (f"{name}  would go to {TURNS}-{talk.partition}: turn.ended\nnothing was sent: --yes sends\n")

    sent = await talk.command(dlq, "redrive", name, "--yes")
    assert sent.output == f"{name}  sent to {TURNS}-{talk.partition}, offset {before + 1}: turn.ended\n"
    back = await at(talk, TURNS, before + 1)
    assert (back.key, back.value) == (record.key, record.value)
    assert header(back.headers, SOURCE_HEADER) == f"{TURNS}-{talk.partition}@{record.offset}"
    assert not [name for name, _ in back.headers if name.startswith("x-dlq-")]


async def test_twice_is_nothing_to_do_also_for_the_letter_of_another_group(talk: Talk) -> None:
    record, name = await an_end(talk)
    other = await give_up(talk, record, "history-sessions")
    both = await talk.command(dlq, "redrive", name, other, "--yes", "--json")
    assert [one["outcome"] for one in json.loads(both.output)] == ["sent", "done"]
    end = await newest(talk, TURNS)
    again = await talk.command(dlq, "redrive", name, other, "--yes")
    assert (again.exit_code, await newest(talk, TURNS)) == (0, end)
    assert again.output.count("nothing to do: done: chat.turns holds it at offset") == 2


async def test_what_fails_again_does_not_go_round(talk: Talk) -> None:
    _, name = await an_end(talk)
    await talk.command(dlq, "redrive", name, "--yes")
    second = await give_up(talk, await at(talk, TURNS, await newest(talk, TURNS)))
    end = await newest(talk, TURNS)
    result = await talk.command(dlq, "redrive", second, "--yes")
    assert (result.exit_code, await newest(talk, TURNS)) == (1, end)
    assert "and failed again: once is enough" in result.output


async def test_a_title_that_the_user_changed_since_stays(talk: Talk) -> None:
    old = await at(talk, TURNS, await talk.put(TURNS, talk.changed("old")))
    name = await give_up(talk, old, "history-sessions")
    assert "would go to" in (await talk.command(dlq, "redrive", name)).output
    await talk.put(TURNS, talk.changed("new"))
    assert "going back would undo that" in (await talk.command(dlq, "redrive", name, "--yes")).output


async def test_a_limit_and_what_options_choose(talk: Talk) -> None:
    """Of three letters of a group two go back, the oldest; of another group none."""
    group = "parley-usage"
    names = []
    for _ in range(3):
        record, _ = await an_end(talk)
        names.append(await give_up(talk, record, group))
    result = await talk.command(dlq, "redrive", *names, "--group", group, "--limit", "2", "--yes", "--json")
    assert [(one["letter"], one["outcome"]) for one in json.loads(result.output)] == [
        (names[0], "sent"),
        (names[1], "sent"),
    ]
    again = await talk.command(dlq, "redrive", *names, "--group", group, "--limit", "2", "--yes", "--json")
    outcomes = [one["outcome"] for one in json.loads(again.output)]
    assert outcomes == ["done", "done", "sent"], "letters stay in the queue: what is done takes nobody's place"
    none = await talk.command(dlq, "redrive")
    assert (none.exit_code, "say which" in none.output) == (2, True)


async def test_a_letter_from_a_partition_that_there_is_not_keeps_no_other_one_waiting(talk: Talk) -> None:
    _, good = await an_end(talk)
    route = await talk.lane(3)
    prompt = encode(talk.prompt(talk.response(route), route, "hi"))
    about = {"topic": PROMPTS, "partition": "99", "offset": "0", "timestamp": "1", "group": "orchestrator"}
    odd = tuple((PREFIX + name, value.encode()) for name, value in about.items())
    offset = await talk.producer.send(DLQ, prompt, key=talk.key, partition=talk.partition, headers=odd)
    result = await talk.command(dlq, "redrive", good, f"{talk.partition}@{offset}", "--as-new-turn", "--json")
    outcomes = {one["letter"]: one["outcome"] for one in json.loads(result.output)}
    assert outcomes == {good: "planned", f"{talk.partition}@{offset}": "refused"}


async def test_a_request_is_refused_whatever_is_said(talk: Talk) -> None:
    topic = "chat.inference.synthetic.free"
    record = await at(talk, topic, await talk.producer.send(topic, b"?", key=talk.key, partition=talk.partition))
    name = await give_up(talk, record, "worker-synthetic")
    end = await newest(talk, topic)
    result = await talk.command(dlq, "redrive", name, "--as-new-turn", "--yes")
    assert (result.exit_code, await newest(talk, topic)) == (1, end)
    assert "a request never runs again" in result.output


async def lost_prompt(talk: Talk) -> tuple[PromptAccepted, str]:
    route = await talk.lane(3)
    prompt = talk.prompt(talk.response(route), route, "was lost")
    record = await at(talk, PROMPTS, await talk.put(PROMPTS, prompt))
    return prompt, await give_up(talk, record, "orchestrator")


async def test_a_prompt_goes_back_only_as_a_new_turn_of_its_session(talk: Talk) -> None:
    prompt, name = await lost_prompt(talk)
    end = await newest(talk, PROMPTS)
    assert "say --as-new-turn" in (await talk.command(dlq, "redrive", name, "--yes")).output
    assert await newest(talk, PROMPTS) == end

    result = await talk.command(dlq, "redrive", name, "--as-new-turn", "--yes")
    assert result.exit_code == 0, result.output
    back = await at(talk, PROMPTS, end + 1)
    new = decoder(PromptAccepted)(back.value)
    assert new.response in result.output
    assert new.response != prompt.response
    assert (new.session, new.user, new.items[0].text) == (prompt.session, prompt.user, "was lost")
    assert new.route.start == await talk.ranges.end_offset(new.route.topic, new.route.partition)
    again = await talk.command(dlq, "redrive", name, "--as-new-turn", "--yes")
    assert "nothing to do" in again.output
    assert await newest(talk, PROMPTS) == end + 1


async def test_a_prompt_that_has_a_turn_after_all_is_not_answered_twice(talk: Talk) -> None:
    prompt, name = await lost_prompt(talk)
    await talk.put(TURNS, talk.started(prompt, 1))
    result = await talk.command(dlq, "redrive", name, "--as-new-turn", "--yes")
    assert "its turn is in the log and running" in result.output
    await talk.put(TURNS, talk.ended(prompt, 1))
    result = await talk.command(dlq, "redrive", name, "--as-new-turn", "--yes")
    assert "its turn is in the log and completed" in result.output


async def test_new_turns_need_the_edges_secret_and_say_so(talk: Talk) -> None:
    _, name = await lost_prompt(talk)
    result = await talk.command(dlq, "redrive", name, "--as-new-turn", PARLEY_ID_KEYS="[]")
    assert (result.exit_code, "PARLEY_ID_KEYS is not set" in result.output) == (1, True)


async def test_where_retention_has_passed_the_source_it_stays(talk: Talk) -> None:
    """A record given up so long ago that its topic begins later: whether it went back can't be known."""
    _, name = await an_end(talk)
    for _ in range(2):
        await talk.put(TURNS, talk.changed("later"))
    admin = AIOKafkaAdminClient(bootstrap_servers=talk.settings.kafka.bootstrap)
    await admin.start()
    try:
        end = await talk.ranges.end_offset(TURNS, talk.partition)
        await admin.delete_records({TopicPartition(TURNS, talk.partition): RecordsToDelete(end)})
    finally:
        await admin.close()
    result = await talk.command(dlq, "redrive", name, "--yes")
    assert "no longer holds what came after it" in result.output


async def test_a_letter_that_is_not_there_and_a_name_that_is_none(talk: Talk) -> None:
    missing = await talk.command(dlq, "show", "3@999999")
    assert "chat.dlq has no letter 3@999999" in missing.output
    assert "give PARTITION@OFFSET" in (await talk.command(dlq, "redrive", "seven")).output


async def test_bytes_that_nobody_can_read_are_shown_and_stay(talk: Talk) -> None:
    offset = await talk.producer.send(TURNS, b"\xff\xfe{", key=talk.key, partition=talk.partition)
    name = await give_up(talk, await at(talk, TURNS, offset))
    assert "its headers name no event" in (await talk.command(dlq, "show", name)).output
    shown = await talk.command(dlq, "show", name, "--show-content")
    assert r"\xff\xfe{" in shown.output
    assert "this version can't read it either" in (await talk.command(dlq, "redrive", name, "--yes")).output


async def test_the_original_bytes_survive_every_step(talk: Talk) -> None:
    record, name = await an_end(talk)
    partition, offset = map(int, name.split("@"))
    [letter] = await talk.ranges.read(DLQ, partition, offset, offset)
    assert letter.value == record.value
    await talk.command(dlq, "redrive", name, "--yes")
    assert (await at(talk, TURNS, await newest(talk, TURNS))).value == record.value
