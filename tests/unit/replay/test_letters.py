"""Which dead letters may go back, as what, and why the others may not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from aiokafka.structs import ConsumerRecord
from pydantic import BaseModel

from consumers.history.main import group_of
from consumers.usage.names import APP
from parley.ids import message_id, parse_response_id
from parley.log.partitions import partition_of, session_key
from parley.topics import CONTROL, PROMPTS, TOKENS, TURNS, VERDICTS, load_topics
from producers.edge.projection import OUTPUT_ITEM
from producers.replay.letters import (
    OPERATOR_HEADER,
    SOURCE_HEADER,
    VIEWS,
    Letter,
    Past,
    Redrive,
    Refusal,
    decide,
    new_turn,
)
from producers.replay.redrive import at_most
from schemas.base import Route
from schemas.prompts import PromptAccepted
from schemas.turns import Feedback, SessionChanged
from schemas.wire import REPLAY_HEADER, decoder, encode, header
from tests.unit.core.core_events import KEYS, ROUTE, SESSION, USER, ended, request, response, said

TOPICS = load_topics()
KEY = session_key(SESSION.hex)
PARTITION = partition_of(KEY, TOPICS.session_partitions)
LANE = Route(topic=TOKENS, partition=5, start=42)
NOW = 1_800_000_000_000


def letter(event: BaseModel | bytes, topic: str = TURNS, group: str = "history-messages", **more: Any) -> Letter:
    fields = {
        "partition": 2,
        "offset": 17,
        "at": NOW,
        "topic": topic,
        "source_partition": PARTITION,
        "source_offset": 120,
        "source_at": NOW - 1_000,
        "group": group,
        "error": "BadRecord",
        "reason": "no event",
        "attempts": 1,
        "key": KEY,
        "value": event if isinstance(event, bytes) else encode(event),
        "headers": (("type", b"turn.ended"), ("traceparent", b"00-1-2-3")),
        "size": 0,
    }
    return Letter(**fields | more)


def prompt(**fields: Any) -> PromptAccepted:
    old = response(1)
    given: dict[str, Any] = {
        "response": old,
        "session": SESSION,
        "user": USER,
        "tier": "free",
        "accepted_at": 5,
        "model": "auto",
        "items": (said("one", of=old), said("two", of=old, position=1)),
        "new_session": True,
        "route": ROUTE,
        "echo": {OUTPUT_ITEM: message_id(old, 2), "model": "auto"},
    }
    return PromptAccepted(**given | fields)


def mint(given: PromptAccepted) -> PromptAccepted:
    return new_turn(given, "chat.prompts-3@120", keys=KEYS, route=LANE, now_ms=NOW)


def decision(one: Letter, past: Past = Past(), *, as_new_turn: bool = False) -> Redrive | Refusal:  # noqa: B008
    return decide(one, past, TOPICS, as_new_turn=as_new_turn, mint=mint, operator="ada@desk")


def refused(one: Letter, past: Past = Past(), *, as_new_turn: bool = False) -> str:  # noqa: B008
    found = decision(one, past, as_new_turn=as_new_turn)
    assert isinstance(found, Refusal)
    return found.why


class TestALetter:
    def test_it_is_what_dead_letter_writes(self) -> None:
        about = {"topic": "chat.turns", "partition": "3", "offset": "7", "timestamp": "99", "group": "g"}
        about |= {"error": "BadRecord", "reason": "because", "attempts": "5"}
        record = ConsumerRecord(
            "chat.dlq", 3, 1, 1_000, 1, b"k", b"v", None, 1, 1,
            (("type", b"turn.ended"), *((f"x-dlq-{name}", value.encode()) for name, value in about.items())),
        )  # fmt: skip
        found = Letter.of(record)
        assert (found.name, found.source, found.group, found.reason) == ("3@1", "chat.turns-3@7", "g", "because")
        assert (found.source_at, found.attempts, found.headers) == (99, 5, (("type", b"turn.ended"),))

    def test_one_that_says_nothing_is_a_letter_all_the_same(self) -> None:
        found = Letter.of(ConsumerRecord("chat.dlq", 0, 0, 1, 1, None, None, None, 0, 0, (("x-dlq-offset", b"?"),)))
        assert (found.topic, found.source_offset, found.value) == ("", -1, None)
        assert "does not say where it came from" in refused(found)


class TestEventsOfViews:
    def test_one_goes_back_where_it_came_from_marked_with_that_place(self) -> None:
        found = decision(letter(ended(1)))
        assert isinstance(found, Redrive)
        assert (found.letter.topic, found.value, found.what) == (TURNS, encode(ended(1)), "turn.ended")
        assert header(found.headers, SOURCE_HEADER) == f"{TURNS}-{PARTITION}@120"
        assert header(found.headers, OPERATOR_HEADER) == "ada@desk"
        assert header(found.headers, "type") == "turn.ended"
        assert header(found.headers, "traceparent") is None, "a trace of then is no trace of now"
        assert header(found.headers, REPLAY_HEADER) is None, "live roles refuse that"

    def test_the_names_of_views_are_those_of_the_roles(self) -> None:
        assert {group_of("messages"), group_of("sessions"), APP} == VIEWS

    def test_twice_is_nothing_to_do(self) -> None:
        found = decision(letter(ended(1)), Past(redriven_at=300))
        assert isinstance(found, Refusal)
        assert found.done
        assert "holds it at offset 300" in found.why

    def test_what_failed_again_does_not_go_round(self) -> None:
        again = letter(ended(1), headers=((SOURCE_HEADER, b"chat.turns-3@9"),))
        assert "redriven before, from chat.turns-3@9, and failed again" in refused(again)

    def test_what_still_can_not_be_read_stays(self) -> None:
        assert "this version can't read it either" in refused(letter(b"\xff\xfe{"))
        assert "this version can't read it either" in refused(letter(b"", value=None))

    def test_where_retention_has_passed_nobody_can_tell_whether_it_went_back(self) -> None:
        assert "no longer holds what came after it" in refused(letter(ended(1)), Past(complete=False))

    def test_what_the_user_changed_since_is_not_undone(self) -> None:
        changed = letter(SessionChanged(session=SESSION, user=USER, at=1, title="old"))
        assert "going back would undo that" in refused(changed, Past(said_later=True))
        thumb = Feedback(response=response(1), session=SESSION, user=USER, rating="up", at=1)
        assert "going back would undo that" in refused(letter(thumb), Past(said_later=True))
        assert isinstance(decision(changed), Redrive)
        assert isinstance(decision(letter(ended(1)), Past(said_later=True)), Redrive), "an end stands by its epoch"

    def test_another_key_or_partition_than_the_sessions_is_refused(self) -> None:
        assert "its key is not its session's" in refused(letter(ended(1), key=b"0" * 32))
        assert "its key is not its session's" in refused(letter(ended(1), source_partition=(PARTITION + 1) % 16))

    def test_a_group_that_is_no_view_does_not_get_it_twice(self) -> None:
        assert "orchestrator is no view" in refused(letter(ended(1), group="orchestrator"))


class TestWhatNeverGoesBack:
    @pytest.mark.parametrize("as_new_turn", [False, True])
    def test_a_request(self, as_new_turn: bool) -> None:
        """The turn has ended and the user was told. No option changes that."""
        one = letter(request(1), topic="chat.inference.smol.paid", group="worker-smol")
        assert "a request never runs again" in refused(one, as_new_turn=as_new_turn)

    @pytest.mark.parametrize("topic", [VERDICTS, CONTROL, TOKENS, "chat.capacity", "somebody.elses"])
    def test_what_concerns_turns_that_are_over(self, topic: str) -> None:
        assert f"records of {topic} concern turns that are over" in refused(letter(ended(1), topic=topic))

    def test_a_replays(self) -> None:
        """Field case F76: what a replay wrote does not come to life."""
        assert "written by a replay" in refused(letter(ended(1), headers=((REPLAY_HEADER, b"1"),)))


class TestPrompts:
    def test_one_needs_the_word_of_the_operator(self) -> None:
        assert "say --as-new-turn" in refused(letter(prompt(), topic=PROMPTS, group="orchestrator"))

    def test_as_a_new_turn_it_has_ids_of_its_own_in_the_same_session(self) -> None:
        found = decision(letter(prompt(), topic=PROMPTS, group="orchestrator"), as_new_turn=True)
        assert isinstance(found, Redrive)
        new = decoder(PromptAccepted)(found.value)
        assert new.response != response(1)
        address = parse_response_id(KEYS, USER, new.response)
        assert (address.session, address.accepted_ms, address.lane, address.start) == (SESSION, NOW, 5, 42)
        assert (new.session, new.accepted_at, new.route) == (SESSION, NOW, LANE)
        assert [item.id for item in new.items] == [message_id(new.response, n) for n in (0, 1)]
        assert [item.text for item in new.items] == ["one", "two"]
        assert new.echo == {OUTPUT_ITEM: message_id(new.response, 2), "model": "auto"}
        assert not new.new_session, "the session may have gone on: its turns are looked for"
        assert header(found.headers, "response") == new.response
        assert header(found.headers, SOURCE_HEADER) == f"{PROMPTS}-{PARTITION}@120"

    def test_two_operators_make_one_turn_of_it(self) -> None:
        """The orchestrator answers the second with the first: both carry one key, made of the letter's source."""
        assert mint(prompt()).key_hash == mint(prompt()).key_hash is not None
        other = new_turn(prompt(), "chat.prompts-3@121", keys=KEYS, route=LANE, now_ms=NOW)
        assert other.key_hash != mint(prompt()).key_hash

    def test_the_clients_own_key_stays_so_that_its_retry_and_this_are_one_turn(self) -> None:
        new = mint(prompt(key_hash="ab", body_hash="cd"))
        assert (new.key_hash, new.body_hash) == ("ab", "cd")

    @pytest.mark.parametrize("status", ["running", "completed", "incomplete", "refused", "cancelled"])
    def test_one_that_has_a_turn_after_all_is_not_answered_twice(self, status: str) -> None:
        one = letter(prompt(), topic=PROMPTS, group="orchestrator")
        assert f"its turn is in the log and {status}" in refused(one, Past(status=status), as_new_turn=True)

    @pytest.mark.parametrize("status", [None, "failed", "expired"])
    def test_one_whose_turn_failed_may_be_asked_anew(self, status: str | None) -> None:
        one = letter(prompt(), topic=PROMPTS, group="orchestrator")
        assert isinstance(decision(one, Past(status=status), as_new_turn=True), Redrive)

    def test_one_under_another_sessions_key_is_refused(self) -> None:
        one = replace(letter(prompt(), topic=PROMPTS), key=b"0" * 32)
        assert "its key is not its session's" in refused(one, as_new_turn=True)
        astray = letter(prompt(), topic=PROMPTS, group="orchestrator", source_partition=(PARTITION + 1) % 16)
        assert "or its partition" in refused(astray, as_new_turn=True)


def test_a_limit_counts_what_goes_back_and_nothing_else() -> None:
    goes, done = Redrive(letter(b""), b"", (), ""), Refusal(letter(b""), "", done=True)
    assert at_most(1, [done, done, goes, done, goes]) == [done, done, goes, done]
    assert at_most(2, [goes, done, goes, done]) == [goes, done, goes, done]
    assert at_most(9, []) == []
