"""From what the engine says to what leaves: stop strings and the guard together, whole, cut, and continued."""

from __future__ import annotations

import pytest
from core_events import request
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_workers.answer import Answer, seed_of
from parley.safety.classifier import Classifier
from parley.safety.policy import Policy

PLAIN = "The quick brown fox jumps over the lazy dog, again and again, until evening comes to the quiet village. "
HARMFUL = "You are a worthless stupid idiot and everyone hates you, go and kill yourself now, nobody wants you alive. "
CUTS = st.lists(st.integers(1, 9), min_size=1, max_size=12)


class Run:
    """What one worker releases of an answer; it says what `inference_workers.turn` does with a step."""

    def __init__(self, classifier: Classifier, policy: Policy, stop: tuple[str, ...] = (), prior: str = "") -> None:
        self.answer = Answer(request(sampling={"stop": stop}), classifier, policy, prior)
        self.released = ""
        self.over = False

    def feed(self, text: str, cuts: list[int]) -> Run:
        """The engine says this, in pieces of these sizes, again and again."""
        at, turn = 0, 0
        while at < len(text) and not self.over:
            size = cuts[turn % len(cuts)]
            step = self.answer.feed(text[at : at + size])
            self.released += step.text
            self.over = step.over
            at, turn = at + size, turn + 1
        return self

    def finish(self) -> str:
        """The engine has ended."""
        if not self.over:
            self.released += self.answer.finish().text
        return self.released


@pytest.fixture(scope="session")
def harmful(classifier: Classifier, policy: Policy) -> str:
    """A text that the policy blocks; the tests below would show nothing without it."""
    text = PLAIN + HARMFUL + PLAIN
    run = Run(classifier, policy).feed(text, [len(text)])
    run.finish()
    assert run.answer.blocked is not None
    return text


class TestWholeAnswers:
    def test_a_harmless_answer_leaves_whole(self, classifier: Classifier, policy: Policy) -> None:
        assert Run(classifier, policy).feed(PLAIN, [3]).finish() == PLAIN

    def test_a_harmful_one_ends_before_the_harm(self, classifier: Classifier, policy: Policy, harmful: str) -> None:
        run = Run(classifier, policy).feed(harmful, [4])
        released = run.finish()
        assert run.over
        assert run.answer.decision.blocked
        assert harmful.startswith(released)
        assert "alive" not in released

    def test_a_stop_string_ends_it_and_is_not_shown(self, classifier: Classifier, policy: Policy) -> None:
        run = Run(classifier, policy, ("again,",)).feed(PLAIN, [2])
        assert run.over
        assert run.answer.stopped
        assert run.answer.blocked is None

    def test_all_that_came_before_a_stop_string_leaves(self, classifier: Classifier, policy: Policy) -> None:
        """What the guard holds back is scored as the last window and released, as at the engine's own end."""
        released = Run(classifier, policy, ("again,",)).feed(PLAIN, [2]).finish()
        assert released == PLAIN[: PLAIN.index("again,")]

    def test_what_the_guard_holds_back_before_a_stop_string_is_scored(
        self, classifier: Classifier, policy: Policy
    ) -> None:
        words = HARMFUL.split(" ")
        beginnings = (" ".join(words[:count]) for count in range(1, len(words)))
        shortest = next(text for text in beginnings if Run(classifier, policy).feed(text + " ", [1]).over)
        run = Run(classifier, policy, ("|",)).feed(shortest + "|", [3])
        run.finish()
        assert run.answer.blocked is not None

    def test_the_start_of_a_stop_string_that_never_comes_leaves_at_the_end(
        self, classifier: Classifier, policy: Policy
    ) -> None:
        assert Run(classifier, policy, ("village. THE END",)).feed(PLAIN, [5]).finish() == PLAIN


@settings(max_examples=40)
@given(cuts=CUTS, stop=st.sampled_from([(), ("again",), ("lazy dog", "dog, again"), ("🙂",), ("never there",)]))
def test_how_the_engine_cuts_its_text_changes_nothing(
    cuts: list[int], stop: tuple[str, ...], classifier: Classifier, policy: Policy, harmful: str
) -> None:
    for text in (PLAIN + "🙂 " + PLAIN, harmful):
        whole = Run(classifier, policy, stop).feed(text, [len(text)])
        cut = Run(classifier, policy, stop).feed(text, cuts)
        assert cut.finish() == whole.finish()
        assert (cut.answer.blocked is None) == (whole.answer.blocked is None)
        assert cut.answer.stopped == whole.answer.stopped


@settings(max_examples=60)
@given(
    cuts=CUTS,
    died_after=st.integers(0, 260),
    stop=st.sampled_from([(), ("again",), ("lazy dog", "dog, again"), ("🙂 The",)]),
)
def test_an_answer_that_another_worker_continues_reads_like_one(
    cuts: list[int], died_after: int, stop: tuple[str, ...], classifier: Classifier, policy: Policy, harmful: str
) -> None:
    """Stop string, harmful phrase and a four-byte emoji across a join: what was released counts, no more, no less."""
    for text in (PLAIN + "🙂 " + PLAIN, harmful):
        whole = Run(classifier, policy, stop).feed(text, cuts)
        first = Run(classifier, policy, stop).feed(text[:died_after], cuts)
        if first.over:
            continue
        logged = first.released
        second = Run(classifier, policy, stop, prior=logged).feed(text[len(logged) :], cuts)
        assert logged + second.finish() == whole.finish()
        assert (second.answer.blocked is None) == (whole.answer.blocked is None)


class TestSeeds:
    def test_the_same_run_has_the_same_seed_and_each_join_another(self) -> None:
        assert seed_of(request(1), 0) == seed_of(request(1), 0)
        assert seed_of(request(1), 0) != seed_of(request(1), 17)
        assert seed_of(request(1), 0) != seed_of(request(2), 0)

    def test_a_seed_that_the_user_gave_is_the_same_for_every_turn(self) -> None:
        given_ = {"seed": 42}
        assert seed_of(request(1, sampling=given_), 5) == seed_of(request(2, sampling=given_), 5)

    @given(st.integers(0, 2**63), st.integers(0, 10**6))
    def test_engines_take_them(self, seed: int, logged: int) -> None:
        assert 0 <= seed_of(request(1, sampling={"seed": seed}), logged) < 2**63
