"""From a request to a prompt: what is refused, where it belongs, what is kept of it."""

from __future__ import annotations

from typing import Any

import pytest

from parley.errors import ParleyError
from parley.ids import Keys, conversation_id, message_id, new_response_id, new_session, response_address
from parley.settings import Settings
from producers.edge.acceptance import Author, accept, check, idempotency, input_items, place
from producers.edge.problems import parse, parse_json
from producers.edge.resource import response_object
from schemas.api import CreateConversation, CreateResponse
from schemas.base import Route
from schemas.prompts import PromptAccepted

TOPICS = Settings().topics
KEYS = Keys((b"new" * 11, b"old" * 11))
ADA, BOB = Author(new_session(), "paid"), Author(new_session(), "free")
ROUTE = Route(topic="chat.tokens", partition=5, start=77)


def prompt_of(author: Author = ADA, **request: Any) -> PromptAccepted:
    asked = parse(CreateResponse, {"model": "synthetic", "input": "x"} | request)
    return accept(
        asked,
        author,
        place(asked, author, KEYS, 0),
        check(asked, author.tier, TOPICS),
        keys=KEYS,
        route=ROUTE,
        lane=5,
        now_ms=1_700_000_000_000,
        max_record=2_097_152,
    )


def refused(**request: Any) -> ParleyError:
    with pytest.raises(ParleyError) as error:
        prompt_of(**request)
    return error.value


def test_a_prompt_holds_the_request_and_its_id_the_route() -> None:
    prompt = prompt_of(instructions="Be brief.", temperature=0, max_output_tokens=16, stop="a", presence_penalty=-1)
    address = response_address(prompt.response)
    assert (address.session, address.lane, address.start) == (prompt.session, 5, 77)
    assert address.accepted_ms == prompt.accepted_at
    assert prompt.items[0].id == message_id(prompt.response, 0)
    assert (prompt.sampling.temperature, prompt.sampling.max_output_tokens, prompt.sampling.stop) == (0, 16, ("a",))
    assert prompt.instructions == "Be brief."
    assert (prompt.new_session, prompt.listed, prompt.store, prompt.parent) == (True, False, True, None)


def test_the_echo_gives_the_response_its_request_back() -> None:
    prompt = prompt_of(temperature=0.3, metadata={"k": "v"}, user="u", truncation="disabled", store=False)
    shown = response_object(prompt.response, prompt.echo)
    assert (shown["model"], shown["temperature"], shown["metadata"]) == ("synthetic", 0.3, {"k": "v"})
    assert (shown["user"], shown["truncation"], shown["store"]) == ("u", "disabled", False)
    assert "stop" not in prompt.echo
    assert prompt_of(model="auto").echo["temperature"] == TOPICS.pools["smol"].sampling.temperature


def test_a_prompt_without_a_name_starts_an_unlisted_session_and_a_named_one_goes_on() -> None:
    session = new_session()
    named = prompt_of(conversation=conversation_id(KEYS, ADA.user, session))
    assert (named.session, named.listed, named.new_session) == (session, True, False)
    also = prompt_of(conversation={"id": conversation_id(KEYS, ADA.user, session)})
    assert also.echo["conversation"] == {"id": conversation_id(KEYS, ADA.user, session)}
    assert not prompt_of(conversation=conversation_id(KEYS, ADA.user, session), store=False).listed
    parent = new_response_id(KEYS, ADA.user, session, 3, 9, 1)
    after = prompt_of(previous_response_id=parent)
    assert (after.session, after.parent, after.listed) == (session, parent, False)


def test_foreign_forged_and_mistyped_ids_are_the_same_error_and_old_keys_still_hold() -> None:
    session = new_session()
    rotated = Keys((b"old" * 11,))
    assert prompt_of(conversation=conversation_id(rotated, ADA.user, session)).session == session
    errors = [
        refused(conversation=conversation_id(KEYS, BOB.user, session)),
        refused(conversation=conversation_id(Keys((b"x" * 32,)), ADA.user, session)),
        refused(conversation="conv_é"),
        refused(conversation=new_response_id(KEYS, ADA.user, session, 3, 9, 1)),
    ]
    assert {(error.kind.code, error.message, error.param) for error in errors} == {
        ("not_found", "There is no such conversation.", "conversation")
    }


