"""The output guard: what it releases and blocks is a function of the text, never of its pieces."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from parley.safety.classifier import Classifier
from parley.safety.guard import OutputGuard, Released
from parley.safety.policy import Decision, Policy
from parley.safety.text import LONGEST_WORD

SAFE = "The weather in the mountains is lovely today and we will walk to the lake after breakfast with all our friends."
HARM = "I want to kill myself. kill yourself, commit suicide, hang yourself and end your life."

pieces_of_text = st.lists(
    st.one_of(
        st.sampled_from(
            [
                SAFE,
                HARM,
                "kill yourself",
                "suicide",
                "walk",
                " ",
                "\n",
                "今天天气怎么样" * 5,
                "QUJD" * 20,
                "…",
                "e\u0301",
            ]
        ),
        st.text(max_size=30),
        st.just(" "),
    ),
    max_size=14,
).map("".join)
hold_backs = st.sampled_from([0, 1, 4, 7])


@dataclass(frozen=True)
class Outcome:
    text: str
    decision: Decision | None


def with_hold_back(policy: Policy, hold_back: int) -> Policy:
    return policy.model_copy(update={"hold_back": hold_back, "window": 12})


def run(guard: OutputGuard, pieces: list[str]) -> Outcome:
    released = [guard.feed(piece) for piece in pieces] + [guard.finish()]
    return Outcome("".join(r.text for r in released), released[-1].blocked)


def cut(text: str, positions: list[int]) -> list[str]:
    edges = [0, *sorted(p % (len(text) + 1) for p in positions), len(text)]
    return [text[a:b] for a, b in pairwise(edges)]


@given(pieces_of_text, st.lists(st.integers(0, 10_000), max_size=20), hold_backs)
@example("a bc " + HARM, [], 0)
@example(SAFE + HARM + SAFE, [3], 4)
def test_the_cutting_of_the_text_changes_nothing(
    classifier: Classifier, policy: Policy, text: str, positions: list[int], hold_back: int
) -> None:
    policy = with_hold_back(policy, hold_back)
    whole = run(OutputGuard(classifier, policy), [text])
    assert run(OutputGuard(classifier, policy), cut(text, positions)) == whole
    assert run(OutputGuard(classifier, policy), list(text)) == whole


@given(pieces_of_text, st.lists(st.integers(0, 10_000), max_size=20), hold_backs)
def test_what_is_released_is_a_prefix_and_all_of_it_when_allowed(
    classifier: Classifier, policy: Policy, text: str, positions: list[int], hold_back: int
) -> None:
    guard = OutputGuard(classifier, with_hold_back(policy, hold_back))
    fed = released = ""
    for piece in cut(text, positions):
        fed += piece
        released += guard.feed(piece).text
        assert fed.startswith(released)
    end = guard.finish()
    released += end.text
    assert text.startswith(released)
    if end.blocked is None:
        assert released == text


@settings(max_examples=200)
@given(pieces_of_text, st.integers(0, 10_000), hold_backs)
@example(SAFE + " " + HARM, 115, 0)
def test_an_answer_continued_elsewhere_ends_as_if_it_had_stayed(
    classifier: Classifier, policy: Policy, text: str, crash: int, hold_back: int
) -> None:
    policy = with_hold_back(policy, hold_back)
    whole = run(OutputGuard(classifier, policy), [text])
    first = OutputGuard(classifier, policy).feed(text[: crash % (len(text) + 1)])
    if first.blocked:
        assert first == Released(whole.text, whole.decision)
        return
    rest = run(OutputGuard(classifier, policy, prior_text=first.text), [text[len(first.text) :]])
    assert Outcome(first.text + rest.text, rest.decision) == whole


def test_text_leaves_when_the_window_that_ends_l_words_later_is_scored(classifier: Classifier, policy: Policy) -> None:
    guard = OutputGuard(classifier, with_hold_back(policy, 4))
    assert guard.feed("one two three four five").text == ""
    assert guard.feed(" ").text == "one"
    assert guard.feed("six seven ").text == " two three"
    assert guard.finish() == Released(" four five six seven ")


def test_without_hold_back_every_character_leaves_at_once(classifier: Classifier, policy: Policy) -> None:
    guard = OutputGuard(classifier, with_hold_back(policy, 0))
    assert [guard.feed(piece).text for piece in ("Hel", "lo", ", wor", "ld ")] == ["Hel", "lo", ", wor", "ld "]


@pytest.mark.parametrize("hold_back", [0, 4])
def test_harm_in_the_middle_stops_the_answer(classifier: Classifier, policy: Policy, hold_back: int) -> None:
    guard = OutputGuard(classifier, with_hold_back(policy, hold_back))
    released = "".join(guard.feed(character).text for character in f"{SAFE} {HARM} {SAFE}")
    assert released.startswith(SAFE[:60])
    assert "hang yourself" not in released
    assert guard.decision.blocked
    assert "self-harm" in guard.decision.categories
    assert guard.finish() == Released("", guard.decision)


def test_held_text_is_dropped_when_the_tail_is_blocked(classifier: Classifier, policy: Policy) -> None:
    guard = OutputGuard(classifier, with_hold_back(policy, 7))
    assert guard.feed("I want to kill myself").text == ""
    end = guard.finish()
    assert end.text == ""
    assert end.blocked is not None


def test_text_without_spaces_is_not_held_for_ever(classifier: Classifier, policy: Policy) -> None:
    guard = OutputGuard(classifier, with_hold_back(policy, 4))
    run_without_spaces = "今天天气很好我们去公园散步吧" * 100
    released = "".join(guard.feed(character).text for character in run_without_spaces)
    assert len(run_without_spaces) - len(released) <= 5 * LONGEST_WORD


def test_the_verdict_of_an_allowed_answer_carries_its_highest_scores(classifier: Classifier, policy: Policy) -> None:
    guard = OutputGuard(classifier, policy)
    guard.feed(SAFE)
    guard.finish()
    assert guard.decision.action == "allow"
    assert max(guard.decision.scores.values()) > 0


def test_a_guard_serves_one_answer(classifier: Classifier, policy: Policy) -> None:
    guard = OutputGuard(classifier, policy)
    guard.finish()
    with pytest.raises(ValueError, match="one answer"):
        guard.feed("more")
    with pytest.raises(ValueError, match="one answer"):
        guard.finish()
