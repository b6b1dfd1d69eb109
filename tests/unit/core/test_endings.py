"""TurnEnded as made from what the route says."""

from __future__ import annotations

import pytest
from core_events import delta, failed, fence, opened, request, response, said, started, terminal

from parley.endings import expired, output_id, output_of, turn_ended
from parley.ids import message_id
from parley.transcript import Transcript
from schemas.base import NO_EPOCH, Refusal, Text, Usage
from schemas.routes import Terminal, TerminalKind

ITEM = message_id(response(1), 1)


def route(*pieces: str, waiting: bool = False, **end: object) -> Transcript:
    """A route that ended after these deltas."""
    transcript = Transcript()
    events = [opened(waiting=waiting), fence(), *(delta(at, text) for at, text in enumerate(pieces))]
    for event in (*events, terminal(len(pieces), **end)):
        assert transcript.apply(event) is None
    return transcript


class TestOutput:
    @pytest.mark.parametrize(
        ("kind", "status"),
        [
            ("completed", "completed"),
            ("incomplete", "incomplete"),
            ("cancelled", "incomplete"),
            ("failed", "incomplete"),
        ],
    )
    def test_text_is_one_message(self, kind: TerminalKind, status: str) -> None:
        (item,) = output_of(ITEM, "Hello", terminal(1, kind=kind))
        assert (item.id, item.role, item.status, item.parts) == (ITEM, "assistant", status, (Text(text="Hello"),))

    @pytest.mark.parametrize("kind", ["completed", "incomplete", "cancelled", "failed"])
    def test_no_text_is_no_message(self, kind: TerminalKind) -> None:
        assert output_of(ITEM, "", terminal(0, kind=kind)) == ()

    def test_a_refused_prompt_has_only_the_refusal(self) -> None:
        (item,) = output_of(ITEM, "", terminal(0, kind="refused", refusal="No."))
        assert (item.status, item.parts) == ("completed", (Refusal(refusal="No."),))
        assert item.text == ""

    def test_an_answer_that_the_guard_has_cut_has_both(self) -> None:
        end: Terminal = terminal(1, kind="incomplete", reason="content_filter", refusal="No more.")
        (item,) = output_of(ITEM, "So far", end)
        assert item.parts == (Text(text="So far"), Refusal(refusal="No more."))


class TestTurnEnded:
    def test_it_repeats_what_the_route_says(self) -> None:
        transcript = route("Hel", "lo 🙂", waiting=True, kind="incomplete", reason="max_output_tokens")
        end = turn_ended(request(), transcript, (1, 1))
        assert (end.status, end.reason, end.waited, end.ended_at) == ("incomplete", "max_output_tokens", True, 9)
        assert (end.output[0].text, end.delta_lengths) == ("Hello 🙂", (3, 4))

    def test_lengths_of_deltas_add_up_to_the_text(self) -> None:
        transcript = route("a", "é", "", "🙂🙂", "z" * 100)
        end = turn_ended(request(), transcript, (1, 1))
        assert sum(end.delta_lengths) == len(end.output[0].text)
        assert len(end.delta_lengths) == 5, "a stored answer replays with the same number of events"

    def test_usage_and_failure_come_from_the_terminal(self) -> None:
        usage, why = Usage(input_tokens=3, output_tokens=2, generated_tokens=5), failed(retryable=True)
        end = turn_ended(request(), route("a", kind="failed", failure=why, usage=usage), (1, 1))
        assert (end.usage, end.failure) == (usage, why)

    def test_its_epoch_is_the_fences_and_its_dispatch_the_writers(self) -> None:
        """A later dispatch that finds the terminal repeats it under its own number."""
        end = turn_ended(started(1, dispatch=(7, 1)), route("a"), (7, 1))
        assert (end.epoch, end.dispatch) == ((1, 1, 1, 1), (7, 1))

    def test_it_says_where_the_answer_was_continued(self) -> None:
        transcript = Transcript()
        for event in (fence(), delta(0, "Hel"), fence((1, 1, 2, 1), "w2"), delta(1, "lo", "w2"), terminal(2, "w2")):
            transcript.apply(event)
        end = turn_ended(request(), transcript, (1, 1))
        assert (end.continued_at, end.epoch) == ((3,), (1, 1, 2, 1))

    def test_orchestrator_and_worker_say_the_same_of_the_same_turn(self) -> None:
        mine = turn_ended(started(1), route("a"), (1, 1))
        theirs = turn_ended(request(), route("a"), (1, 1))
        assert mine == theirs

    def test_the_answers_message_follows_the_inputs(self) -> None:
        items = (said("a", of=response(1)), said("b", of=response(1), position=1))
        assert output_id(started(1, items=items)) == message_id(response(1), 2)


def test_an_expired_turn_has_no_run_and_says_why() -> None:
    why = failed(retryable=True)
    end = expired(started(1, pool=None, why="expired", failure=why, dispatch=(4, 1)), (4, 1), at=20)
    assert (end.status, end.epoch, end.dispatch, end.output, end.failure) == ("expired", NO_EPOCH, (4, 1), (), why)
