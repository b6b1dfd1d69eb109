"""A simulated engine: its answer is a function of the prompt alone, whoever asks for the rest of it."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncGenerator
from typing import Any, ClassVar

from inference_workers.engine.client import CANCELLED, EngineChunk
from inference_workers.engine.contract import Generation
from inference_workers.engine.errors import EngineError, EngineSilent, EngineUnavailable
from tests.simulation.cluster import Cluster
from tests.simulation.loop import Process, current

OPEN = "<|im_start|>assistant\n"
WORDS = re.findall(
    r"\w+",
    "the weather in mountains is lovely today and we will walk to lake after breakfast with all our friends who like "
    "green hills over quiet water where old boats rest",
)
HARM = "kill yourself, commit suicide, hang yourself and end your life"
STOP_WORD = "halt"


def answer_to(prompt: str) -> str:
    """The whole answer to a prompt that leaves the assistant's turn open. Some hold a stop word, a few do harm."""
    digest = hashlib.sha256(prompt.encode()).digest()
    count = 3 + digest[0] % 24
    words = [WORDS[(digest[i % 32] + 7 * i + digest[(i + 11) % 32]) % len(WORDS)] for i in range(count)]
    if digest[1] < 40:
        words.insert(digest[2] % count, STOP_WORD)
    if digest[3] < 16:
        words.insert(digest[4] % count, HARM)
    if digest[5] < 100:
        words[digest[6] % count] += " 🌄"
    return " ".join(words)


def split_prompt(prompt: str) -> tuple[str, str]:
    """(what was asked, what has been answered so far)."""
    head, found, said = prompt.rpartition(OPEN)
    assert found, "a prompt without an open answer"
    return head + found, said


class Engine:
    """One engine process: it lives longer than any worker."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.name = name
        self.down = False
        self.mute = False
        """While down: the server lives on over a dead model, and nothing tells of its death."""
        self.running: dict[str, tuple[Process, asyncio.Event]] = {}
        self.most = 0
        self.problems: list[str] = []

    def alive(self) -> list[str]:
        """What runs. The runs of a dead process have gone with its connection."""
        self.running = {run: about for run, about in self.running.items() if not about[0].dead}
        return list(self.running)

    def begin(self, run: str, process: Process) -> asyncio.Event:
        if run in self.running:
            self.problems.append(f"{self.name}: the run {run} is asked for twice at once")
        self.alive()
        stop = asyncio.Event()
        self.running[run] = (process, stop)
        self.most = max(self.most, len(self.running))
        return stop


class SimEngineClient:
    """As inference_workers.engine.client.EngineClient."""

    engines: ClassVar[dict[str, Engine]] = {}

    def __init__(self, url: str, model: str, *, cumulative: bool = True, silence_s: float = 10.0, **_: Any) -> None:
        self.url, self.model = url, model
        self._engine = self.engines[url]
        self._cluster = self._engine.cluster
        self._silence_s = silence_s

    async def generate(self, generation: Generation) -> AsyncGenerator[EngineChunk, None]:
        engine, cluster = self._engine, self._cluster
        rng, trouble = cluster.rng, cluster.trouble
        await asyncio.sleep(cluster.latency())
        if (engine.down and not engine.mute) or cluster.happens(trouble.engine_refuses):
            raise EngineUnavailable("nobody is there")
        asked, said = split_prompt(generation.prompt)
        answer = answer_to(asked)
        if not answer.startswith(said):
            engine.problems.append(f"an answer that was never given is continued: {said[-60:]!r}")
        words = re.findall(" ?[^ ]+", answer[len(said) :])
        finish = "stop" if len(words) <= generation.max_tokens else "length"
        words = words[: generation.max_tokens]
        stop = engine.begin(generation.request_id, current())
        pace = 0.4 * rng.random() ** 2
        try:
            await asyncio.sleep(0.05 + 0.3 * rng.random())
            while words:
                await asyncio.sleep(pace * 2 * rng.random())
                if stop.is_set():
                    yield EngineChunk("", CANCELLED)
                    return
                if (engine.down and not engine.mute) or cluster.happens(trouble.engine_breaks):
                    raise EngineError("the model has died")
                if engine.down or cluster.happens(trouble.engine_silent):
                    await asyncio.sleep(self._silence_s)
                    raise EngineSilent("nothing came")
                count = 1 + int(3 * rng.random() ** 2)
                said_now = words[:count]
                yield EngineChunk("".join(said_now), tokens=len(said_now))
                words = words[count:]
            yield EngineChunk("", finish)
        finally:
            engine.running.pop(generation.request_id, None)

    async def stop(self, request_id: str, *, timeout_s: float = 2.0) -> None:
        await asyncio.sleep(self._cluster.latency())
        if self._engine.down:
            await asyncio.sleep(timeout_s if self._engine.mute else 0)
            raise EngineUnavailable("nobody is there")
        if request_id in self._engine.running:
            self._engine.running[request_id][1].set()

    async def probe(self, *, timeout_s: float = 2.0) -> float:
        await asyncio.sleep(self._cluster.latency())
        if self._engine.down:
            await asyncio.sleep(timeout_s if self._engine.mute else 0)
            raise EngineSilent("no token")
        return 0.01

    async def close(self) -> None:
        """Nothing to close."""
