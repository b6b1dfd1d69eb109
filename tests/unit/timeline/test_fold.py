"""From records to a timeline: what is the target's, what is void and why, and in which order it is told."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from aiokafka.structs import ConsumerRecord
from pydantic import BaseModel

from parley.errors import ParleyError
from parley.ids import conversation_id, message_id
from parley.log.partitions import session_key
from parley.log.ranges import Record
from parley.timeline.fold import DEAD_LETTER, UNREADABLE, Entry, Folding, in_order
from parley.timeline.read import apart
from parley.timeline.target import Target, parse_target
from parley.topics import AUDIT, CONTROL, DLQ, PROMPTS, TOKENS, TURNS, VERDICTS, load_topics
from schemas.operations import ContentRead
from schemas.prompts import Cancel, Verdict
from schemas.routes import encode_route_record
from schemas.turns import SessionDeleted
from schemas.wire import REPLAY_HEADER, encode
from tests.unit.core.core_events import (
    KEYS,
    SESSION,
    SOMEBODY_ELSE,
    USER,
    delta,
    ended,
    fence,
    opened,
    request,
    response,
    started,
    terminal,
)

TOPICS = load_topics()
KEY = session_key(SESSION.hex)


class Log:
    """Records as brokers would give them: offsets and times count up."""

    def __init__(self) -> None:
        self._offset = 100
        self._at = 1_700_000_000_000

    def __call__(
        self,
        topic: str,
        *events: BaseModel,
        key: bytes = KEY,
        value: bytes | None = None,
        partition: int = 3,
        **more: Any,
    ) -> Record:
        self._offset += 1
        self._at += 10
        if value is None:
            value = encode_route_record(events) if topic.startswith(TOKENS) else encode(events[0])
        return ConsumerRecord(
            topic=topic,
            partition=partition,
            offset=self._offset,
            timestamp=more.get("at", self._at),
            timestamp_type=1,
            key=key,
            value=value,
            checksum=None,
            serialized_key_size=0,
            serialized_value_size=0,
            headers=more.get("headers", ()),
        )


@pytest.fixture
def log() -> Log:
    return Log()


def folding(of: str | None = None) -> Folding:
    return Folding(Target("", SESSION, of), TOPICS)


def voids(entries: list[Entry]) -> list[str | None]:
    return [entry.void for entry in entries]


class TestWhatIsAskedFor:
    def test_ids_of_every_kind_lead_to_the_session(self) -> None:
        assert parse_target(conversation_id(KEYS, USER, SESSION)).session == SESSION
        assert parse_target(str(SESSION)).session == SESSION
        assert parse_target(SESSION.hex).response is None
        found = parse_target(message_id(response(1), 0))
        assert (found.session, found.response) == (SESSION, response(1))
        assert parse_target(response(1)).born_ms == 1_700_000_000_001

    @pytest.mark.parametrize("text", ["", "conv_", "resp_AAAA", "msg_?", "42", "chat.turns"])
    def test_anything_else_is_refused_with_what_to_give(self, text: str) -> None:
        with pytest.raises(ParleyError, match="Give a conv_"):
            parse_target(text)

    def test_a_session_that_a_key_made_has_no_time_of_its_own(self) -> None:
        assert Target("", UUID(int=8 << 76 | 0b10 << 62)).born_ms is None


class TestTheSession:
    def test_a_turn_from_prompt_to_end(self, log: Log) -> None:
        fold = folding()
        entries = [
            entry
            for record in (
                log(TURNS, started(1)),
                log("chat.inference.synthetic.free", request(1)),
                log(TOKENS, opened(), fence(), key=response(1).encode()),
                log(TOKENS, delta(0, "a"), delta(1, "b"), terminal(2), key=response(1).encode()),
                log(TURNS, ended(1)),
            )
            for entry in fold.add(record)
        ]
        assert [entry.kind for entry in entries] == [
            *("turn.started", "inference.request", "opened", "fence", "delta", "delta", "terminal", "turn.ended")
        ]
        assert voids(entries) == [None] * 8
        assert fold.transcripts[response(1)].text == "ab"
        assert fold.session.turns[response(1)].status == "completed"
        assert set(fold.ended) == {response(1)}

    def test_other_conversations_are_not_told(self, log: Log) -> None:
        fold = folding()
        assert fold.add(log(TURNS, started(1), key=b"0" * 32)) == []
        assert fold.add(log(TOKENS, opened(), key=response(1).encode())) == [], (
            "not before the session says whose it is"
        )
        assert fold.add(log("chat.capacity", value=b"{}")) == []

    def test_a_response_is_told_alone_with_the_end_of_its_session(self, log: Log) -> None:
        fold = folding(response(2))
        told = [
            *fold.add(log(TURNS, started(1))),
            *fold.add(log(TURNS, started(2))),
            *fold.add(log(TURNS, SessionDeleted(session=SESSION, user=USER, at=1))),
        ]
        assert [(entry.kind, entry.response) for entry in told] == [
            ("turn.started", response(2)),
            ("session.deleted", None),
        ]

    def test_what_is_void_says_why(self, log: Log) -> None:
        fold = folding()

        def verdict(decision: str) -> Verdict:
            return Verdict.model_validate(
                {"response": response(1), "session": SESSION, "stage": "input", "decision": decision}
                | {"policy": "p", "model": "m", "at": 1}
            )

        cancel = Cancel(response=response(1), session=SESSION, user=USER, at=1)
        records = [
            log(TURNS, started(1, dispatch=(2, 1))),
            log(TURNS, started(1, dispatch=(1, 9))),
            log(TURNS, ended(1, user=SOMEBODY_ELSE, dispatch=(2, 1))),
            log(TURNS, ended(1, dispatch=(2, 1), epoch=(2, 1, 5, 1))),
            log(TURNS, ended(1, dispatch=(2, 1), epoch=(2, 1, 5, 1))),
            log(TURNS, ended(1, dispatch=(2, 1), epoch=(2, 1, 4, 1))),
            log(TURNS, started(1, dispatch=(3, 1))),
            log(VERDICTS, verdict("allow")),
            log(VERDICTS, verdict("block")),
            log(CONTROL, cancel),
            log(CONTROL, cancel),
            log("chat.inference.synthetic.free", request(1)),
            log("chat.inference.synthetic.free", request(1)),
            log(TURNS, started(2), headers=((REPLAY_HEADER, b"1"),)),
        ]
        assert voids([entry for record in records for entry in fold.add(record)]) == [
            None,
            "dispatch lower than the standing one",
            "not the session's user",
            None,
            "the same end, repeated",
            "an end of a greater epoch stands",
            "the turn had ended",
            None,
            "a verdict came before",
            None,
            "cancelled before",
            None,
            "repeated: its worker absorbs it",
            "a replay's: live roles refuse it",
        ]
        assert response(2) not in fold.session.turns

    def test_what_cannot_be_read_is_told_without_its_bytes(self, log: Log) -> None:
        [entry] = folding().add(log(PROMPTS, value=b'{"secret": 1}', headers=(("response", response(1).encode()),)))
        assert (entry.kind, entry.response, "secret" in entry.note) == (UNREADABLE, response(1), False)

    def test_a_dead_letter_says_where_it_came_from(self, log: Log) -> None:
        about = {"topic": b"chat.turns", "partition": b"3", "offset": b"7", "reason": b"no event"}
        letter = log(DLQ, value=b"?", headers=tuple((f"x-dlq-{name}", value) for name, value in about.items()))
        [entry] = folding().add(letter)
        assert (entry.kind, entry.note) == (DEAD_LETTER, "chat.turns-3 offset 7: no event")

    def test_who_read_it_is_part_of_it(self, log: Log) -> None:
        read = ContentRead(who="ada@desk", command="parley log", session=SESSION, what="conv_…", at=1)
        [entry] = folding().add(log(AUDIT, read))
        assert (entry.kind, entry.void) == ("content.read", None)


class TestRoutes:
    KEY = response(1).encode()

    def test_a_zombies_records_are_void_with_the_reason(self, log: Log) -> None:
        fold = folding(response(1))
        told = [
            *fold.add(log(TOKENS, opened(), fence((1, 1, 1, 1), "old"), key=self.KEY)),
            *fold.add(log(TOKENS, delta(0, "a", "old"), key=self.KEY)),
            *fold.add(log(TOKENS, fence((1, 1, 2, 1), "new"), key=self.KEY)),
            *fold.add(log(TOKENS, delta(1, "zombie", "old"), fence((1, 1, 1, 2), "old"), key=self.KEY)),
            *fold.add(log(TOKENS, delta(2, "gap", "new"), delta(1, "b", "new"), terminal(2, "new"), key=self.KEY)),
            *fold.add(log(TOKENS, terminal(2, "old"), key=self.KEY)),
        ]
        assert voids(told) == [
            *(None, None, None, None),
            *("not the current writer", "fence of an epoch that is not greater"),
            *("not the next in sequence", None, None),
            "after the end",
        ]
        assert fold.transcripts[response(1)].text == "ab"

    def test_a_route_whose_beginning_is_gone_is_told_and_not_judged(self, log: Log) -> None:
        fold = folding(response(1))
        fold.torn(response(1))
        assert voids(fold.add(log(TOKENS, delta(7, "x"), key=self.KEY))) == [None]

    def test_what_was_folded_is_not_folded_again(self, log: Log) -> None:
        """A lane that is read again for a later turn brings an earlier one's records again."""
        fold = folding(response(1))
        record = log(TOKENS, opened(), key=self.KEY)
        assert len(fold.add(record)) == 1
        assert fold.add(record) == []

    def test_records_before_the_turn_or_on_another_lane_are_not_its(self, log: Log) -> None:
        fold = folding(response(1))
        early = log(TOKENS, opened(), key=self.KEY)
        early.offset = 6  # the id says that its route begins at 7
        assert fold.add(early) == []
        assert fold.add(log(TOKENS, opened(), key=self.KEY, partition=4)) == []

    def test_bytes_that_are_no_events_are_told(self, log: Log) -> None:
        [entry] = folding(response(1)).add(log(TOKENS, value=b"[{}]", key=self.KEY))
        assert entry.kind == UNREADABLE


class TestOrder:
    def test_by_log_time_and_causes_before_effects_in_one_millisecond(self) -> None:
        def entry(at: int, kind: str, topic: str = "t", offset: int = 0) -> Entry:
            return Entry(at, topic, 0, offset, kind, None)

        told = in_order(
            [
                *(entry(5, "turn.ended", TURNS, 1), entry(5, "turn.started", TURNS, 2)),
                *(entry(4, "fence", TOKENS, 1), entry(5, "terminal", TOKENS, 2)),
                entry(4, "prompt.accepted", PROMPTS, 9),
            ]
        )
        assert [one.kind for one in told] == ["prompt.accepted", "fence", "terminal", "turn.ended", "turn.started"]

    def test_a_broker_whose_clock_is_behind_does_not_turn_its_partition_round(self) -> None:
        times = [100, 90, 110]
        told = in_order([Entry(at, TURNS, 0, n, "turn.started", None) for n, at in enumerate(times)])
        assert [one.offset for one in told] == [0, 1, 2]

    def test_spans_that_touch_are_read_once(self) -> None:
        assert apart([(10, 20), (5, 12), (20, 21), (30, 40), (7, 7)]) == [(5, 21), (30, 40)]
