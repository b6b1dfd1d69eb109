"""One conversation on several devices and two edges, on the whole system; the synthetic engine says what it is told.

Field cases of people who had two texts, two messages, or none.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import websockets

from infra.local.beside import Beside
from tests.e2e.chat import TERMINALS, Chat, Heard, chatting, kept, texts
from tests.e2e.conftest import System


@pytest.fixture
async def elsewhere(system: System, second: Beside) -> AsyncIterator[httpx.AsyncClient]:
    """HTTP to the second edge, as the demo user."""
    async with httpx.AsyncClient(base_url=second.base_url, headers=system.headers, timeout=60) as made:
        yield made


@pytest.fixture
async def conversation(client: httpx.AsyncClient) -> str:
    return str((await client.post("/v1/conversations", json={})).json()["id"])


def scripted(text: str, **script: Any) -> dict[str, Any]:
    """A request that tells the synthetic engine what to do."""
    return {"model": "synthetic", "input": f"{text}\n::script {json.dumps(script)}"}


def words(count: int) -> list[str]:
    return [f"w{number:03d}" for number in range(1, count + 1)]


async def stopped_after(chat: Chat, client: httpx.AsyncClient, deltas: int) -> Heard:
    """The turn under way, stopped from another device after so many pieces of text."""
    heard = Heard()
    async for event in chat.events():
        heard.events.append(event)
        if event["type"] == "response.output_text.delta" and heard.types.count(event["type"]) == deltas:
            await client.post(f"/v1/responses/{heard.events[0]['response']['id']}/cancel")
    return heard


async def test_f05_a_request_that_is_sent_again_after_a_cut_runs_once_and_everybody_gets_its_stream(
    system: System, second: Beside, client: httpx.AsyncClient, conversation: str
) -> None:
    """Field case F05: cut before the reply, then the same again twice at once, over two edges and both transports."""
    key = secrets.token_hex(8)
    body = scripted("convert this query", words=20, first_ms=300, period_ms=20) | {"conversation": conversation}
    async with chatting(system) as cut:
        await cut.send(type="response.create", idempotency_key=key, **body)
        cut.socket.transport.abort()

    async def over_http() -> list[dict[str, Any]]:
        answer = await client.post("/v1/responses", json=body | {"stream": True}, headers={"idempotency-key": key})
        return [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]

    async def over_websocket() -> list[dict[str, Any]]:
        async with websockets.connect(second.ws_url, additional_headers=system.headers) as socket:
            chat = Chat(socket)
            await chat.send(type="response.create", idempotency_key=key, **body)
            return [event async for event in chat.events()]

    one, other = await asyncio.gather(over_http(), over_websocket())
    assert one == other
    assert one[-1]["response"]["output"][0]["content"][0]["text"].split() == words(20)
    again = await client.post("/v1/responses", json=body | {"input": "else"}, headers={"idempotency-key": key})
    assert (again.status_code, again.json()["error"]["code"]) == (422, "idempotency_key_reused")
    for _ in range(2):  # the same words with different keys are two messages
        ok = {"model": "synthetic", "input": "ok", "conversation": conversation, "max_output_tokens": 16}
        await client.post("/v1/responses", json=ok, headers={"idempotency-key": secrets.token_hex(8)})
    items = await kept(client, conversation, 6)
    assert [item["role"] for item in items] == ["user", "assistant"] * 3
    assert [texts(item)[0] for item in items[2::2]] == ["ok", "ok"]


async def test_f08_what_was_shown_before_a_stop_is_kept_and_the_next_turn_has_it(
    system: System, client: httpx.AsyncClient, elsewhere: httpx.AsyncClient, conversation: str
) -> None:
    """Field case F08: stop in mid-answer, and before any token; then go on. What the model is asked is seen in its
    token counts: the partial answer is part of the next prompt, an empty one is not."""
    async with chatting(system) as chat:
        slow = scripted("count", words=500, first_ms=50, period_ms=50)
        await chat.send(type="response.create", conversation=conversation, **slow)
        stopped = await stopped_after(chat, elsewhere, 3)
        assert stopped.response["status"] == "cancelled"
        shown = stopped.text
        assert words(500)[: len(shown.split())] == shown.split()
        items = await kept(client, conversation, 2)
        assert (texts(items[1]), items[1]["status"]) == ([shown], "incomplete")
        after = await chat.say("go on", model="synthetic", conversation=conversation, max_output_tokens=16)
        assert after.last["type"] == "response.incomplete"
        waiting = scripted("nothing yet", words=5, first_ms=8_000)
        await chat.send(type="response.create", conversation=conversation, **waiting)
        created = await anext(chat.events())
        await elsewhere.post(f"/v1/responses/{created['response']['id']}/cancel")
        nothing = Heard([event async for event in chat.events()])
        assert (nothing.response["status"], nothing.response["output"]) == ("cancelled", [])
        last = await chat.say("hello", model="synthetic", conversation=conversation, max_output_tokens=16)
        assert last.last["type"] == "response.incomplete"
    items = await kept(client, conversation, 7)
    assert [item["role"] for item in items] == ["user", "assistant"] * 2 + ["user"] + ["user", "assistant"]
    assert all(item["content"] for item in items)
    grown = after.response["usage"]["input_tokens"] - stopped.response["usage"]["input_tokens"]
    assert grown >= len(shown.split())


async def test_f21_an_answer_that_breaks_off_is_never_a_whole_one(
    system: System, client: httpx.AsyncClient, conversation: str
) -> None:
    """Field case F21, the client's side: the engine's stream ends without a finish or with an error after 5 tokens."""
    for how in ("die_after", "error_after"):
        async with chatting(system) as chat:
            breaking = scripted("break", words=50, first_ms=10, period_ms=10, **{how: 5})
            await chat.send(type="response.create", conversation=conversation, **breaking)
            heard = Heard([event async for event in chat.events()])
        ends = [kind for kind in heard.types if kind in TERMINALS]
        assert ends == ["response.failed"] or heard.text.split() == words(50)  # another run may have gone on
        if ends == ["response.failed"]:
            assert heard.response["error"]["code"] in ("engine_error", "engine_unavailable")
            assert "Triton" not in heard.response["error"]["message"]
            shown = (await client.get(f"/v1/responses/{heard.response['id']}")).json()
            assert shown == heard.response


async def test_f27_a_message_right_after_a_stop_is_answered_and_no_late_token_gets_into_it(
    system: System, client: httpx.AsyncClient, elsewhere: httpx.AsyncClient, conversation: str
) -> None:
    """Field case F27: stop at a token and say more within 50 ms; and say more without a stop."""
    long = scripted("long", words=500, word="old", first_ms=20, period_ms=20) | {"conversation": conversation}
    more = {"model": "synthetic", "conversation": conversation, "max_output_tokens": 16}
    async with chatting(system) as chat, chatting(system) as other:
        await chat.send(type="response.create", **long)
        stopped = asyncio.create_task(stopped_after(chat, elsewhere, 30))
        async with asyncio.timeout(30):
            while not stopped.done():
                await asyncio.sleep(0.01)
        after = await other.say("next", **more)
        assert [word for word in after.text.split() if word.startswith("old")] == []
        assert len(after.text.split()) == 16
        await chat.send(type="response.create", **long | {"max_output_tokens": 40})
        assert (await anext(chat.events()))["type"] == "response.created"
        queued = asyncio.create_task(other.say("next, without a stop", **more))
        first = Heard([event async for event in chat.events()])
        waited = await queued
    assert first.response["status"] == "incomplete"
    assert waited.types[:3] == ["response.created", "response.queued", "response.in_progress"]
    assert not any(word.startswith("old") for word in waited.text.split())
    items = await kept(client, conversation, 8)
    assert texts(items[1]) == [(await stopped).text]


async def test_f30_a_chain_is_found_on_another_edge_and_unknown_and_foreign_ids_are_one_error(
    system: System, client: httpx.AsyncClient, elsewhere: httpx.AsyncClient
) -> None:
    """Field case F30: turn 1 on one edge, turn 2 on the other; the model is asked with both."""
    first = scripted("remember the blue heron", words=3, first_ms=10, period_ms=10)
    one = (await client.post("/v1/responses", json=first)).json()
    two = (
        await elsewhere.post(
            "/v1/responses",
            json={"model": "synthetic", "input": "what did I say?", "previous_response_id": one["id"]}
            | {"max_output_tokens": 16},
        )
    ).json()
    assert two["previous_response_id"] == one["id"]
    assert two["usage"]["input_tokens"] > one["usage"]["input_tokens"]
    await system.command("users", "create", "eve@example.org")
    key = (await system.command("keys", "create", "eve@example.org")).split()[-1]
    async with httpx.AsyncClient(base_url=str(elsewhere.base_url), headers={"authorization": f"Bearer {key}"}) as eve:
        ask = {"model": "synthetic", "input": "x", "previous_response_id": one["id"]}
        answers = [
            await eve.post("/v1/responses", json=ask),
            await client.post("/v1/responses", json=ask | {"previous_response_id": one["id"][:-1] + "_"}),
            await client.post("/v1/responses", json=ask | {"previous_response_id": "resp_unknown"}),
        ]
    assert {answer.status_code for answer in answers} == {404}
    assert len({answer.text for answer in answers}) == 1
