"""SIGTERM: nobody new, everybody told when to come back, streams that go on elsewhere, and an end in time."""

from __future__ import annotations

import asyncio
import re
import signal
import time
from typing import Any

import httpx
import orjson
import pytest
from edge_stage import Person, Roles, answer, apart
from test_edge_socket import CREATE, OURS, closed, say, whole
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from parley.settings import Settings

pytestmark = pytest.mark.stack

ACTIVE, IDLE = 20, 1_000
EXIT_S = 15.0
HINT = re.compile(r"shutting_down retry_after_ms=(\d+)")
WORDS = [f"w{n:03d} " for n in range(200)]


async def opened(url: str, who: Person, count: int) -> list[ClientConnection]:
    found: list[ClientConnection] = []
    while len(found) < count:
        batch = min(50, count - len(found))
        connecting = (
            connect(url, additional_headers=who.headers, subprotocols=OURS, ping_interval=None, compression=None)
            for _ in range(batch)
        )
        found += await asyncio.gather(*connecting)
    return found


async def comes_back(socket: ClientConnection) -> float:
    """When this client would be back, in seconds of the loop's clock: after its close, as it was told."""
    assert await closed(socket) == 1012
    told = HINT.fullmatch(socket.close_reason or "")
    assert told is not None
    return asyncio.get_running_loop().time() + int(told[1]) / 1000


async def carried_on(first: ClientConnection, elsewhere: str, who: Person) -> list[Any]:
    """All events of an answer whose edge goes away in the middle of it."""
    events = []
    try:
        async for frame in first:
            events.append(orjson.loads(frame))
    except ConnectionClosed:
        pass
    assert first.close_code == 1012
    async with connect(elsewhere, additional_headers=who.headers, subprotocols=OURS) as second:
        last = {"response_id": events[0]["response"]["id"], "starting_after": events[-1]["sequence_number"]}
        await say(second, {"type": "parley:resume", **last})
        return events + await whole(second)


async def test_f47_a_deploy_ends_in_time_and_its_clients_come_back_one_after_the_other(
    base_settings: Settings, roles: Roles, ada: Person
) -> None:
    """Field case F47: SIGTERM with twenty answers under way and a thousand idle sockets."""
    roles.script = answer(*WORDS, gap=0.05)
    async with (
        apart(base_settings, route="lane") as one,
        apart(base_settings, route="lane") as other,
        httpx.AsyncClient(base_url=one.url, headers=ada.headers, timeout=30) as http,
    ):
        active, idle = await opened(one.ws_url, ada, ACTIVE), await opened(one.ws_url, ada, IDLE)
        returns = [asyncio.create_task(comes_back(socket)) for socket in idle]
        for socket in active:
            await say(socket, CREATE)
        streams = [asyncio.create_task(carried_on(socket, other.ws_url, ada)) for socket in active]
        waiting = asyncio.create_task(http.post("/v1/responses", json={"model": "synthetic", "input": "x"}))
        async with asyncio.timeout(20):
            while len(roles.prompts) < ACTIVE + 1:
                await asyncio.sleep(0.05)
        began = time.monotonic()
        one.process.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.5)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.wait_for(asyncio.open_connection("127.0.0.1", one.port), 5)
        assert await asyncio.wait_for(one.process.wait(), 2 * EXIT_S) == 0
        assert time.monotonic() - began < EXIT_S
        moments = sorted(await asyncio.gather(*returns))
        assert moments[-1] - moments[0] > 3
        busiest = max(sum(moment <= other < moment + 1 for other in moments) for moment in moments[::20])
        assert busiest < IDLE / 2
        for events in await asyncio.gather(*streams):
            assert [event["sequence_number"] for event in events] == list(range(len(events)))
            assert "".join(event["delta"] for event in events if "delta" in event) == "".join(WORDS)
        told = (await waiting).json()  # not a stream: it is told what to ask for elsewhere
        assert told["status"] == "in_progress"
        async with httpx.AsyncClient(base_url=other.url, headers=ada.headers) as elsewhere:
            assert (await elsewhere.get(f"/v1/responses/{told['id']}")).status_code == 200


async def test_an_event_stream_ends_with_the_time_to_come_back_and_is_resumed_elsewhere(
    base_settings: Settings, roles: Roles, ada: Person
) -> None:
    roles.script = answer(*WORDS, gap=0.05)
    ask = {"model": "synthetic", "input": "Hello?", "stream": True}
    async with (
        apart(base_settings, route="lane", drain_s=2) as one,
        apart(base_settings, route="lane") as other,
        httpx.AsyncClient(headers=ada.headers, timeout=30) as http,
    ):
        text = ""
        async with http.stream("POST", f"{one.url}/v1/responses", json=ask) as response:
            async for piece in response.aiter_text():
                if not text:
                    one.process.send_signal(signal.SIGTERM)
                text += piece
        last = text.rstrip("\n").rpartition("\n")[2]
        assert re.fullmatch(r"retry: \d+", last)
        assert "[DONE]" not in text
        events = [orjson.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
        url = f"{other.url}/v1/responses/{events[0]['response']['id']}?stream=true"
        number = {"last-event-id": str(events[-1]["sequence_number"])}
        rest = (await http.get(url, headers=number)).text
    assert rest.endswith("data: [DONE]\n\n")
    events += [orjson.loads(line[6:]) for line in rest.splitlines() if line.startswith("data: {")]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert "".join(event["delta"] for event in events if "delta" in event) == "".join(WORDS)


async def test_an_edge_that_ends_refuses_new_work_with_a_retry(
    base_settings: Settings, roles: Roles, ada: Person
) -> None:
    roles.script = answer(*WORDS, gap=0.05)
    ask = {"model": "synthetic", "input": "Hello?"}
    async with (
        apart(base_settings, route="lane", drain_s=3) as one,
        httpx.AsyncClient(base_url=one.url, headers=ada.headers, timeout=30) as http,
        http.stream("POST", "/v1/responses", json=ask | {"stream": True}) as keeps_it,
        httpx.AsyncClient(base_url=one.url, headers=ada.headers, timeout=30) as known,
    ):
        assert keeps_it.status_code == 200
        assert (await known.get("/v1/models")).status_code == 200
        one.process.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.3)
        try:
            refused = await known.post("/v1/responses", json=ask)
        except httpx.TransportError:
            return  # its connection is gone: nothing was taken either
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
        assert "retry-after" in refused.headers
