"""Users: each sends a prompt, reads the answer to its end, thinks, and goes on. Closed loop, bounded in time."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import httpx
import websockets

from inference_workers.engine.client import EngineClient
from inference_workers.engine.contract import Generation

DELTA = '"type":"response.output_text.delta"'
LEAVE_S = 60.0
"""How long users have to read their last answers."""
ENDS = ('"type":"response.completed"', '"type":"response.incomplete"', '"type":"response.failed"')


@dataclass(slots=True)
class Turn:
    """When the tokens of one turn came."""

    began: float
    """When it was asked for, by `time.perf_counter`."""
    arrivals: list[float]
    """Of pieces of text, in seconds after `began`: a piece may hold several tokens."""
    tokens: int
    failed: bool = False

    def tokens_within(self, window: tuple[float, float]) -> float:
        """Those of its tokens that came then: all its pieces are taken to hold equally many."""
        within = sum(window[0] <= self.began + arrival < window[1] for arrival in self.arrivals)
        return self.tokens * within / max(len(self.arrivals), 1)

    def ended_within(self, window: tuple[float, float]) -> bool:
        """Its last piece came then."""
        return bool(self.arrivals) and window[0] <= self.began + self.arrivals[-1] < window[1]


@dataclass(slots=True)
class Load:
    """N users for some seconds."""

    users: int
    think_s: float
    duration_s: float
    tokens: int
    warm_up_s: float = 4.0
    turns: list[Turn] = field(default_factory=list)
    first_turns: list[Turn] = field(default_factory=list)
    """Of the users' sessions; most of them fall into the warm-up."""
    window: tuple[float, float] = (0.0, 0.0)
    """What is measured, by `time.perf_counter`."""
    over: bool = False
    """Users ask for nothing more. They read their answers to the end: engines are not left by all at once."""

    async def run(self, user: User, on_warm: Callable[[], None], on_end: Callable[[], None]) -> None:
        """Let all users work; the window begins after the warm-up."""
        tasks = [asyncio.create_task(user(self, number)) for number in range(self.users)]
        await asyncio.sleep(self.warm_up_s)
        on_warm()
        began = time.perf_counter()
        await asyncio.sleep(self.duration_s)
        self.window = (began, time.perf_counter())
        on_end()
        self.over = True
        _, late = await asyncio.wait(tasks, timeout=LEAVE_S)
        for task in late:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError):
                raise result

    async def pause(self) -> None:
        """Think, not all at the same time."""
        if self.think_s:
            await asyncio.sleep(self.think_s * random.uniform(0.5, 1.5))


User = Callable[[Load, int], Coroutine[Any, Any, None]]
"""What one user does: a load, and the user's number in it."""


def engine_user(address: str) -> User:
    """A user that speaks with the engine itself, as the worker does."""
    client = EngineClient(address, "synthetic")

    async def user(load: Load, number: int) -> None:
        await asyncio.sleep(random.uniform(0, 0.5))
        while not load.over:
            began, arrivals = time.perf_counter(), []
            prompt = f"<|im_start|>user\nuser {number} says hello<|im_end|>\n<|im_start|>assistant\n"
            generation = Generation(request_id=uuid4().hex, prompt=prompt, max_tokens=load.tokens)
            async for chunk in client.generate(generation):
                if chunk.text:
                    arrivals.append(time.perf_counter() - began)
            load.turns.append(Turn(began, arrivals, load.tokens))
            await load.pause()

    return user


def parley_user(base_url: str, key: str) -> User:
    """A user with a WebSocket and one conversation."""
    headers = {"authorization": f"Bearer {key}"}

    async def user(load: Load, number: int) -> None:
        await asyncio.sleep(random.uniform(0, 0.5))
        async with httpx.AsyncClient(base_url=base_url, headers=headers, timeout=30) as http:
            conversation = (await http.post("/v1/conversations", json={})).json()["id"]
        url = base_url.replace("http", "ws", 1) + "/v1/responses"
        async with websockets.connect(url, additional_headers=headers, compression=None, max_size=None) as socket:
            first = True
            while not load.over:
                ask = {
                    "type": "response.create",
                    "model": "synthetic",
                    "input": f"user {number} says hello",
                    "conversation": conversation,
                    "max_output_tokens": load.tokens,
                }
                began, arrivals = time.perf_counter(), []
                await socket.send(json.dumps(ask))
                while True:
                    frame = await socket.recv()
                    assert isinstance(frame, str)
                    if DELTA in frame[:80]:
                        arrivals.append(time.perf_counter() - began)
                    elif frame.startswith('{"type":"error"') or any(end in frame[:80] for end in ENDS):
                        break
                # The token limit ends every whole answer.
                end = json.loads(frame)
                usage = (end.get("response") or {}).get("usage") or {}
                failed = end["type"] != "response.incomplete"
                turn = Turn(began, arrivals, usage.get("output_tokens", 0), failed)
                (load.first_turns if first else load.turns).append(turn)
                first = False
                await load.pause()

    return user
