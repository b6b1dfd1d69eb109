"""What clients are told of a turn: a function of its route alone."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from typing import Any, get_args

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import ResponseStreamEvent
from pydantic import BaseModel

from parley.errors import failure
from parley.ids import Keys, message_id, new_response_id, new_session
from parley.stores.stored import StoredTurn
from producers.edge.projection import Projection
from producers.edge.replayed import replay
from schemas.base import Item, Refusal, Text, Timings, Usage
from schemas.routes import Delta, Fence, Opened, Terminal

USER = new_session()
SESSION = new_session()
RESPONSE = new_response_id(Keys((b"k" * 32,)), USER, SESSION, 3, 10, 1_700_000_000_123)
ECHO = {"model": "auto", "metadata": {"a": "b"}, "temperature": 0.7, "output_item": message_id(RESPONSE, 2)}
RouteEvent = Opened | Fence | Delta | Terminal

REQUIRED_OF_A_RESPONSE = {
    *("id", "object", "created_at", "completed_at", "status", "incomplete_details", "model", "previous_response_id"),
    *("instructions", "output", "error", "tools", "tool_choice", "truncation", "parallel_tool_calls", "text", "top_p"),
    *("presence_penalty", "frequency_penalty", "top_logprobs", "temperature", "reasoning", "usage", "store"),
    *("max_output_tokens", "max_tool_calls", "background", "service_tier", "metadata", "safety_identifier"),
    "prompt_cache_key",
}
"""The specification's ResponseResource, version 2026-04-24."""
_SDK: dict[str, type[BaseModel]] = {
    get_args(event.model_fields["type"].annotation)[0]: event for event in get_args(get_args(ResponseStreamEvent)[0])
}
"""The SDK's model of each event."""

BEGIN = ["response.created", "response.in_progress"]
ITEM = ["response.output_item.added", "response.content_part.added"]
TEXT_DONE = ["response.output_text.done", "response.content_part.done"]
REFUSAL = [
    "response.content_part.added",
    "response.refusal.delta",
    "response.refusal.done",
    "response.content_part.done",
]
DELTA = "response.output_text.delta"
ITEM_DONE = "response.output_item.done"


def opened(**changes: Any) -> Opened:
    return Opened(**{"session": SESSION, "user": USER, "created_at": 1, "waiting": False, "echo": ECHO} | changes)


def fence(run: int = 1, writer: str = "w") -> Fence:
    return Fence(epoch=(1, 1, 1, run), writer=writer)


def delta(seq: int, text: str, writer: str = "w") -> Delta:
    return Delta(writer=writer, seq=seq, text=text, tokens=1)


def terminal(seq: int, kind: str = "completed", **more: Any) -> Terminal:
    usage = Usage(input_tokens=3, output_tokens=seq, generated_tokens=seq)
    base = {"writer": "w", "seq": seq, "kind": kind, "model": "m", "usage": usage, "ended_at": 1_700_000_009_000}
    return Terminal.model_validate(base | more)


def project(*events: RouteEvent) -> Projection:
    projection = Projection(RESPONSE)
    for event in events:
        projection.apply(event)
    check(projection)
    return projection


def check(projection: Projection) -> None:
    """Every event is valid for the SDK's types, numbered by its place, and shows all required fields."""
    for number, event in enumerate(projection.events):
        said = orjson.loads(event.data)
        assert said["sequence_number"] == number
        assert said["type"] == event.type
        if "response" in said:
            assert said["response"].keys() >= REQUIRED_OF_A_RESPONSE
            if said["response"]["error"] is not None:
                assert said["response"]["error"].keys() == {"code", "message", "parley:retryable"}
                said["response"]["error"] = None  # the SDK knows its own codes only
        _SDK[event.type].model_validate(said)


def names(projection: Projection) -> list[str]:
    return [event.type for event in projection.events]


def last(projection: Projection) -> Any:
    return orjson.loads(projection.events[-1].data)["response"]


def test_a_plain_answer() -> None:
    done = project(opened(), fence(), delta(0, "Hello"), delta(1, " there"), terminal(2))
    assert names(done) == [*BEGIN, *ITEM, DELTA, DELTA, *TEXT_DONE, ITEM_DONE, "response.completed"]
    response = last(done)
    assert response["output"] == [
        {
            "id": ECHO["output_item"],
            "type": "message",
            "status": "completed",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Hello there", "annotations": [], "logprobs": []}],
        }
    ]
    assert (response["status"], response["model"], response["created_at"]) == ("completed", "m", 1_700_000_000)
    assert response["completed_at"] == 1_700_000_009
    assert response["usage"]["total_tokens"] == 5
    assert response["metadata"] == {"a": "b"}
    assert "output_item" not in response


