"""Which records of a topic are shown, and what a filter may see."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from aiokafka.structs import ConsumerRecord

from parley.errors import ParleyError
from parley.log.ranges import Record
from parley.timeline.decode import OTHER, TOMBSTONE, entries_of, session_of
from parley.timeline.fold import DEAD_LETTER, UNREADABLE
from parley.timeline.pick import Pick, Where
from parley.timeline.topic import home
from parley.timeline.topic_cli import Offsets, pick_of
from parley.timeline.topic_show import topic_json
from parley.topics import CAPACITY, DLQ, PROMPTS, TOKENS, TURNS, load_topics
from schemas.routes import encode_route_record
from schemas.wire import Headers, encode, headers
from tests.unit.core.core_events import SESSION, USER, delta, response, said, started, terminal

TOPICS = load_topics()


def record(topic: str, value: bytes | None, key: bytes = SESSION.hex.encode(), about: Headers = ()) -> Record:
    return ConsumerRecord(topic, 3, 7, 1_700_000_000_000, 1, key, value, None, 0, 0, about)


ROUTE = record(TOKENS, encode_route_record((delta(0, "a"), terminal(1))), response(1).encode())
STARTED = record(TURNS, encode(started(1)))


@pytest.mark.parametrize(
    ("one", "kinds"),
    [
        (STARTED, ["turn.started"]),
        (ROUTE, ["delta", "terminal"]),
        (record(CAPACITY, None), [TOMBSTONE]),
        (record(DLQ, b"?"), [DEAD_LETTER]),
        (record(TURNS, b'{"type": "turn.started"}'), [UNREADABLE]),
        (record(TURNS, b'{"type": "turn.invented"}'), [UNREADABLE]),
        (record(TOKENS, b"[{}]"), [UNREADABLE]),
        (record("parley-usage-hours-changelog", b"[1]"), [UNREADABLE]),
        (record("parley-usage-hours-changelog", b'{"tokens": 1}'), [OTHER]),
        (record("somebody.elses", b"\xff"), [OTHER]),
    ],
)
def test_a_record_is_what_its_bytes_say(one: Record, kinds: list[str]) -> None:
    assert [entry.kind for entry in entries_of(one)] == kinds


def test_a_route_record_belongs_to_the_response_of_its_key() -> None:
    assert {entry.response for entry in entries_of(ROUTE)} == {response(1)}
    assert session_of(ROUTE, entries_of(ROUTE)[0]) == SESSION.hex


@pytest.mark.parametrize(
    ("pick", "kept"),
    [
        (Pick(), ["turn.started", "delta", "terminal"]),
        (Pick(session=SESSION), ["turn.started", "delta", "terminal"]),
        (Pick(session=uuid4()), []),
        (Pick(response=response(1)), ["turn.started", "delta", "terminal"]),
        (Pick(response=response(2)), []),
        (Pick(user=USER), ["turn.started"]),
        (Pick(user=uuid4()), []),
        (Pick(types=frozenset({"delta"})), ["delta"]),
        (Pick(session=SESSION, types=frozenset({"turn.started", "fence"})), ["turn.started"]),
    ],
)
def test_all_of_what_is_given_must_hold(pick: Pick, kept: list[str]) -> None:
    assert [e.kind for one in (STARTED, ROUTE) for e in entries_of(one) if pick.wants(one, e)] == kept


def test_an_unreadable_record_is_found_by_its_headers() -> None:
    bad = record(TURNS, b"{", about=headers("turn.started", response=response(1), session=SESSION.hex))
    [entry] = entries_of(bad)
    assert Pick(session=SESSION, response=response(1)).wants(bad, entry)


def told(one: Record, *, content: bool = False) -> dict[str, Any]:
    return topic_json(one, entries_of(one)[0], content=content)


class TestWhere:
    @pytest.mark.parametrize(
        ("program", "keeps"),
        [
            ('.event.tier == "free"', True),
            (".event.turn > 1", False),
            (".event.nothing", False),
            (".partition", True),
            ("empty", False),
            (f'.session == "{SESSION.hex}" and .bytes > 100', True),
        ],
    )
    def test_a_program_that_says_neither_false_nor_null_keeps(self, program: str, keeps: bool) -> None:
        assert Where(program).keeps(told(STARTED)) is keeps

    def test_it_sees_no_more_than_is_shown(self) -> None:
        one = record(TURNS, encode(started(1, items=(said("the fox"),))))
        look = '.event.items[0].parts[0].text | contains("fox")'
        assert not Where(look).keeps(told(one))
        assert Where(look).keeps(told(one, content=True))

    def test_what_is_no_program_is_refused(self) -> None:
        with pytest.raises(ParleyError, match="no jq program"):
            Where(".a >")

    def test_entries_that_it_fails_on_are_counted(self) -> None:
        where = Where(".partition | contains(1.5 | tostring)")
        assert not where.keeps(told(STARTED))
        assert (where.failed, bool(where.failure)) == (1, True)


class TestOptions:
    @pytest.mark.parametrize(
        ("text", "offsets"),
        [("120", (120, 120)), ("1..2", (1, 2)), ("1..", (1, None)), ("..2", (None, 2)), ("..", (None, None))],
    )
    def test_ranges_of_offsets(self, text: str, offsets: tuple[int | None, int | None]) -> None:
        assert Offsets().convert(text, None, None) == offsets

    @pytest.mark.parametrize("wrong", [("x", None, None), (None, str(SESSION), None), (None, None, "ada")])
    def test_ids_that_are_none_are_refused(self, wrong: tuple[str | None, str | None, str | None]) -> None:
        with pytest.raises(ParleyError):
            pick_of(*wrong, types=())

    def test_only_the_partition_that_can_hold_it_is_read(self) -> None:
        of_session = pick_of(str(SESSION), None, None, ())
        [partition] = home(TOPICS, PROMPTS, 16, of_session) or []
        assert home(TOPICS, PROMPTS, 16, pick_of(None, response(1), None, ())) == [partition]
        assert home(TOPICS, TOKENS, 16, pick_of(None, response(1), None, ())) == [3], "its lane"
        assert home(TOPICS, TOKENS, 16, of_session) is None
        assert home(TOPICS, CAPACITY, 1, of_session) is None
