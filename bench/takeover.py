"""From the end of a worker, killed in the middle of answers, to the next token at each client."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable

import httpx
import websockets

from bench.figures import percentile
from bench.load import DELTA
from bench.system import Measured
from infra.local.find import role_pid, spare_pid

WORKER = ("worker", "--pool", "synthetic")
PERIOD_MS = 100
WORDS = 150
WHOLE = [f"w{number:03d}" for number in range(1, WORDS + 1)]
BETWEEN_S = 5.0
"""From the next tokens to the next kill, at least."""


class Listener:
    """A user who asks again after each answer; it knows when each piece came."""

    def __init__(self) -> None:
        self.arrivals: list[float] = []
        self.broken: str | None = None

    async def listen(self, url: str, headers: dict[str, str]) -> None:
        script = json.dumps({"first_ms": 50, "period_ms": PERIOD_MS, "words": WORDS})
        ask = {"type": "response.create", "model": "synthetic", "input": f"::script {script}"}
        async with websockets.connect(url, additional_headers=headers, compression=None, max_size=None) as socket:
            while True:
                await socket.send(json.dumps(ask | {"max_output_tokens": WORDS + 1}))
                text = ""
                async for frame in socket:
                    if DELTA in frame[:80]:
                        self.arrivals.append(time.perf_counter())
                        text += json.loads(frame)["delta"]
                    elif (event := json.loads(frame))["type"] == "response.completed":
                        break
                    elif event["type"] in ("response.failed", "response.incomplete", "error"):
                        self.broken = f"{event['type']}: {json.dumps(event)[:300]}"
                        return
                if text.split() != WHOLE:
                    self.broken = f"not the whole answer in its order: {text}"
                    return


async def takeovers(system: Measured, streams: int, kills: int) -> tuple[list[float], list[Listener]]:
    """Seconds to the next token of every stream after each kill."""
    url = system.base_url.replace("http", "ws", 1) + "/v1/responses"
    headers = {"authorization": f"Bearer {system.key}"}
    listeners = [Listener() for _ in range(streams)]
    tasks = [asyncio.create_task(listener.listen(url, headers)) for listener in listeners]
    gaps: list[float] = []
    try:
        async with asyncio.timeout(60):
            while not all(listener.arrivals or listener.broken for listener in listeners):
                await asyncio.sleep(0.1)
        for _ in range(kills):
            await asyncio.sleep(BETWEEN_S)
            await _process(spare_pid, system)  # it is a spare that waits, loaded, which is measured
            await asyncio.sleep(1)  # it connects
            os.kill(await _process(role_pid, system), signal.SIGKILL)
            gaps += await _next_tokens(listeners, time.perf_counter())
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return gaps, listeners


async def _process(find: Callable[..., int], system: Measured) -> int:
    """Of the worker or its spare, as soon as there is one."""
    async with asyncio.timeout(120):
        while True:
            try:
                return find(system.settings.kafka.port, *WORKER)
            except LookupError:
                await asyncio.sleep(0.2)


async def _next_tokens(listeners: list[Listener], killed: float) -> list[float]:
    """What was on its way when the worker died still comes at once: the next token is the first after the silence."""
    await asyncio.sleep(0.1)
    seen = [len(listener.arrivals) for listener in listeners]
    async with asyncio.timeout(30):
        while any(len(x.arrivals) == n and x.broken is None for x, n in zip(listeners, seen, strict=True)):
            await asyncio.sleep(0.02)
    return [x.arrivals[n] - killed for x, n in zip(listeners, seen, strict=True) if len(x.arrivals) > n]


async def report(system: Measured, streams: int, kills: int) -> str:
    """The figures in one line. Raises RuntimeError when a stream was not whole."""
    async with httpx.AsyncClient() as http:
        (await http.get(f"{system.base_url}/health/ready")).raise_for_status()
    gaps, listeners = await takeovers(system, streams, kills)
    if broken := [listener.broken for listener in listeners if listener.broken is not None]:
        raise RuntimeError(f"{len(broken)} streams of {streams} were not whole: {broken[0]}")
    return (
        f"worker killed to next token, {streams} streams, {kills} kills: p50 {percentile(gaps, 0.5):.2f} s, "
        f"p99 {percentile(gaps, 0.99):.2f} s, longest {max(gaps):.2f} s; every text whole"
    )