@pytest.mark.parametrize(
    ("request_", "code", "param"),
    [
        ({"model": "nope"}, "model_not_found", "model"),
        ({"model": None}, "model_not_found", "model"),
        ({"max_output_tokens": 15}, "invalid_request", "max_output_tokens"),
        ({"temperature": 2.1}, "invalid_request", "temperature"),
        ({"temperature": "0.5"}, "invalid_request", "temperature"),
        ({"stop": ["a"] * 5}, "invalid_request", "stop"),
        ({"seed": -1}, "invalid_request", "seed"),
        ({"metadata": {str(n): "v" for n in range(17)}}, "invalid_request", "metadata"),
        ({"conversation": "c", "previous_response_id": "r"}, "invalid_request", None),
        ({"input": None}, "invalid_request", "input"),
        ({"input": []}, "invalid_request", "input"),
        ({"input": [{"role": "user", "content": ""}]}, "invalid_request", "input"),
        ({"input": [{"role": "assistant", "content": "x"}]}, "invalid_request", "input"),
        ({"input": [{"role": "bot", "content": "x"}]}, "invalid_request", "input[0].role"),
        ({"input": [{"content": "x"}]}, "invalid_request", "input[0]"),
        ({"input": [{"type": "reasoning"}]}, "unsupported", "input[0]"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "unsupported", "input[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "unsupported", "input[0].content[0]"),
        ({"tools": [{"type": "function", "name": "f"}]}, "unsupported", "tools"),
        ({"tool_choice": "required"}, "unsupported", "tool_choice"),
        ({"text": {"format": {"type": "json_object"}}}, "unsupported", "text.format"),
        ({"reasoning": {"effort": "high"}}, "unsupported", "reasoning"),
        ({"include": ["message.output_text.logprobs"]}, "unsupported", "include"),
        ({"top_logprobs": 2}, "unsupported", "top_logprobs"),
        ({"nonsense": 1}, "invalid_request", "nonsense"),
        ({"input": "x" * 65_537}, "context_length_exceeded", "input"),
        ({"instructions": "x" * 65_537}, "context_length_exceeded", "input"),
    ],
)
def test_what_is_refused_is_named(request_: dict[str, Any], code: str, param: str | None) -> None:
    error = refused(**request_)
    assert (error.kind.code, error.param) == (code, param)
    assert len(error.message) > 10


def test_unknown_models_are_answered_with_those_there_are() -> None:
    assert "smollm2-135m-instruct" in refused(model="gpt-9").message


@pytest.mark.parametrize(
    "harmless",
    [
        {"tools": [], "tool_choice": "auto"},
        {"text": {"format": {"type": "text"}}},
        {"reasoning": {"effort": None}},
        {"include": ["reasoning.encrypted_content"]},
        {"stream_options": {"include_obfuscation": False}},
        {"safety_identifier": "s", "prompt_cache_key": "p", "service_tier": "flex", "parallel_tool_calls": False},
    ],
)
def test_what_changes_nothing_is_accepted(harmless: dict[str, Any]) -> None:
    assert prompt_of(**harmless).items[0].text == "x"


def test_messages_of_all_roles_and_parts_are_taken_and_their_old_ids_dropped() -> None:
    asked = parse(
        CreateResponse,
        {
            "input": [
                {"role": "system", "content": "s"},
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
                {
                    "id": "msg_old",
                    "type": "message",
                    "status": "completed",
                    "role": "assistant",
                    "content": [{"type": "output_text", "text": "b", "annotations": []}],
                },
                {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
                {"role": "user", "content": "c"},
            ]
        },
    )
    response = new_response_id(KEYS, ADA.user, new_session(), 0, 0, 0)
    items = input_items(asked, response)
    assert [(item.role, item.text) for item in items][:3] == [("system", "s"), ("user", "a"), ("assistant", "b")]
    assert [item.id for item in items] == [message_id(response, n) for n in range(5)]


def test_a_key_is_hashed_with_its_user_and_a_body_whatever_its_order() -> None:
    body = {"model": "m", "input": "x"}
    mine = idempotency(KEYS, ADA, "k", body)
    assert mine == idempotency(KEYS, ADA, "k", {"input": "x", "model": "m"})
    assert mine.key_hash != idempotency(KEYS, BOB, "k", body).key_hash
    assert mine.key_hash != idempotency(KEYS, ADA, "k2", body).key_hash
    assert mine.body_hash != idempotency(KEYS, ADA, "k", body | {"input": "y"}).body_hash


def test_a_keyed_body_that_is_nested_too_deeply_is_refused() -> None:
    """What an item has beside its text is ignored, however deep it is; a key's hash is made of all of it."""
    nested: list[Any] = []
    for _ in range(300):
        nested = [nested]
    body = {"model": "synthetic", "input": [{"role": "user", "content": "Hi", "more": nested}]}
    parse(CreateResponse, body)
    with pytest.raises(ParleyError, match="nested too deeply") as error:
        idempotency(KEYS, ADA, "k", body)
    assert error.value.kind.code == "invalid_request"


def test_a_keyed_request_without_a_session_gets_the_same_one_each_time() -> None:
    asked = parse(CreateResponse, {"model": "synthetic", "input": "x"})
    keyed = idempotency(KEYS, ADA, "k", {})
    assert place(asked, ADA, KEYS, 0, keyed) == place(asked, ADA, KEYS, 0, keyed)
    assert place(asked, ADA, KEYS, 0).session != place(asked, ADA, KEYS, 0).session


def test_a_prompt_too_large_for_the_log_is_refused_before_it_is_sent() -> None:
    asked = parse(CreateResponse, {"model": "synthetic", "input": "é" * 60_000})
    with pytest.raises(ParleyError) as error:
        accept(
            asked,
            ADA,
            place(asked, ADA, KEYS, 0),
            check(asked, "paid", TOPICS),
            keys=KEYS,
            route=ROUTE,
            lane=5,
            now_ms=1,
            max_record=150_000,
        )
    assert error.value.kind.code == "request_too_large"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'{"a": NaN}', b'{"a": "\\ud800"}', b"\xff"])
def test_what_is_not_a_json_object_is_invalid_json(body: bytes) -> None:
    with pytest.raises(ParleyError) as error:
        parse_json(body)
    assert error.value.kind.code == "invalid_json"


def test_errors_never_repeat_what_somebody_wrote() -> None:
    with pytest.raises(ParleyError) as error:
        parse(CreateConversation, {"title": "secret" * 50})
    assert "secret" not in error.value.message
