"""Keys, bad input, idempotency, conversations and their history, over HTTP."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import httpx
import pytest
from edge_stage import Person, Roles, Running, answer, delta, running, terminal
from openai import AsyncOpenAI
from websockets.asyncio.client import connect as connect_socket

from parley.clock import now_ms
from parley.ids import SESSION_TOPIC_LANE, message_id, parse_conversation_id, response_address
from parley.log.admin import connect
from parley.settings import Settings
from parley.stores.accounts import Accounts
from parley.stores.messages import MessageStore
from parley.stores.sessions import Sessions
from parley.topics import CAPACITY
from schemas.base import Item, Route, Text, Usage
from schemas.operations import PoolStatus
from schemas.prompts import PromptAccepted
from schemas.turns import SessionChanged, SessionDeleted, TurnEnded, TurnStarted
from schemas.wire import encode

pytestmark = pytest.mark.stack

ASK: dict[str, Any] = {"model": "synthetic", "input": "Hello?"}


async def test_no_key_a_wrong_key_and_a_revoked_key_are_401(edge: Running, ada: Person, accounts: Accounts) -> None:
    async with httpx.AsyncClient(base_url=edge.url) as http:
        await accounts.revoke_key(ada.key_id)
        for headers in ({}, {"authorization": "Basic eA=="}, {"authorization": "Bearer pk_nope"}, ada.headers):
            answered = await http.post("/v1/responses", json=ASK, headers=headers)
            assert answered.status_code == 401
            assert answered.json()["error"]["code"] == "invalid_api_key"
            assert answered.json()["error"]["type"] == "authentication_error"


@pytest.mark.parametrize(
    ("body", "status", "code", "param"),
    [
        (b"{", 400, "invalid_json", None),
        (b'"x"', 400, "invalid_json", None),
        (b'{"model": "synthetic", "input": "\xff"}', 400, "invalid_json", None),
        ({"model": "synthetic"}, 400, "invalid_request", "input"),
        ({"model": "synthetic", "input": ""}, 400, "invalid_request", "input"),
        ({"model": "synthetic", "input": 5}, 400, "invalid_request", "input"),
        ({"model": "synthetic", "input": "x", "temperature": "1"}, 400, "invalid_request", "temperature"),
        ({"model": "synthetic", "input": "x", "temperatur": 1}, 400, "invalid_request", "temperatur"),
        ({"model": "synthetic", "input": "x", "max_output_tokens": 5}, 400, "invalid_request", "max_output_tokens"),
        ({"model": "synthetic", "input": "x", "metadata": {"k": "v" * 513}}, 400, "invalid_request", "metadata.k"),
        ({"model": "synthetic", "input": "x", "user": "u" * 65}, 400, "invalid_request", "user"),
        ({"model": "synthetic", "input": "x", "tools": [{"type": "web_search"}]}, 400, "unsupported", "tools"),
        (
            {"model": "synthetic", "input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            400,
            "unsupported",
            "input[0].content[0]",
        ),
        (
            {"model": "synthetic", "input": [{"type": "function_call_output", "call_id": "c", "output": "o"}]},
            400,
            "unsupported",
            "input[0]",
        ),
        ({"model": "gpt-9", "input": "x"}, 404, "model_not_found", "model"),
        ({"input": "x"}, 404, "model_not_found", "model"),
        ({"model": "synthetic", "input": "x" * 70_000}, 400, "context_length_exceeded", "input"),
        ({"model": "synthetic", "input": "x" * 1_100_000}, 413, "request_too_large", None),
        ({"model": "synthetic", "input": "x", "conversation": "conv_nope"}, 404, "not_found", "conversation"),
    ],
)
async def test_bad_input_gets_its_error_and_nothing_reaches_the_log(
    http: httpx.AsyncClient, roles: Roles, body: Any, status: int, code: str, param: str | None
) -> None:
    content = {"content": body} if isinstance(body, bytes) else {"json": body}
    answered = await http.post("/v1/responses", **content)
    error = answered.json()["error"]
    assert (answered.status_code, error["code"], error["param"]) == (status, code, param)
    assert error["message"]
    assert answered.headers["x-request-id"].startswith("req_")
    roles.script = answer("fine")
    assert (await http.post("/v1/responses", json=ASK)).json()["status"] == "completed"
    assert len(roles.prompts) == 1


async def test_unknown_paths_and_methods_get_the_envelope(http: httpx.AsyncClient) -> None:
    assert (await http.get("/v1/nope")).json()["error"]["code"] == "not_found"
    wrong = await http.delete("/v1/models")
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, "invalid_request")


async def test_foreign_forged_and_mistyped_ids_are_one_and_the_same_404(
    edge: Running, http: httpx.AsyncClient, roles: Roles, bob: Person
) -> None:
    roles.script = answer("secret")
    mine = (await http.post("/v1/responses", json=ASK)).json()["id"]
    forged = mine[:-1] + ("A" if mine[-1] != "A" else "B")
    async with httpx.AsyncClient(base_url=edge.url, headers=bob.headers) as other:
        answers = [
            *[(await other.get(f"/v1/responses/{id_}")) for id_ in (mine, forged, "resp_x")],
            *[(await other.get(f"/v1/responses/{id_}?stream=true")) for id_ in (mine, forged)],
            *[(await other.post(f"/v1/responses/{id_}/cancel")) for id_ in (mine, forged)],
        ]
    assert {one.status_code for one in answers} == {404}
    assert len({one.text for one in answers}) == 1
    assert not roles.cancels


class Orchestrator:
    """Answers keys as the orchestrator does: the first prompt runs, later ones point to it or conflict."""

    def __init__(self) -> None:
        self.first: dict[str, PromptAccepted] = {}

    async def __call__(self, roles: Roles, prompt: PromptAccepted) -> None:
        assert prompt.key_hash is not None
        first = self.first.setdefault(prompt.key_hash, prompt)
        if first is prompt:
            await answer("once", gap=0.05)(roles, prompt)
        elif first.body_hash != prompt.body_hash:
            await roles.write(prompt, roles.opened(prompt, duplicate_of=first.response, conflict=True))
        else:
            await roles.write(prompt, roles.opened(prompt, duplicate_of=first.response))


@pytest.mark.parametrize("stream", [False, True])
async def test_a_repeated_key_gets_the_first_response_and_another_body_a_422(
    http: httpx.AsyncClient, roles: Roles, stream: bool
) -> None:
    roles.script = Orchestrator()
    key = {"idempotency-key": f"k-{time.time_ns()}"}
    answers = await asyncio.gather(
        *(http.post("/v1/responses", json=ASK | {"stream": stream}, headers=key) for _ in range(3))
    )
    assert {one.status_code for one in answers} == {200}
    assert len({one.text.partition(": parley")[2] or one.text for one in answers}) == 1
    assert len({prompt.session for prompt in roles.prompts}) == 1
    other = await http.post("/v1/responses", json=ASK | {"input": "else", "stream": stream}, headers=key)
    assert (other.status_code, other.json()["error"]["code"]) == (422, "idempotency_key_reused")
    assert "retry-after" not in other.headers


async def test_a_repeated_key_means_the_same_request_over_either_transport(
    edge: Running, http: httpx.AsyncClient, roles: Roles, ada: Person
) -> None:
    roles.script = Orchestrator()
    key, ask = f"k-{time.time_ns()}", {"model": "synthetic", "input": "Hello?"}
    first = (await http.post("/v1/responses", json=ask, headers={"idempotency-key": key})).json()
    streamed = await http.post("/v1/responses", json=ask | {"stream": True}, headers={"idempotency-key": key})
    assert first["id"] in streamed.text
    async with connect_socket(edge.ws_url, additional_headers=ada.headers) as socket:
        create = {"type": "response.create", "idempotency_key": key, **ask}
        await socket.send(json.dumps(create))
        events = [json.loads(await socket.recv())]
        while events[-1]["type"] != "response.completed":
            events.append(json.loads(await socket.recv()))
        assert events[0]["response"]["id"] == first["id"]
        assert events[-1]["response"] == first
        await socket.send(json.dumps(create | {"input": "else"}))
        refused = json.loads(await socket.recv())
    assert (refused["type"], refused["status"]) == ("error", 422)
    assert refused["error"]["code"] == "idempotency_key_reused"


async def test_a_conversation_is_opened_once_for_a_key(
    http: httpx.AsyncClient, ada: Person, bob: Person, edge: Running, sessions: Sessions
) -> None:
    key = {"idempotency-key": f"k-{time.time_ns()}"}
    asked = {"title": "Once", "metadata": {"a": "b"}}
    answers = await asyncio.gather(*(http.post("/v1/conversations", json=asked, headers=key) for _ in range(3)))
    opened = answers[0].json()
    assert {one.json()["id"] for one in answers} == {opened["id"]}
    assert (opened["title"], opened["metadata"]) == ("Once", {"a": "b"})
    other = await http.post("/v1/conversations", json=asked | {"title": "Twice"}, headers=key)
    assert (other.status_code, other.json()["error"]["code"]) == (422, "idempotency_key_reused")
    async with httpx.AsyncClient(base_url=edge.url, headers=bob.headers) as somebody:
        theirs = (await somebody.post("/v1/conversations", json=asked, headers=key)).json()
    assert theirs["id"] != opened["id"]
    session = parse_conversation_id(edge.edge.settings.keys, ada.user.user_id, opened["id"])
    body_hash = edge.edge.live.opening(session).opened_with  # type: ignore[union-attr]
    changed = SessionChanged(session=session, user=ada.user.user_id, at=1, opened=True, opened_with=body_hash)
    await sessions.apply([(changed, 1)])
    row = await sessions.get(ada.user.user_id, session)
    assert row is not None
    assert row.opened_with == body_hash
    again = SessionChanged(session=session, user=ada.user.user_id, at=2, opened=True, opened_with="x", title="Not this")
    await sessions.apply([(again, 2)])
    row = await sessions.get(ada.user.user_id, session)
    assert row is not None
    assert row.title is None


async def test_f20_the_openai_sdk_streams_resumes_and_reads_the_final_response(
    edge: Running, roles: Roles, ada: Person
) -> None:
    roles.script = answer(*(f"w{n} " for n in range(20)), gap=0.01)
    async with AsyncOpenAI(base_url=f"{edge.url}/v1", api_key=ada.key, max_retries=0) as client:
        async with client.responses.stream(model="synthetic", input="Hello?") as stream:
            events = [event async for event in stream]
            final = await stream.get_final_response()
        assert final.output_text == "".join(f"w{n} " for n in range(20))
        assert final.usage is not None
        assert final.usage.output_tokens == 20
        deltas = [event for event in events if event.type == "response.output_text.delta"]
        assert deltas[-1].snapshot == final.output_text
        assert [event.sequence_number for event in events] == list(range(28))
        async with client.responses.stream(response_id=final.id, starting_after=9) as again:
            rest = [event async for event in again]
            assert (await again.get_final_response()).output_text == final.output_text
        assert [event.sequence_number for event in rest] == list(range(10, 28))
        assert (await client.responses.retrieve(final.id)).output_text == final.output_text
        assert {model.id async for model in client.models.list()} == set(edge.edge.settings.topics.models)


async def test_a_conversation_is_opened_named_used_and_deleted(
    edge: Running, http: httpx.AsyncClient, roles: Roles, ada: Person, sessions: Sessions, kept: MessageStore
) -> None:
    roles.script = answer("Hi.")
    opened = (await http.post("/v1/conversations", json={"metadata": {"from": "test"}})).json()
    assert opened["object"] == "conversation"
    assert opened["metadata"] == {"from": "test"}
    url = f"/v1/conversations/{opened['id']}"
    shown = (await http.get(url)).json()  # before any view has it
    assert shown["id"] == opened["id"]
    body = (await http.post("/v1/responses", json=ASK | {"conversation": opened["id"]})).json()
    assert body["conversation"] == {"id": opened["id"]}
    [prompt] = roles.prompts
    assert prompt.listed
    assert not prompt.new_session
    assert (await http.patch(url, json={"title": "Greetings"})).json()["title"] == "Greetings"
    assert not await sessions.was_deleted(ada.user.user_id, prompt.session)
    assert (await http.request("DELETE", url)).json()["deleted"] is True
    deleted = SessionDeleted(session=prompt.session, user=ada.user.user_id, at=1)
    now = time.time_ns() // 1_000_000
    await sessions.apply([(deleted, now)])
    await kept.delete(deleted, appended=now)
    assert await sessions.was_deleted(ada.user.user_id, prompt.session)
    assert (await http.get(url)).status_code == 404
    assert (await http.get(f"{url}/items")).status_code == 404


def started(
    prompt_user: Person, response: str, turn: int, text: str, echo: dict[str, Any] | None = None
) -> TurnStarted:
    return TurnStarted(
        response=response,
        session=response_address(response).session,
        user=prompt_user.user.user_id,
        tier="free",
        turn=turn,
        parent=None,
        items=(Item(id=message_id(response, 0), role="user", parts=(Text(text=text),)),),
        pool="synthetic",
        model="synthetic",
        dispatch=(1, turn),
        route=Route(topic="chat.tokens", partition=0, start=0),
        deadline=0,
        moderation_deadline=0,
        echo=echo or {},
        accepted_at=response_address(response).accepted_ms,
    )


def ended(start: TurnStarted, *pieces: str) -> TurnEnded:
    item = Item(id=message_id(start.response, 1), role="assistant", parts=(Text(text="".join(pieces)),))
    return TurnEnded(
        response=start.response,
        session=start.session,
        user=start.user,
        tier="free",
        turn=start.turn,
        parent=None,
        dispatch=start.dispatch,
        epoch=(*start.dispatch, 1, 1),
        status="completed",
        output=(item,),
        delta_lengths=tuple(map(len, pieces)),
        usage=Usage(input_tokens=7, output_tokens=len(pieces), generated_tokens=len(pieces)),
        model="synthetic",
        code="test",
        accepted_at=start.accepted_at,
        ended_at=1_800_000_000_000,
    )


async def test_history_is_listed_and_paged_and_shows_the_running_turn(
    http: httpx.AsyncClient, roles: Roles, ada: Person, sessions: Sessions, kept: MessageStore
) -> None:
    conversation = (await http.post("/v1/conversations", json={})).json()["id"]
    roles.script = answer("x")
    ids = []
    for turn in range(1, 5):
        ids.append((await http.post("/v1/responses", json=ASK | {"conversation": conversation})).json()["id"])
        start = started(ada, ids[-1], turn, f"question {turn}")
        await kept.write_started(start, offset=turn * 2, appended=start.accepted_at)
        await sessions.apply([(start, start.accepted_at)])
        if turn < 4:
            end = ended(start, f"answer {turn}")
            await kept.write_ended(end, offset=turn * 2 + 1, appended=start.accepted_at)
    url = f"/v1/conversations/{conversation}/items"

    def said(page: Any) -> list[str]:
        return ["".join(part["text"] for part in item["content"]) for item in page["data"]]

    everything = (await http.get(url)).json()
    dialogue = [text for n in (1, 2, 3) for text in (f"question {n}", f"answer {n}")] + ["question 4", ""]
    assert said(everything) == dialogue
    assert everything["has_more"] is False
    running_item = everything["data"][-1]
    assert (running_item["status"], running_item["role"]) == ("in_progress", "assistant")
    assert running_item["response_id"] == ids[-1]
    assert everything["data"][0]["content"][0]["type"] == "input_text"
    assert everything["data"][1]["content"][0]["type"] == "output_text"
    for order, expected in (("asc", dialogue), ("desc", dialogue[::-1])):
        collected: list[str] = []
        page: Any = {"has_more": True, "last_id": None}
        while page["has_more"]:
            after = {"after": page["last_id"]} if page["last_id"] else {}
            page = (await http.get(url, params={"order": order, "limit": 3, **after})).json()
            collected += said(page)
        assert collected == expected
    listed = (await http.get("/v1/conversations")).json()
    assert [one["id"] for one in listed["data"]] == [conversation]
    assert listed["data"][0]["title"] == "question 1"


async def test_the_list_of_conversations_is_paged_newest_first(
    http: httpx.AsyncClient, ada: Person, sessions: Sessions, roles: Roles
) -> None:
    roles.script = answer("x")
    expected = []
    for n in range(5):
        conversation = (await http.post("/v1/conversations", json={})).json()["id"]
        id_ = (await http.post("/v1/responses", json=ASK | {"conversation": conversation})).json()["id"]
        await sessions.apply([(started(ada, id_, 1, f"q{n}"), 1_700_000_000_000 + n)])
        expected.insert(0, conversation)
    found: list[str] = []
    params: dict[str, Any] = {"limit": 2}
    while True:
        page = (await http.get("/v1/conversations", params=params)).json()
        found += [one["id"] for one in page["data"]]
        if not page["has_more"]:
            break
        params["after"] = page["next"]
    assert found == expected
    assert (await http.get("/v1/conversations", params={"after": "x"})).status_code == 400


async def test_a_turn_whose_route_is_gone_is_answered_from_the_store_with_the_same_events(
    base_settings: Settings, http: httpx.AsyncClient, roles: Roles, ada: Person, kept: MessageStore
) -> None:
    async with (
        running(base_settings, route="session") as edge,
        httpx.AsyncClient(base_url=edge.url, headers=ada.headers, timeout=20) as client,
    ):
        roles.script = answer("one ", "twö ", "three")
        streamed = (await client.post("/v1/responses", json=ASK | {"stream": True})).text
        [prompt] = roles.prompts
        address = response_address(prompt.response)
        assert address.lane == SESSION_TOPIC_LANE
        start = started(ada, prompt.response, 1, "Hello?", prompt.echo)
        end = ended(start, "one ", "twö ", "three")
        await kept.write_started(start, offset=1, appended=prompt.accepted_at)
        await kept.write_ended(end, offset=2, appended=prompt.accepted_at)
        async with connect(base_settings.kafka) as admin:
            await admin.delete([prompt.route.topic])
        url = f"/v1/responses/{prompt.response}"
        again = (await client.get(url, params={"stream": "true"})).text
        assert again.startswith(": parley\n\n: recovered\n\n")
        assert again.replace(": recovered\n\n", "") == streamed
        assert (await client.get(url)).json()["output"][0]["content"][0]["text"] == "one twö three"


async def test_session_topics_carry_opened_conversations_and_lanes_the_rest(
    base_settings: Settings, roles: Roles, ada: Person
) -> None:
    roles.script = answer("x")
    async with (
        running(base_settings, route="auto") as edge,
        httpx.AsyncClient(base_url=edge.url, headers=ada.headers, timeout=20) as client,
    ):
        conversation = (await client.post("/v1/conversations")).json()["id"]
        for _ in range(2):
            body = (await client.post("/v1/responses", json=ASK | {"conversation": conversation})).json()
            assert body["output"][0]["content"][0]["text"] == "x"
            assert roles.prompts[-1].route.topic.startswith("chat.tokens.s.")
        await client.post("/v1/responses", json=ASK)
        assert roles.prompts[-1].route.topic == "chat.tokens"


async def test_an_accepted_id_is_never_a_404(http: httpx.AsyncClient, roles: Roles) -> None:
    body = (await http.post("/v1/responses", json=ASK | {"background": True})).json()  # nobody answers
    assert (await http.get(f"/v1/responses/{body['id']}")).json()["status"] in ("queued", "in_progress")
    [prompt] = roles.prompts
    await roles.begin(prompt)
    await roles.write(prompt, delta(0, "x"), terminal(1))
    async with asyncio.timeout(5):  # this edge reads the lane a moment later
        while (got := (await http.get(f"/v1/responses/{body['id']}")).json())["status"] != "completed":
            assert got["status"] in ("queued", "in_progress")


async def test_health_and_metrics(edge: Running) -> None:
    async with httpx.AsyncClient(base_url=edge.url) as http:
        assert (await http.get("/health/live")).status_code == 200
        assert (await http.get("/health/ready")).json() == {"ready": True, "problems": []}
        assert "parley_edge_prompts_total" in (await http.get("/metrics")).text


async def test_new_turns_are_refused_while_those_before_them_wait_too_long(
    http: httpx.AsyncClient, roles: Roles
) -> None:
    """Promise 12: by what workers say of their queues, before anything is written; and no longer than they say so."""

    async def say(oldest_ms: int) -> None:
        status = PoolStatus(
            pool="synthetic",
            worker="worker-test",
            slots=8,
            running=8,
            queued={"paid": 3},
            oldest_queued_ms={"paid": oldest_ms, "free": oldest_ms},
            at=now_ms(),
        )
        await roles.producer.send(CAPACITY, encode(status), key=b"test", partition=0)

    async def until(code: int) -> httpx.Response:
        async with asyncio.timeout(10):
            while True:
                answered = await http.post("/v1/responses", json=ASK)
                if answered.status_code == code:
                    return answered
                await asyncio.sleep(0.05)

    roles.script = answer("Hello.")
    try:
        await say(60_000)
        refused = await until(503)
        assert refused.json()["error"]["code"] == "overloaded"
        asked = len(roles.prompts)
        assert (await http.post("/v1/responses", json=ASK)).status_code == 503
        assert len(roles.prompts) == asked, "nothing is written"
    finally:
        await say(0)
    assert (await until(200)).status_code == 200
