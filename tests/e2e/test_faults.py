"""Something dies in the middle of an answer: the same sentence goes on, and the turn ends once."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from typing import Any

import httpx

from tests.e2e.chat import Heard, chatting, kept
from tests.e2e.conftest import System

WORDS = 120


def slow_answer(**more: Any) -> dict[str, Any]:
    """A request for 120 words at 25 a second: time enough for something to happen."""
    script = json.dumps({"first_ms": 50, "period_ms": 40, "words": 500})
    return {"model": "synthetic", "input": f"::script {script}", "max_output_tokens": WORDS, **more}


async def read(events: AsyncIterator[dict[str, Any]], after: int, then: Any) -> Heard:
    """Read an answer to its end; do something after so many deltas."""
    heard, deltas = Heard(), 0
    async for event in events:
        heard.events.append(event)
        deltas += event["type"] == "response.output_text.delta"
        if deltas == after:
            deltas += 1
            then()
    return heard


def check_whole(heard: Heard) -> None:
    assert heard.text.split() == [f"w{number:03}" for number in range(1, WORDS + 1)]
    assert [event["sequence_number"] for event in heard.events] == list(range(len(heard.events)))
    assert heard.last["type"] == "response.incomplete"
    assert heard.response["incomplete_details"]["reason"] == "max_output_tokens"


async def test_a_killed_worker_goes_on_in_the_same_sentence(system: System, client: httpx.AsyncClient) -> None:
    pid = system.pid_of("worker", "--pool", "synthetic")
    async with chatting(system) as chat:
        await chat.send(type="response.create", **slow_answer())
        heard = await read(chat.events(), 30, lambda: os.kill(pid, signal.SIGKILL))
    check_whole(heard)
    again = (await client.get(f"/v1/responses/{heard.response['id']}")).json()
    assert again["output"][0]["content"][0]["text"] == heard.text


async def test_a_killed_orchestrator_is_not_noticed_and_the_next_turn_remembers(
    system: System, client: httpx.AsyncClient
) -> None:
    conversation = (await client.post("/v1/conversations", json={})).json()["id"]
    pid = system.pid_of("orchestrator")
    async with chatting(system) as chat:
        await chat.send(type="response.create", **slow_answer(conversation=conversation))
        heard = await read(chat.events(), 30, lambda: os.kill(pid, signal.SIGKILL))
        check_whole(heard)
        after = await chat.say("and now?", model="synthetic", conversation=conversation, max_output_tokens=16)
    assert after.last["type"] == "response.incomplete"
    items = await kept(client, conversation, 4)
    assert [item["role"] for item in items] == ["user", "assistant"] * 2


async def test_moderation_comes_back_before_a_token_leaves(system: System) -> None:
    os.kill(system.pid_of("moderation"), signal.SIGKILL)
    async with chatting(system) as chat:
        heard = await chat.say("hello", model="synthetic", max_output_tokens=16)
    assert heard.last["type"] == "response.incomplete"
    assert len(heard.text.split()) == 16


async def test_a_cancel_keeps_what_was_shown_and_frees_the_conversation(
    system: System, client: httpx.AsyncClient
) -> None:
    conversation = (await client.post("/v1/conversations", json={})).json()["id"]
    async with chatting(system) as chat:
        await chat.send(type="response.create", **slow_answer(conversation=conversation))
        heard, cancelled = Heard(), False
        async for event in chat.events():
            heard.events.append(event)
            if heard.types.count("response.output_text.delta") == 10 and not cancelled:
                cancelled = True
                answer = await client.post(f"/v1/responses/{heard.events[0]['response']['id']}/cancel")
                assert answer.status_code == 200
        assert heard.response["status"] == "cancelled"
        shown = heard.text.split()
        assert shown == [f"w{number:03}" for number in range(1, len(shown) + 1)]
        assert len(shown) < WORDS
        after = await chat.say("go on", model="synthetic", conversation=conversation, max_output_tokens=16)
    assert after.last["type"] == "response.incomplete"


async def test_turns_of_a_session_wait_for_each_other(system: System, client: httpx.AsyncClient) -> None:
    conversation = (await client.post("/v1/conversations", json={})).json()["id"]
    async with chatting(system) as one, chatting(system) as two:
        await one.send(type="response.create", **slow_answer(conversation=conversation))
        created = await anext(one.events())
        assert created["type"] == "response.created"
        second = asyncio.create_task(
            two.say("me too", model="synthetic", conversation=conversation, max_output_tokens=16)
        )
        first = Heard([created])
        async for event in one.events():
            first.events.append(event)
        assert not second.done()
        check_whole(first)
        waited = await second
    assert waited.types[:3] == ["response.created", "response.queued", "response.in_progress"]
    assert len(waited.text.split()) == 16
