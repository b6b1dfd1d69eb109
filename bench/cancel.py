"""From the request to cancel, at the edge, to the engine's slot being free: what a stopped answer still costs."""

from __future__ import annotations

import asyncio
import json
import random
import time
from contextlib import AsyncExitStack

import httpx
import websockets

from bench.figures import percentile
from bench.load import DELTA
from bench.system import Measured

POLL_S = 0.002
BESIDE = 10
"""Streams that go on beside the one that is cancelled."""
WORDS = 4_000
PERIOD_MS = 50


async def cancels(system: Measured, count: int) -> list[float]:
    """Seconds from POST …/cancel to a free slot, as the engine's own gauge shows it, of so many cancels in turn.

    Others stream beside; each cancel comes at some moment of an answer under way.
    """
    headers = {"authorization": f"Bearer {system.key}"}
    took: list[float] = []
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=system.base_url, headers=headers, timeout=30))
        gauge = await stack.enter_async_context(httpx.AsyncClient(base_url=system.engine_metrics, timeout=5))
        url = system.base_url.replace("http", "ws", 1) + "/v1/responses"
        for _ in range(BESIDE):
            socket = await stack.enter_async_context(
                websockets.connect(url, additional_headers=headers, compression=None, max_queue=None)
            )
            await _begin(socket)
        for _ in range(count):
            await _until(gauge, BESIDE)
            async with websockets.connect(url, additional_headers=headers, compression=None) as socket:
                response = await _begin(socket)
                await asyncio.sleep(random.uniform(0, PERIOD_MS / 1e3))
                await _until(gauge, BESIDE + 1)
                began = time.perf_counter()
                cancelling = asyncio.create_task(http.post(f"/v1/responses/{response}/cancel"))
                await _until(gauge, BESIDE)
                took.append(time.perf_counter() - began)
                (await cancelling).raise_for_status()
    return took


async def report(system: Measured, count: int) -> str:
    """The figures in one line."""
    took = [seconds * 1e3 for seconds in await cancels(system, count)]
    return (
        f"POST cancel to slot free, {BESIDE} streams beside, {count} times: p50 {percentile(took, 0.5):.0f} ms, "
        f"p99 {percentile(took, 0.99):.0f} ms, longest {max(took):.0f} ms"
    )


async def _begin(socket: websockets.ClientConnection) -> str:
    """Have a long answer begin; gives its id once some of it has come."""
    script = json.dumps({"first_ms": 50, "period_ms": PERIOD_MS, "words": WORDS})
    ask = {"type": "response.create", "model": "synthetic", "input": f"::script {script}", "max_output_tokens": WORDS}
    await socket.send(json.dumps(ask))
    response = ""
    async for frame in socket:
        assert isinstance(frame, str)
        if not response:
            response = json.loads(frame)["response"]["id"]
        if DELTA in frame[:80]:
            break
    return response


async def _until(gauge: httpx.AsyncClient, count: int) -> None:
    async with asyncio.timeout(20):
        while await _active(gauge) != count:
            await asyncio.sleep(POLL_S)


async def _active(gauge: httpx.AsyncClient) -> int:
    for line in (await gauge.get("/metrics")).text.splitlines():
        if line.startswith("engine_active_requests{"):
            return int(float(line.rsplit(" ", 1)[1]))
    raise RuntimeError("the engine has no gauge of its slots")
