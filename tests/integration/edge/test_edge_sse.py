"""Responses over HTTP: what a client reads, when, and what becomes of it when the client leaves."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import orjson
import pytest
from edge_stage import Person, Roles, Running, answer, delta, failure, fence, refuse, running, terminal

from parley.settings import Settings
from schemas.prompts import PromptAccepted

pytestmark = pytest.mark.stack

PLAIN = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
    "response.completed",
]
ASK = {"model": "synthetic", "input": "Hello?", "stream": True}


async def events_of(lines: AsyncIterator[str]) -> AsyncIterator[tuple[str, Any]]:
    """(event, data) of a stream; data of `[DONE]` is that text; comments come as ("", text)."""
    name = ""
    async for line in lines:
        if line.startswith(":"):
            yield "", line[1:].strip()
        elif line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            data = line.removeprefix("data: ")
            yield (name, orjson.loads(data)) if data != "[DONE]" else ("done", data)
            name = ""


async def read(http: httpx.AsyncClient, method: str, url: str, **more: Any) -> list[tuple[str, Any]]:
    async with http.stream(method, url, **more) as response:
        assert response.status_code == 200, await response.aread()
        return [event async for event in events_of(response.aiter_lines()) if event[0]]


async def test_a_plain_answer_is_the_specified_sequence_of_events(http: httpx.AsyncClient, roles: Roles) -> None:
    roles.script = answer("Hello", ", wörld\u2028!")
    events = await read(http, "POST", "/v1/responses", json=ASK)
    assert [name for name, _ in events] == [*PLAIN, "done"]
    numbers = [data["sequence_number"] for name, data in events[:-1]]
    assert numbers == list(range(len(PLAIN)))
    done = events[-2][1]["response"]
    assert done["status"] == "completed"
    assert done["output"][0]["content"][0]["text"] == "Hello, wörld\u2028!"
    assert done["usage"]["total_tokens"] == 9
    assert {data["item_id"] for name, data in events if "item_id" in data} == {done["output"][0]["id"]}


async def test_without_stream_the_ended_response_is_the_answer(http: httpx.AsyncClient, roles: Roles) -> None:
    roles.script = answer("Hi", " there", gap=0.05)
    answered = await http.post("/v1/responses", json=ASK | {"stream": False, "metadata": {"a": "b"}})
    assert answered.status_code == 200
    body = answered.json()
    assert (body["status"], body["metadata"]) == ("completed", {"a": "b"})
    assert body["output"][0]["content"][0]["text"] == "Hi there"
    assert (await http.get(f"/v1/responses/{body['id']}")).json() == body


async def test_the_prompt_is_in_the_log_as_it_was_sent(http: httpx.AsyncClient, roles: Roles, ada: Person) -> None:
    roles.script = answer("ok")
    asked = {"instructions": "Be kind.", "temperature": 0.5, "max_output_tokens": 99, "stop": "END", "seed": 4}
    items = [{"role": "developer", "content": "d"}, {"role": "user", "content": [{"type": "input_text", "text": "u"}]}]
    body = (await http.post("/v1/responses", json={"model": "synthetic", "input": items, **asked})).json()
    [prompt] = [prompt for prompt in roles.prompts if prompt.response == body["id"]]
    assert (prompt.user, prompt.tier, prompt.instructions) == (ada.user.user_id, "free", "Be kind.")
    assert [(item.role, item.text) for item in prompt.items] == [("developer", "d"), ("user", "u")]
    assert (prompt.sampling.temperature, prompt.sampling.max_output_tokens) == (0.5, 99)
    assert (prompt.sampling.stop, prompt.sampling.seed) == (("END",), 4)
    assert prompt.new_session
    assert not prompt.listed
    assert (body["instructions"], body["temperature"], body["max_output_tokens"]) == ("Be kind.", 0.5, 99)


async def test_a_refused_prompt_completes_with_a_refusal(http: httpx.AsyncClient, roles: Roles) -> None:
    roles.script = refuse
    events = await read(http, "POST", "/v1/responses", json=ASK)
    assert [name for name, _ in events][2:-1] == [
        "response.output_item.added",
        "response.content_part.added",
        "response.refusal.delta",
        "response.refusal.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert events[-2][1]["response"]["output"][0]["content"] == [
        {"type": "refusal", "refusal": "I can't help with that."}
    ]


async def test_a_failed_turn_ends_in_response_failed_with_what_there_was(http: httpx.AsyncClient, roles: Roles) -> None:
    async def script(roles: Roles, prompt: PromptAccepted) -> None:
        await roles.begin(prompt)
        await roles.write(prompt, delta(0, "Half"), terminal(1, "failed", failure=failure()))

    roles.script = script
    events = await read(http, "POST", "/v1/responses", json=ASK)
    assert [name for name, _ in events][-2:] == ["response.failed", "done"]
    failed = events[-2][1]["response"]
    assert failed["error"]["code"] == "engine_unavailable"
    assert failed["error"]["parley:retryable"] is True
    assert failed["output"][0]["status"] == "incomplete"
    assert failed["output"][0]["content"][0]["text"] == "Half"


async def test_f36_unreadable_records_on_a_route_are_skipped(http: httpx.AsyncClient, roles: Roles) -> None:
    async def script(roles: Roles, prompt: PromptAccepted) -> None:
        await roles.raw(prompt, b"\xff\xfe\x7b")
        await roles.begin(prompt)
        await roles.raw(prompt, b'[{"v": 99, "type": "delta"}]')
        await roles.write(prompt, delta(0, "fine"))
        await roles.raw(prompt, b"null")
        await roles.write(prompt, terminal(1))

    roles.script = script
    body = (await http.post("/v1/responses", json=ASK | {"stream": False})).json()
    assert body["output"][0]["content"][0]["text"] == "fine"


async def test_what_a_zombie_writes_is_never_shown(http: httpx.AsyncClient, roles: Roles) -> None:
    async def script(roles: Roles, prompt: PromptAccepted) -> None:
        await roles.begin(prompt)
        await roles.write(prompt, delta(0, "one "))
        await roles.write(prompt, fence(2, "successor"))
        await roles.write(prompt, delta(1, "ZOMBIE "))
        await roles.write(prompt, terminal(2))
        await roles.write(prompt, delta(1, "two", "successor"), terminal(2, writer="successor"))

    roles.script = script
    events = await read(http, "POST", "/v1/responses", json=ASK)
    assert [data["delta"] for name, data in events if name == "response.output_text.delta"] == ["one ", "two"]
    assert [name for name, _ in events] == [*PLAIN, "done"]


async def test_a_waiting_turn_is_queued_until_its_first_fence(http: httpx.AsyncClient, roles: Roles) -> None:
    async def script(roles: Roles, prompt: PromptAccepted) -> None:
        await roles.write(prompt, roles.opened(prompt, waiting=True))
        await asyncio.sleep(0.2)
        await roles.write(prompt, fence())
        await roles.write(prompt, delta(0, "now"), terminal(1))

    roles.script = script
    events = await read(http, "POST", "/v1/responses", json=ASK)
    assert [name for name, _ in events][:3] == ["response.created", "response.queued", "response.in_progress"]
    assert events[1][1]["response"]["status"] == "queued"


async def test_f24_headers_and_first_byte_at_once_then_keep_alives_until_the_answer(
    base_settings: Settings, roles: Roles, ada: Person
) -> None:
    """The field case with its times divided by ten: a first token after 9 s, a comment at least every 1.5 s."""

    async def script(roles: Roles, prompt: PromptAccepted) -> None:
        await asyncio.sleep(5)  # the wait in the log, before anybody has opened the turn
        await roles.begin(prompt)
        await asyncio.sleep(4)
        await roles.write(prompt, delta(0, "late"), terminal(1))

    roles.script = script
    async with (
        running(base_settings, route="lane", keepalive_s=1.5) as edge,
        httpx.AsyncClient(base_url=edge.url, headers=ada.headers, timeout=20) as http,
    ):
        began, moments = time.monotonic(), []
        async with http.stream("POST", "/v1/responses", json=ASK) as response:
            headers_after = time.monotonic() - began
            names = []
            async for name, _ in events_of(response.aiter_lines()):
                moments.append(time.monotonic())
                names.append(name)
    assert headers_after < 1
    assert moments[0] - began < 1
    assert max(later - earlier for earlier, later in itertools.pairwise(moments)) < 1.7
    assert names.count("") >= 5
    assert names[-2:] == ["response.completed", "done"]


async def test_f49_tokens_come_one_by_one_uncompressed_and_marked_for_proxies(
    http: httpx.AsyncClient, roles: Roles
) -> None:
    roles.script = answer(*(f"w{n} " for n in range(30)), gap=0.05)
    moments = []
    async with http.stream("POST", "/v1/responses", json=ASK, headers={"accept-encoding": "gzip, br"}) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        assert "no-cache" in response.headers["cache-control"]
        assert "no-transform" in response.headers["cache-control"]
        assert response.headers["x-accel-buffering"] == "no"
        assert "content-encoding" not in response.headers
        async for chunk in response.aiter_raw():
            if b"output_text.delta" in chunk:
                moments.append(time.monotonic())
    gaps = sorted(later - earlier for earlier, later in itertools.pairwise(moments))
    assert len(moments) > 20
    assert gaps[int(len(gaps) * 0.95)] < 0.15


async def test_resume_gives_exactly_what_the_lost_stream_had_not(http: httpx.AsyncClient, roles: Roles) -> None:
    roles.script = answer(*(f"w{n} " for n in range(40)), gap=0.02)
    seen: list[tuple[str, Any]] = []
    async with http.stream("POST", "/v1/responses", json=ASK) as response:
        async for event in events_of(response.aiter_lines()):
            if event[0]:
                seen.append(event)
            if len(seen) == 15:
                break
    url = f"/v1/responses/{seen[0][1]['response']['id']}"
    last = seen[-1][1]["sequence_number"]
    rest = await read(http, "GET", url, params={"stream": "true", "starting_after": last})
    numbers = [data["sequence_number"] for _, data in seen + rest[:-1]]
    assert numbers == list(range(len(numbers)))
    whole = "".join(data["delta"] for name, data in seen + rest if name == "response.output_text.delta")
    assert whole == "".join(f"w{n} " for n in range(40))
    assert await read(http, "GET", url, params={"stream": "true"}) == seen + rest


async def test_leaving_cancels_nothing_and_cancel_does(http: httpx.AsyncClient, roles: Roles) -> None:
    async def script(roles: Roles, prompt: PromptAccepted) -> None:
        await roles.begin(prompt)
        await roles.write(prompt, delta(0, "partial"))
        await roles.cancelled(prompt)
        await roles.write(prompt, terminal(1, "cancelled"))

    roles.script = script
    async with http.stream("POST", "/v1/responses", json=ASK) as response:
        async for name, data in events_of(response.aiter_lines()):
            if name == "response.created":
                id_ = data["response"]["id"]
            if name == "response.output_text.delta":
                break
    await asyncio.sleep(0.3)
    assert not roles.cancels
    assert (await http.get(f"/v1/responses/{id_}")).json()["status"] == "in_progress"
    assert (await http.get(f"/v1/responses/{id_}")).json()["output"][0]["content"][0]["text"] == "partial"
    assert (await http.post(f"/v1/responses/{id_}/cancel")).status_code == 200
    events = await read(http, "GET", f"/v1/responses/{id_}", params={"stream": "true"})
    assert events[-2][0] == "response.incomplete"
    assert events[-2][1]["response"]["status"] == "cancelled"
    assert events[-2][1]["response"]["output"][0]["status"] == "incomplete"


async def test_background_answers_at_once_and_the_turn_goes_on(http: httpx.AsyncClient, roles: Roles) -> None:
    roles.script = answer("a", "b", gap=0.1)
    body = (await http.post("/v1/responses", json=ASK | {"stream": False, "background": True})).json()
    assert (body["status"], body["background"]) == ("queued", True)
    for _ in range(50):
        shown = (await http.get(f"/v1/responses/{body['id']}")).json()
        if shown["status"] == "completed":
            break
        await asyncio.sleep(0.05)
    assert shown["output"][0]["content"][0]["text"] == "ab"


async def test_two_devices_read_the_same_events(http: httpx.AsyncClient, roles: Roles, edge: Running) -> None:
    roles.script = answer(*(f"w{n} " for n in range(20)), gap=0.02)
    async with http.stream("POST", "/v1/responses", json=ASK) as response:
        events = events_of(response.aiter_lines())
        first = [event async for event in _until(events, "response.created")]
        other = asyncio.create_task(
            read(http, "GET", f"/v1/responses/{first[-1][1]['response']['id']}", params={"stream": "true"})
        )
        first += [event async for event in events if event[0]]
    assert await other == [event for event in first if event[0]]


async def _until(events: AsyncIterator[tuple[str, Any]], name: str) -> AsyncIterator[tuple[str, Any]]:
    async for event in events:
        yield event
        if event[0] == name:
            return


async def test_another_edge_resumes_from_the_id_alone(
    base_settings: Settings, http: httpx.AsyncClient, roles: Roles, ada: Person
) -> None:
    roles.script = answer("a", "b", "c", gap=0.05)
    events = await read(http, "POST", "/v1/responses", json=ASK)
    async with (
        running(base_settings) as second,
        httpx.AsyncClient(base_url=second.url, headers=ada.headers, timeout=20) as client,
    ):
        url = f"/v1/responses/{events[0][1]['response']['id']}"
        assert await read(client, "GET", url, params={"stream": "true"}) == events