def test_a_waiting_turn_is_queued_until_its_first_fence() -> None:
    done = project(opened(waiting=True), fence(), delta(0, "x"), terminal(1))
    assert names(done)[:3] == ["response.created", "response.queued", "response.in_progress"]


def test_a_refused_prompt_is_a_completed_response_with_a_refusal() -> None:
    done = project(opened(), fence(), terminal(0, "refused", refusal="No."))
    assert names(done) == [*BEGIN, "response.output_item.added", *REFUSAL, ITEM_DONE, "response.completed"]
    assert last(done)["output"][0]["content"] == [{"type": "refusal", "refusal": "No."}]


def test_an_answer_blocked_half_way_closes_its_text_and_adds_a_refusal() -> None:
    blocked = terminal(1, "incomplete", reason="content_filter", refusal="No.")
    done = project(opened(), fence(), delta(0, "Well"), blocked)
    assert names(done) == [*BEGIN, *ITEM, DELTA, *TEXT_DONE, *REFUSAL, ITEM_DONE, "response.incomplete"]
    parts = [orjson.loads(e.data) for e in done.events if e.type.startswith("response.refusal")]
    assert {part["content_index"] for part in parts} == {1}
    assert last(done)["incomplete_details"] == {"reason": "content_filter"}
    assert last(done)["output"][0]["status"] == "incomplete"


def test_the_token_limit() -> None:
    done = project(opened(), fence(), delta(0, "x"), terminal(1, "incomplete", reason="max_output_tokens"))
    assert names(done)[-2:] == [ITEM_DONE, "response.incomplete"]
    assert last(done)["incomplete_details"] == {"reason": "max_output_tokens"}
    assert last(done)["usage"]["output_tokens"] == 1


def test_cancelled_half_way_and_before_any_text() -> None:
    half = project(opened(), fence(), delta(0, "x"), terminal(1, "cancelled"))
    assert names(half) == [*BEGIN, *ITEM, DELTA, *TEXT_DONE, ITEM_DONE, "response.incomplete"]
    assert (last(half)["status"], last(half)["output"][0]["status"]) == ("cancelled", "incomplete")
    nothing = project(opened(), fence(), terminal(0, "cancelled"))
    assert names(nothing) == [*BEGIN, "response.incomplete"]
    assert (last(nothing)["status"], last(nothing)["output"]) == ("cancelled", [])


def test_failed_keeps_what_there_was() -> None:
    done = project(opened(), fence(), delta(0, "x"), terminal(1, "failed", failure=failure("engine_error", "Broke.")))
    assert names(done)[-2:] == [ITEM_DONE, "response.failed"]
    assert last(done)["error"] == {"code": "engine_error", "message": "Broke.", "parley:retryable": True}
    assert last(done)["output"][0]["content"][0]["text"] == "x"


def test_nothing_is_said_before_opened_which_a_fence_may_precede() -> None:
    early = project(fence(), delta(0, "x"))
    assert names(early) == []
    late = project(fence(), delta(0, "x"), terminal(1), opened(waiting=True))
    assert late.events == project(opened(waiting=True), fence(), delta(0, "x"), terminal(1)).events


def test_announcing_a_prompt_changes_no_event_and_no_number() -> None:
    route = [opened(waiting=True), fence(), delta(0, "x"), terminal(1)]
    announced = Projection(RESPONSE)
    announced.announce(ECHO)
    assert names(announced) == ["response.created"]
    announced.apply(fence())
    assert names(announced) == ["response.created"]  # whether the turn waits is not known yet
    for event in route:
        announced.apply(event)
    assert announced.events == project(*route).events


def test_a_repeated_or_conflicting_key_has_no_events() -> None:
    assert project(opened(conflict=True)).events == []
    assert project(opened(duplicate_of=RESPONSE)).events == []


def test_void_events_leave_no_trace() -> None:
    clean = project(opened(), fence(), fence(2, "x"), delta(0, "a", "x"), terminal(1, writer="x"))
    noisy = project(
        opened(),
        fence(),
        fence(2, "x"),
        fence(1, "late"),
        delta(0, "zombie"),
        delta(0, "a", "x"),
        delta(0, "a", "x"),
        opened(waiting=True),
        terminal(0),
        terminal(1, writer="x"),
        fence(9, "after"),
        delta(1, "after", "x"),
    )
    assert noisy.events == clean.events


