"""From opening a new socket, after one was lost in mid-answer, to the first event that was missing."""

from __future__ import annotations

import asyncio
import json
import random
import time
from contextlib import AsyncExitStack
from typing import Any

import httpx
import websockets

from bench.figures import percentile
from bench.system import Measured
from infra.local.beside import edge_beside

BESIDE = 10
"""Streams that go on beside the one that is resumed."""
PERIOD_MS = 50
AWAY_S = (0.2, 0.5)
"""How long a client is away: several tokens are missing when it comes back."""


async def resumes(system: Measured, first: str, then: str, conversation: str | None, count: int) -> list[float]:
    """Seconds of so many resumes, of answers asked for at one address and resumed at another.

    With a conversation the answers are on its own topic, without one on a lane.
    """
    headers = {"authorization": f"Bearer {system.key}"}
    took = []
    for _ in range(count):
        async with websockets.connect(first, additional_headers=headers, compression=None) as socket:
            await socket.send(_ask(conversation))
            seen: list[dict[str, Any]] = []
            while len(seen) < random.randint(10, 20):
                seen.append(json.loads(await socket.recv()))
            socket.transport.abort()
        await asyncio.sleep(random.uniform(*AWAY_S))
        response, last = seen[0]["response"]["id"], seen[-1]["sequence_number"]
        began = time.perf_counter()
        protocols = [websockets.Subprotocol("parley.v1")]
        async with websockets.connect(
            then, additional_headers=headers, subprotocols=protocols, compression=None, proxy=None
        ) as socket:
            await socket.send(json.dumps({"type": "parley:resume", "response_id": response, "starting_after": last}))
            event = json.loads(await socket.recv())
            took.append(time.perf_counter() - began)
            assert event["sequence_number"] == last + 1, event
            await socket.send(json.dumps({"type": "parley:cancel", "response_id": response}))
            while json.loads(await socket.recv())["type"] != "response.incomplete":
                pass
    return took


async def report(system: Measured, count: int) -> str:
    """The figures, a line for each way."""
    headers = {"authorization": f"Bearer {system.key}"}
    own = system.base_url.replace("http", "ws", 1) + "/v1/responses"
    lines = []
    async with AsyncExitStack() as stack:
        log = system.settings.data / "second-edge.log"
        other = await stack.enter_async_context(edge_beside(system.settings, log))
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=system.base_url, headers=headers))
        conversation = (await http.post("/v1/conversations", json={})).json()["id"]
        for _ in range(BESIDE):
            socket = await stack.enter_async_context(
                websockets.connect(own, additional_headers=headers, compression=None, max_queue=None)
            )
            await socket.send(_ask(None))
        for where, address in (("the same edge", own), ("another edge", other.ws_url)):
            for route, named in (("lane", None), ("session topic", conversation)):
                await resumes(system, own, address, named, 5)  # warms up
                took = [each * 1e3 for each in await resumes(system, own, address, named, count)]
                lines.append(
                    f"resume on {where}, {route}, {count} times: p50 {percentile(took, 0.5):.0f} ms, "
                    f"p99 {percentile(took, 0.99):.0f} ms, longest {max(took):.0f} ms"
                )
    return "\n".join(lines)


def _ask(conversation: str | None) -> str:
    script = json.dumps({"first_ms": 20, "period_ms": PERIOD_MS, "words": 4_000})
    ask = {"type": "response.create", "model": "synthetic", "input": f"::script {script}", "max_output_tokens": 4_000}
    return json.dumps(ask | ({"conversation": conversation} if conversation else {}))
