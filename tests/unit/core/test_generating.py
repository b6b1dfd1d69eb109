"""A run of a turn on an engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

from core_events import ROUTE, SESSION, delta, fence, request, response

from inference_workers.course import Course
from inference_workers.engine.client import EngineChunk
from inference_workers.engine.contract import Generation
from inference_workers.engine.pool import Engine
from inference_workers.generating import Run
from inference_workers.pen import Pen
from parley.clock import now_ms
from parley.safety.classifier import Classifier
from parley.safety.policy import Policy
from parley.settings import ProtocolSettings, Settings
from parley.side_inputs import SideInputs
from parley.tokenizers import Words
from parley.transcript import Transcript
from schemas.prompts import Verdict


class Client:
    """An engine that says one word and ends."""

    url = "engine:1"

    def __init__(self) -> None:
        self.asked: list[Generation] = []

    async def generate(self, generation: Generation) -> AsyncGenerator[EngineChunk, None]:
        self.asked.append(generation)
        yield EngineChunk("three", "stop")


class Lane:
    """A producer of one partition."""

    def generation(self, *_: Any) -> int:
        return 0

    async def post(self, *_: Any, **__: Any) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().create_future()


async def test_a_run_that_finds_text_on_the_route_begins_again_under_an_id_of_its_own(
    classifier: Classifier, policy: Policy
) -> None:
    """The engine was started on the assumption that there is none. Its stop is on the way, and works by the id."""
    client, settings = Client(), Settings()
    engine = Engine(client)  # type: ignore[arg-type]
    tools: Any = SimpleNamespace(
        settings=settings,
        pool=settings.topics.pools["synthetic"],
        engines=SimpleNamespace(at_hand=lambda: engine),
        tokenizer=Words(),
        classifier=classifier,
        policy=policy,
    )
    allowed = Verdict(
        response=response(1), session=SESSION, stage="input", decision="allow", policy="p", model="m", at=5
    )
    transcript = Transcript()
    transcript.apply(fence())
    transcript.apply(delta(0, "one two "))
    transcript.apply(mine := fence((1, 1, 2, 1), "w2"))

    async def take() -> Pen:
        await asyncio.sleep(0.01)
        return Pen(Lane(), response(1), ROUTE, transcript)  # type: ignore[arg-type]

    taking = asyncio.create_task(take())
    asked = request(verdict=allowed, max_tokens=10, deadline=now_ms() + 5_000)
    side = SideInputs(SimpleNamespace(), 0, ProtocolSettings())  # type: ignore[arg-type]
    run = Run(tools, asked, side, Course(), taking, number=1, name="r:1.1.2.1", avoid=None)
    end = await run.follow(asyncio.Event())

    assert end.kind == "completed"
    assert transcript.holds(mine)
    assert transcript.text == "one two three"
    first, second = client.asked
    assert second.prompt == first.prompt + "one two "
    assert first.request_id != second.request_id