@pytest.mark.parametrize("breaking", ["\u2028", "\u2029", "\x85", "\n", "\r"])
def test_every_event_is_one_line(breaking: str) -> None:
    done = project(opened(), fence(), delta(0, f"a{breaking}b"), terminal(1))
    for event in done.events:
        assert len(event.data.decode().splitlines()) == 1
    assert last(done)["output"][0]["content"][0]["text"] == f"a{breaking}b"


def test_a_snapshot_of_a_running_answer_shows_its_text() -> None:
    running = project(opened(), fence(), delta(0, "so far")).snapshot()
    assert running is not None
    assert (running["status"], running["output"][0]["status"]) == ("in_progress", "in_progress")
    assert running["output"][0]["content"][0]["text"] == "so far"


ENDINGS = st.sampled_from(["completed", "refused", "max_output_tokens", "content_filter", "cancelled", "failed"])


def ending(seq: int, how: str) -> Terminal:
    match how:
        case "refused":
            return terminal(seq, "refused", refusal="I can't.")
        case "max_output_tokens":
            return terminal(seq, "incomplete", reason=how)
        case "content_filter":
            return terminal(seq, "incomplete", reason=how, refusal="I can't.")
        case "failed":
            return terminal(seq, "failed", failure=failure("engine_error", "Broke."))
        case _:
            return terminal(seq, how)


def kept(end: Terminal, pieces: list[str], waited: bool) -> StoredTurn:
    """What the store has of a turn: its items, and the lengths of its deltas."""
    parts: list[Text | Refusal] = [Text(text="".join(pieces))] if pieces else []
    if end.refusal is not None:
        parts.append(Refusal(refusal=end.refusal))
    item = Item(id=message_id(RESPONSE, 2), role="assistant", parts=tuple(parts))
    return StoredTurn(
        session=SESSION,
        turn=1,
        response=RESPONSE,
        user=USER,
        tier="free",
        parent=None,
        kept=True,
        status=end.kind,
        reason=end.reason,
        failure=end.failure,
        instructions=None,
        items=(),
        output=(item,) if parts else (),
        delta_lengths=tuple(map(len, pieces)),
        waited=waited,
        usage=end.usage,
        timings=Timings(),
        model=end.model,
        pool="synthetic",
        dispatch=(1, 1),
        epoch=(1, 1, 1, 1),
        key_hash=None,
        body_hash=None,
        echo=ECHO,
        accepted_at=1_700_000_000_123,
        ended_at=end.ended_at,
    )


@given(
    pieces=st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), max_size=12),
    how=ENDINGS,
    waited=st.booleans(),
    shuffle=st.randoms(use_true_random=False),
)
def test_a_stored_turn_replays_with_the_same_events_whatever_happened_on_its_route(
    pieces: list[str], how: str, waited: bool, shuffle: random.Random
) -> None:
    route: list[RouteEvent] = [fence()]
    writer, run = "w", 1
    for seq, piece in enumerate(pieces):
        if shuffle.random() < 0.3:  # a takeover, and the stopped writer's late words
            run += 1
            route += [fence(run, f"w{run}"), delta(seq, "late", writer), ending(seq, how)]
            writer = f"w{run}"
        route.append(delta(seq, piece, writer))
    end = ending(len(pieces), how).model_copy(update={"writer": writer})
    route.append(end)
    route.insert(shuffle.randint(0, len(route)), opened(waiting=waited))
    live = Projection(RESPONSE)
    said: list[list[bytes]] = []
    for event in route:
        live.apply(event)
        said.append([public.data for public in live.events])
    assert all(later[: len(earlier)] == earlier for earlier, later in itertools.pairwise(said))
    assert live.ended
    check(live)
    assert replay(kept(end, pieces, waited), SESSION).events == live.events


def test_turns_that_no_longer_fit_are_reported_live_and_from_the_store_alike() -> None:
    """Field case F29. Responses whose model saw everything say nothing about it."""
    end = terminal(1, dropped_turns=3)
    live = project(opened(), fence(), delta(0, "Hi"), end)
    assert last(live)["parley:dropped_turns"] == 3
    stored = replace(kept(end, ["Hi"], waited=False), dropped_turns=3)
    assert replay(stored, SESSION).events == live.events
    assert "parley:dropped_turns" not in last(project(opened(), fence(), terminal(0)))


def test_a_turn_that_never_ran_replays_as_failed() -> None:
    turn = kept(terminal(0, "failed"), [], waited=False)
    done = replay(replace(turn, status="expired", failure=None), SESSION)
    check(done)
    assert names(done)[-1] == "response.failed"
    assert last(done)["error"]["code"] == "expired"
