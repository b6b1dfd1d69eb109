"""Moderation before against moderation now: what counts as a change, and what the log still tells of before."""

from __future__ import annotations

import pytest

from producers.replay.report import SAME
from producers.replay.verdicts import ALLOWED, BLOCKED, CATEGORIES, MISSING, UNKNOWN, Judged, change, compare
from tests.unit.core.core_events import ended, response
from tests.unit.replay.replay_parts import manifest, prompt, taken

ALLOW = Judged("allow", (), {"hate": 0.1, "sexual": 0.3}, "p1", "m1")
BLOCK = Judged("block", ("hate",), {"hate": 0.8, "sexual": 0.3}, "p1", "m1")


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (ALLOW, ALLOW, SAME),
        (ALLOW, BLOCK, BLOCKED),
        (BLOCK, ALLOW, ALLOWED),
        (BLOCK, Judged("block", ("sexual",), {"sexual": 0.9}), CATEGORIES),
        (Judged("block"), BLOCK, SAME),  # only the end of the turn is left: it does not tell for what
        (None, BLOCK, UNKNOWN),
        (ALLOW, None, MISSING),
    ],
)
def test_what_a_change_is(before: Judged | None, after: Judged | None, expected: str) -> None:
    assert change(before, after) == expected


class TestWhatAnEndTells:
    @pytest.mark.parametrize(
        ("status", "decision"), [("refused", "block"), ("completed", "allow"), ("incomplete", "allow")]
    )
    def test_a_refusal_was_a_block_and_an_answer_none(self, status: str, decision: str) -> None:
        told = Judged.from_end(ended(1, status=status, policy="p1"))
        assert told == Judged(decision, policy="p1")

    @pytest.mark.parametrize("status", ["failed", "cancelled", "expired"])
    def test_of_other_ends_nobody_knows(self, status: str) -> None:
        assert Judged.from_end(ended(1, status=status)) is None


class TestTheReport:
    def test_it_has_a_row_a_prompt_with_the_category_that_counts_and_totals(self) -> None:
        prompts = taken(prompt(1), prompt(2), prompt(3))
        before = {response(1): ALLOW, response(2): BLOCK}
        after = {response(1): BLOCK, response(2): BLOCK, response(3): ALLOW}
        found = compare(manifest(), prompts, before, after)
        assert found.totals == {
            "turns": 3, BLOCKED: 1, SAME: 1, UNKNOWN: 1, "blocked before": 1, "blocked now": 2,
        }  # fmt: skip
        [changed, unknown] = found.changed
        assert (changed.response, changed.before["worst"], changed.after["worst"]) == (response(1), "sexual", "hate")
        assert (unknown.before, unknown.after["decision"]) == ({}, "allow")
        assert found.versions["policy"] == ("p1", "p1")

    def test_texts_are_in_it_only_when_asked_for(self) -> None:
        prompts = taken(prompt(1, "my secret"))
        without = compare(manifest(), prompts, {}, {response(1): BLOCK})
        assert "my secret" not in without.model_dump_json()
        asked = compare(manifest(content=True), prompts, {}, {response(1): BLOCK})
        assert asked.rows[0].texts == {"prompt": "my secret"}
