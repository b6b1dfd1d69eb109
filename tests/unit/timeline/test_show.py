"""What operators see, and what they do not see unless they ask for it."""

from __future__ import annotations

import json
import typing
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from parley.timeline.fold import Entry, Folding
from parley.timeline.redact import OPAQUE, PLAIN, redacted
from parley.timeline.show import Show, as_json, lines, printable
from parley.timeline.target import Target
from parley.topics import load_topics
from schemas.wire import EVENTS, encode
from tests.unit.core.core_events import SESSION, delta, ended, response, said, started
from tests.unit.test_schemas_export import EXAMPLES

CONTENT = {"text", "refusal", "instructions", "prompt", "stop", "title", "comment"}
"""String fields that hold what people or models wrote."""
SECRET = "the quick brown fox"


def string_fields(model: type[BaseModel], name: str = "") -> Iterator[str]:
    """Names of all fields of an event, at any depth, that hold strings."""
    for field, info in model.model_fields.items():
        for kind in _kinds(info.annotation):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from string_fields(kind, field)
            elif kind is str:
                yield field


def _kinds(annotation: Any) -> Iterator[Any]:
    arguments = typing.get_args(annotation)
    if typing.get_origin(annotation) is dict:
        return
    if not arguments:
        yield annotation
    for argument in arguments:
        yield from _kinds(argument)


@pytest.mark.parametrize("event", EVENTS.values(), ids=EVENTS)
def test_every_string_of_every_event_is_known_to_be_content_or_not(event: type[BaseModel]) -> None:
    """A new field must be listed in one of the two; until it is in PLAIN it is hidden."""
    assert set(string_fields(event)) <= PLAIN | CONTENT | OPAQUE
    assert not PLAIN & CONTENT


@pytest.mark.parametrize("event", EXAMPLES, ids=lambda event: str(event.type))
def test_nothing_that_was_written_is_in_a_redacted_event(event: BaseModel) -> None:
    written = _replace(json.loads(encode(event)), "")
    hidden = json.dumps(redacted(type(event).model_validate_json(json.dumps(written))))
    assert SECRET not in hidden


def _replace(value: Any, name: str) -> Any:
    """The event with the secret in every field of content, and in everything that is the user's to name."""
    if name in OPAQUE:
        return {"model": SECRET, SECRET: "1"}
    if isinstance(value, dict):
        return {key: _replace(inner, key) for key, inner in value.items()}
    if isinstance(value, list):
        return [_replace(inner, name) for inner in value]
    return SECRET if name in CONTENT else value


def entry(event: Any, offset: int = 1, void: str | None = None) -> Entry:
    return Entry(1_700_000_000_000 + offset, "chat.turns", 3, offset, event.type, response(1), event, void)


def shown(events: list[Entry], *, content: bool) -> str:
    show = Show(Folding(Target("", SESSION), load_topics()), content=content)
    return "\n".join(show.line(line).plain for line in lines(events))


def test_contents_are_shown_only_when_asked_for() -> None:
    events = [entry(started(1, items=(said(SECRET),))), entry(delta(0, SECRET), 2), entry(ended(1), 3)]
    assert SECRET not in shown(events, content=False)
    assert "19 characters" in shown(events, content=False)
    assert shown(events, content=True).count(SECRET) == 1
    assert "answer 1" in shown(events, content=True)


def test_deltas_of_one_writer_in_a_row_are_one_line() -> None:
    told = shown([*(entry(delta(n, "ab"), n) for n in range(40)), entry(delta(40, "z", "w2"), 41)], content=False)
    first, second = told.splitlines()
    assert "× 40 seq 0–39, 80 characters, writer w1" in first
    assert "@0–39" in first
    assert "writer w2" in second


def test_a_void_record_says_why_and_does_not_hide_in_a_run() -> None:
    told = shown([entry(delta(0, "a"), 0), entry(delta(0, "a"), 1, "not the next in sequence")], content=False)
    assert len(told.splitlines()) == 2
    assert "void: not the next in sequence" in told


def test_what_somebody_wrote_does_not_steer_the_terminal() -> None:
    wicked = "\x1b[2J\x1b]0;owned\x07\u202e"
    assert printable(wicked) == "\\x1b[2J\\x1b]0;owned\\x07\\x202e"
    assert "\x1b" not in shown([entry(delta(0, wicked))], content=True)


def test_json_says_the_same_without_contents() -> None:
    told = as_json(entry(delta(3, SECRET)), content=False)
    assert told["event"]["text"] == "[19 characters]"
    assert (told["type"], told["offset"], told["event"]["seq"]) == ("delta", 1, 3)
    assert as_json(entry(delta(3, SECRET)), content=True)["event"]["text"] == SECRET
