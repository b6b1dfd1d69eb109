"""Answers before against answers now: what counts as a change, and how texts are compared."""

from __future__ import annotations

import pytest

from parley.topics import TURNS
from producers.replay.answering import take_end
from producers.replay.answers import END, NO_END, NO_REQUEST, TEXT, Answered, change, compare, diff, likeness
from producers.replay.report import SAME
from schemas.base import Timings, Usage
from schemas.turns import TurnEnded
from tests.unit.core.core_events import answered, ended, failed, response, started
from tests.unit.replay.replay_parts import manifest, prompt, record, taken


def answer(text: str = "one two three", ttft: int = 40, **fields: object) -> Answered:
    timings = Timings(engine_started=1_000, first_token=1_000 + ttft)
    usage = Usage(output_tokens=len(text.split()))
    return Answered.by(ended(1, output=answered(text), timings=timings, usage=usage, **fields))


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (answer(), answer(ttft=900), SAME),  # how long it took is no change of the answer
        (answer(), answer("one two four"), TEXT),
        (answer(), answer(status="refused"), END),
        (answer(status="incomplete", reason="max_output_tokens"), answer(status="incomplete", reason="x"), END),
        (None, answer(), NO_END),
        (answer(), None, NO_REQUEST),
    ],
)
def test_what_a_change_is(before: Answered | None, after: Answered | None, expected: str) -> None:
    assert change(before, after) == expected


def test_words_that_are_gone_and_new_are_marked() -> None:
    assert diff("the red fox", "the quick red dog") == "the {+quick+} red [-fox-] {+dog+}"
    assert (likeness("a b c d", "a b c d"), likeness("a b", "c d")) == (1.0, 0.0)


def test_an_end_without_tokens_has_no_time_to_the_first() -> None:
    found = Answered.by(ended(1, status="failed", failure=failed(retryable=True), output=()))
    assert (found.ttft_ms, found.reason, found.text) == (None, "engine_error", "")


def test_the_end_that_stands_is_compared_and_not_what_a_zombie_said_later() -> None:
    found: dict[str, TurnEnded] = {}
    for epoch, text in (((1, 1, 1, 1), "one"), ((1, 1, 2, 1), "one two"), ((1, 1, 1, 1), "zombie")):
        take_end(record(ended(1, epoch=epoch, output=answered(text)), TURNS), found)
    take_end(record(started(1), TURNS), found)
    take_end(record(b"{", TURNS), found)
    assert [Answered.by(end).text for end in found.values()] == ["one two"]


def test_the_report_puts_both_side_by_side_and_texts_only_when_asked_for() -> None:
    prompts = taken(prompt(1, "my secret"), prompt(2))
    before, after = {response(1): answer("one two", 40)}, {response(1): answer("one three", 60)}
    found = compare(manifest(stage="worker"), prompts, before, after)
    [first, second] = found.rows
    assert (first.before["ttft ms"], first.after["ttft ms"], first.after["likeness"]) == (40, 60, 0.5)
    assert (first.texts, second.change) == ({}, NO_REQUEST)
    assert found.totals["tokens now"] == 2
    asked = compare(manifest(stage="worker", content=True), prompts, before, after)
    assert asked.rows[0].texts == {"prompt": "my secret", "answer": "one [-two-] {+three+}"}
