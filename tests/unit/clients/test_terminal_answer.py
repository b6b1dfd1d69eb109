"""What a person sees of an answer, from its public events."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clients.terminal.conversation import Answer, Gap, Problem, State, turns

Event = dict[str, Any]


def numbered(*events: Event) -> list[Event]:
    return [{"sequence_number": number, **event} for number, event in enumerate(events)]


def response(status: str, **more: Any) -> Event:
    return {"id": "resp_1", "status": status, "output": [], "error": None, "incomplete_details": None, **more}


def lifecycle(type_: str, status: str = "in_progress", **more: Any) -> Event:
    return {"type": f"response.{type_}", "response": response(status, **more)}


def delta(text: str) -> Event:
    return {"type": "response.output_text.delta", "delta": text}


def refusal(text: str) -> Event:
    return {"type": "response.refusal.delta", "delta": text}


BEGIN = (lifecycle("created"), lifecycle("in_progress"), {"type": "response.output_item.added"})
PLAIN = numbered(
    *BEGIN, delta("Hel"), delta("lo"), {"type": "response.output_text.done"}, lifecycle("completed", "completed")
)


def play(answer: Answer, events: list[Event]) -> str:
    return "".join(answer.apply(event) for event in events)


def test_an_answer_is_sent_runs_and_is_complete() -> None:
    answer = Answer({"input": "Hi"})
    assert answer.state is State.SENDING
    answer.apply(PLAIN[0])
    assert answer.id == "resp_1"
    answer.apply(PLAIN[1])
    assert answer.state is State.RUNNING
    assert play(answer, PLAIN[2:]) == answer.shown == "Hello"
    assert answer.state is State.COMPLETED
    assert answer.state.ended
    assert answer.remark == ""


def test_turns_that_no_longer_fit_are_told() -> None:
    """Field case F29: the count of dropped turns is reported."""
    answer = Answer()
    play(answer, numbered(*BEGIN, delta("Hi"), lifecycle("completed", "completed", **{"parley:dropped_turns": 3})))
    assert answer.state is State.COMPLETED
    assert "turns left out: 3" in answer.remark


def test_a_turn_that_has_to_wait_says_so() -> None:
    answer = Answer()
    play(answer, numbered(lifecycle("created"), lifecycle("queued", "queued")))
    assert answer.state is State.WAITING
    assert not answer.state.ended


def test_a_refused_prompt_shows_the_refusal() -> None:
    answer = Answer()
    events = numbered(*BEGIN, refusal("I can't help with that."), lifecycle("completed", "completed"))
    assert play(answer, events) == "I can't help with that."
    assert answer.state is State.REFUSED


def test_an_answer_blocked_half_way_keeps_its_text_and_adds_the_refusal() -> None:
    answer = Answer()
    end = lifecycle("incomplete", "incomplete", incomplete_details={"reason": "content_filter"})
    shown = play(answer, numbered(*BEGIN, delta("First, "), refusal("I can't go on."), end))
    assert shown == answer.shown == "First, \n\nI can't go on."
    assert answer.state is State.INCOMPLETE
    assert "content filter" in answer.remark


def test_an_answer_at_its_limit_says_that_it_was_cut_off() -> None:
    answer = Answer()
    end = lifecycle("incomplete", "incomplete", incomplete_details={"reason": "max_output_tokens"})
    assert play(answer, numbered(*BEGIN, delta("Once"), end)) == "Once"
    assert "length limit" in answer.remark


def test_a_reason_that_nobody_knows_is_still_an_end() -> None:
    answer = Answer()
    play(answer, numbered(lifecycle("incomplete", "incomplete", incomplete_details={"reason": "new"})))
    assert answer.state is State.INCOMPLETE
    assert answer.remark


def test_a_stopped_answer_keeps_what_was_there() -> None:
    answer = Answer()
    assert play(answer, numbered(*BEGIN, delta("One"), lifecycle("incomplete", "cancelled"))) == "One"
    assert answer.state is State.CANCELLED
    assert answer.remark == "Stopped."


@pytest.mark.parametrize("retryable", [True, False])
def test_a_failed_answer_says_why_and_whether_to_try_again(retryable: bool) -> None:
    answer = Answer()
    error = {"code": "engine_error", "message": "It broke.", "parley:retryable": retryable}
    assert play(answer, numbered(*BEGIN, delta("Half"), lifecycle("failed", "failed", error=error))) == "Half"
    assert answer.problem == Problem("engine_error", "It broke.", retryable)
    assert answer.remark.startswith("It broke.")
    assert ("/retry" in answer.remark) is retryable


def test_a_request_that_is_refused_has_failed() -> None:
    answer = Answer({"input": "Hi"})
    answer.fail(Problem("context_length_exceeded", "Too long.", retryable=False))
    assert answer.state is State.FAILED
    assert answer.remark == "Too long."


def test_a_gap_changes_nothing() -> None:
    answer = Answer()
    play(answer, PLAIN[:4])
    with pytest.raises(Gap):
        answer.apply(PLAIN[5])
    assert (answer.last, answer.text) == (3, "Hel")
    assert play(answer, PLAIN[4:]) == "lo"


@given(st.lists(st.tuples(st.integers(0, len(PLAIN)), st.integers(0, len(PLAIN))), max_size=20))
def test_however_often_it_is_interrupted_the_answer_is_shown_once_and_in_order(pieces: list[tuple[int, int]]) -> None:
    """Each piece is what one socket delivers: events from anywhere on, repeated or with a gap before them."""
    answer, shown = Answer(), ""
    for start, end in [*pieces, (0, len(PLAIN))]:
        try:
            for event in PLAIN[start:end]:
                shown += answer.apply(event)
                assert "Hello".startswith(shown)
        except Gap:
            continue
    assert shown == "Hello"
    assert answer.state is State.COMPLETED


def item(role: str, response_id: str, text: str, status: str = "completed") -> Event:
    content = [{"type": "output_text", "text": text}] if text else []
    return {"role": role, "response_id": response_id, "status": status, "content": content}


def test_items_are_turns() -> None:
    first, second = turns([item("user", "a", "Hi"), item("assistant", "a", "Hello"), item("user", "b", "Go on")])
    assert (first.said, first.running, first.end_is_unknown) == (["Hi"], False, False)
    assert (second.said, second.output, second.end_is_unknown) == (["Go on"], None, True)


def test_an_answer_on_its_way_is_a_turn_to_be_followed() -> None:
    (turn,) = turns([item("user", "a", "Hi"), item("assistant", "a", "", "in_progress")])
    assert turn.running


def test_examples_that_came_with_a_prompt_are_said_not_answered() -> None:
    given_items = [item("user", "a", "1?"), item("assistant", "a", "one"), item("user", "a", "2?")]
    (turn,) = turns([*given_items, item("assistant", "a", "two")])
    assert turn.said == ["1?", "one", "2?"]
    assert turn.output == item("assistant", "a", "two")


def test_a_kept_response_is_shown_as_it_ended() -> None:
    answer = Answer(id="resp_1")
    content = [{"type": "output_text", "text": "Half"}]
    answer.settle(response("cancelled", output=[{"content": content}]))
    assert (answer.shown, answer.state) == ("Half", State.CANCELLED)
