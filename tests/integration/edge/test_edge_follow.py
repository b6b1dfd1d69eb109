"""Following a conversation over a WebSocket: whoever asked, on whatever edge, the same events, live."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from edge_stage import Person, Roles, Running, Script, answer, delta, ended, running, started, terminal
from test_edge_socket import CREATE, OURS, hear, say, whole
from websockets.asyncio.client import ClientConnection, connect

from parley.settings import Settings
from schemas.prompts import PromptAccepted
from schemas.turns import SessionDeleted

pytestmark = pytest.mark.stack


@pytest.fixture(scope="module")
async def second(base_settings: Settings) -> AsyncIterator[Running]:
    async with running(base_settings, route="lane", drain_s=1) as one:
        yield one


@contextlib.asynccontextmanager
async def on(edge: Running, who: Person) -> AsyncIterator[ClientConnection]:
    async with connect(edge.ws_url, additional_headers=who.headers, subprotocols=OURS) as socket:
        yield socket


async def follow(socket: ClientConnection, conversation: str | None) -> None:
    await say(socket, {"type": "parley:follow", "conversation": conversation})
    assert await hear(socket) == {"type": "parley:following", "conversation": conversation}


def recorded(script: Script, turn: int = 1) -> Script:
    """A script whose turn is in the state log too, from before its first event to after its last."""

    async def play(roles: Roles, prompt: PromptAccepted) -> None:
        start = started(prompt, turn)
        await roles.state(start)
        await script(roles, prompt)
        await roles.state(ended(start))

    return play


@pytest.fixture
async def conversation(http: httpx.AsyncClient) -> str:
    return str((await http.post("/v1/conversations", json={})).json()["id"])


async def turn_of(socket: ClientConnection) -> tuple[Any, list[Any]]:
    """What announces a turn, and its events."""
    announced = await hear(socket)
    assert announced["type"] == "parley:turn"
    return announced, await whole(socket)


async def test_a_device_that_knows_only_the_conversation_sees_the_running_answer_from_its_start_and_the_next_ones(
    edge: Running, second: Running, roles: Roles, ada: Person, conversation: str
) -> None:
    words = [f"w{n} " for n in range(40)]
    roles.script = recorded(answer(*words, gap=0.03))
    create = CREATE | {"conversation": conversation}
    async with on(edge, ada) as asking, on(second, ada) as watching, on(edge, ada) as beside:
        await say(asking, create)
        seen = [await hear(asking) for _ in range(15)]
        for socket in (watching, beside):
            await follow(socket, conversation)
        joined = await asyncio.gather(turn_of(watching), turn_of(beside))
        seen += await whole(asking)
        for announced, events in joined:
            assert events == seen
            assert announced["response_id"] == seen[0]["response"]["id"]
            assert announced["input"][0]["content"] == [{"type": "input_text", "text": "Hello?"}]
        roles.script = recorded(answer("next"), turn=2)
        await say(asking, create)
        seen = await whole(asking)
        for socket in (watching, beside):
            announced, events = await turn_of(socket)
            assert events == seen
            assert (announced["turn"], announced["conversation"]) == (2, conversation)


async def test_own_and_resumed_answers_are_not_shown_twice(
    edge: Running, roles: Roles, ada: Person, conversation: str
) -> None:
    roles.script = recorded(answer("a", "b", "c", gap=0.1))
    async with on(edge, ada) as socket:
        await follow(socket, conversation)
        await say(socket, CREATE | {"conversation": conversation})
        first = (await whole(socket))[-1]["response"]["id"]
        await say(socket, {"type": "parley:ping"})
        assert await hear(socket) == {"type": "parley:pong"}
    roles.script = recorded(answer("a", "b", "c", gap=0.1), turn=2)
    async with on(edge, ada) as asking, on(edge, ada) as coming_back:
        await say(asking, CREATE | {"conversation": conversation})
        running_now = (await hear(asking))["response"]["id"]
        assert running_now != first
        await say(coming_back, {"type": "parley:resume", "response_id": running_now})
        assert (await hear(coming_back))["type"] == "response.created"
        await say(coming_back, {"type": "parley:follow", "conversation": conversation})
        heard = [await hear(coming_back)]
        while heard[-1]["type"] != "response.completed":
            heard.append(await hear(coming_back))
        assert {"type": "parley:following", "conversation": conversation} in heard
        assert "parley:turn" not in {event["type"] for event in heard}


async def test_f04_two_tabs_on_two_edges_show_every_answer_of_a_conversation_whole(
    edge: Running, second: Running, roles: Roles, ada: Person, conversation: str
) -> None:
    """Field case F04: three turns and one regenerated, asked for in turns by tab A and tab B; numbers begin anew."""
    texts: dict[str, dict[str, str]] = {"A": {}, "B": {}}
    async with on(edge, ada) as a, on(second, ada) as b:
        await follow(a, conversation)
        await follow(b, conversation)
        second_answer = ""
        for turn, (name, socket, other) in enumerate([("A", a, b), ("B", b, a), ("A", a, b), ("B", b, a)], start=1):
            roles.script = recorded(answer(*(f"t{turn}.{n} " for n in range(10)), gap=0.01), turn)
            again = {"previous_response_id": second_answer} if turn == 4 else {"conversation": conversation}
            await say(socket, CREATE | again)
            mine = await whole(socket)
            _, theirs = await turn_of(other)
            assert mine == theirs
            assert [event["sequence_number"] for event in mine] == list(range(len(mine)))
            response = mine[-1]["response"]["id"]
            second_answer = response if turn == 2 else second_answer
            for tab, events in ((name, mine), ("B" if name == "A" else "A", theirs)):
                texts[tab][response] = "".join(event["delta"] for event in events if "delta" in event)
    assert texts["A"] == texts["B"]
    assert list(texts["A"].values()) == ["".join(f"t{turn}.{n} " for n in range(10)) for turn in range(1, 5)]


async def test_a_turn_that_began_while_the_socket_was_busy_comes_next(
    edge: Running, roles: Roles, ada: Person, conversation: str
) -> None:
    go = asyncio.Event()

    async def held(roles: Roles, prompt: PromptAccepted) -> None:
        await roles.begin(prompt)
        await go.wait()
        await roles.write(prompt, delta(0, "x"), terminal(1))

    async with on(edge, ada) as busy, on(edge, ada) as asking:
        await follow(busy, conversation)
        roles.script = held
        await say(busy, CREATE)
        assert (await hear(busy))["type"] == "response.created"
        roles.script = recorded(answer("of the other device"))
        await say(asking, CREATE | {"conversation": conversation})
        there = await whole(asking)
        go.set()
        assert (await whole(busy))[-1]["response"]["conversation"] is None
        assert (await turn_of(busy))[1] == there


async def test_foreign_and_unknown_conversations_are_the_same_404_and_nothing_is_followed(
    edge: Running, roles: Roles, ada: Person, bob: Person, conversation: str
) -> None:
    async with on(edge, bob) as socket:
        answers = []
        for name in (conversation, conversation[:-1] + ("A" if conversation[-1] != "A" else "B"), "conv_x"):
            await say(socket, {"type": "parley:follow", "conversation": name})
            answers.append(await hear(socket))
        assert {(one["status"], one["error"]["code"], one["error"]["message"]) for one in answers} == {
            (404, "not_found", "There is no such conversation.")
        }
        await say(socket, {"type": "parley:follow", "conversation": 5})
        assert (await hear(socket))["error"]["code"] == "invalid_request"


async def test_following_ends_on_request_and_a_deletion_is_told(
    edge: Running, roles: Roles, http: httpx.AsyncClient, ada: Person, conversation: str
) -> None:
    roles.script = recorded(answer("x"))
    async with on(edge, ada) as socket:
        await follow(socket, conversation)
        assert (await http.delete(f"/v1/conversations/{conversation}")).json()["deleted"]
        assert await hear(socket) == {"type": "parley:deleted", "conversation": conversation}
        await follow(socket, None)
        await http.post("/v1/responses", json={"model": "synthetic", "input": "x", "conversation": conversation})
        await say(socket, {"type": "parley:ping"})
        assert await hear(socket) == {"type": "parley:pong"}


async def test_a_turn_that_was_too_old_to_run_ends_for_whoever_waits(
    edge: Running, roles: Roles, ada: Person, conversation: str
) -> None:
    """The orchestrator ends it in the state log only: nothing of an expired turn is on a route."""

    async def expire(roles: Roles, prompt: PromptAccepted) -> None:
        start = started(prompt, pool=None, why="expired")
        await roles.state(start)
        await roles.state(ended(start, "expired", epoch=(0, 0, 0, 0)))

    roles.script = expire
    async with on(edge, ada) as socket:
        await say(socket, CREATE | {"conversation": conversation})
        last = (await whole(socket))[-1]
    assert (last["type"], last["response"]["error"]["code"]) == ("response.failed", "expired")


async def test_an_ended_answer_of_a_deleted_conversation_is_not_shown_any_more(
    edge: Running, roles: Roles, http: httpx.AsyncClient, ada: Person, conversation: str
) -> None:
    roles.script = recorded(answer("a secret"))
    body = {"model": "synthetic", "input": "x", "conversation": conversation}
    response = (await http.post("/v1/responses", json=body)).json()["id"]
    assert "a secret" in (await http.get(f"/v1/responses/{response}?stream=true")).text
    [prompt] = roles.prompts
    await roles.state(SessionDeleted(session=prompt.session, user=ada.user.user_id, at=1))
    async with asyncio.timeout(5):
        while "a secret" in (shown := await http.get(f"/v1/responses/{response}")).text:
            await asyncio.sleep(0.02)
    assert (shown.json()["status"], shown.json()["error"]["code"]) == ("failed", "previous_response_not_found")
    streamed = await http.get(f"/v1/responses/{response}?stream=true")
    assert "a secret" not in streamed.text
    assert "previous_response_not_found" in streamed.text
