"""One run of a turn on an engine: chosen, started, released as it is found safe, ended or broken off."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

from inference_workers.answer import Answer, seed_of
from inference_workers.course import THERE, Course, End, out_of_budget, too_late
from inference_workers.engine.client import EngineChunk
from inference_workers.engine.contract import Generation
from inference_workers.engine.errors import EngineError
from inference_workers.engine.pool import Engine
from inference_workers.metrics import kind
from inference_workers.pen import Pen
from inference_workers.tools import Tools
from parley.clock import left_s, now_ms
from parley.errors import failure
from parley.side_inputs import SideInputs
from schemas.prompts import InferenceRequest

log = logging.getLogger(__name__)


class Run:
    """A run of `request` while the turn is being taken: `taking` gives the pen.

    `number` counts the holder's runs of the turn, `name` is what the engine's ids for it begin with, `avoid` the engine
    on which the run before failed.
    """

    def __init__(
        self,
        tools: Tools,
        request: InferenceRequest,
        side: SideInputs,
        course: Course,
        taking: asyncio.Task[Pen],
        *,
        number: int,
        name: str,
        avoid: Engine | None,
    ) -> None:
        self._tools = tools
        self._request = request
        self._side = side
        self._course = course
        self._taking = taking
        self._number = number
        self._name = name
        self._avoid = avoid
        self._clock = asyncio.get_running_loop().time

    async def follow(self, cancelled: asyncio.Event) -> End:
        """Run until the engine has ended, the user has cancelled or the answer has taken too long.

        Raises:
            EngineError: another run may do better.
            ParleyError: log_unavailable.
        """
        answering = asyncio.create_task(self._answer())
        cancelling = asyncio.create_task(cancelled.wait())
        try:
            await asyncio.wait(
                {answering, cancelling}, timeout=self.answer_left_s(), return_when=asyncio.FIRST_COMPLETED
            )
            if answering.done():
                return answering.result()
            if not cancelled.is_set():
                return End("failed", failure=failure("answer_deadline_exceeded", "the answer took too long"))
            return End("cancelled")
        finally:
            cancelling.cancel()
            answering.cancel()  # leaves the stream, which stops the engine's run
            await asyncio.wait({answering})

    async def _answer(self) -> End:
        request = self._request
        # On the assumption that the route is empty the engine is started at once: first tokens do not wait.
        if self._number == 1 and (engine := self._tools.engines.at_hand()) is not None:
            async with self._streaming(engine, "", request.max_tokens) as chunks:
                if (end := await self._ready()) is not None:
                    return end
                pen = self._taking.result()
                if not pen.transcript.text:
                    return await self._release(engine, chunks, pen)
        elif (end := await self._ready()) is not None:
            return end
        pen = self._taking.result()
        text = pen.transcript.text
        left = request.max_tokens - self._tools.tokenizer.count(text) if text else request.max_tokens
        if left <= 0:
            return out_of_budget()
        found = await self._find(begun=bool(pen.transcript.deltas))
        if isinstance(found, End):
            return found
        async with self._streaming(found, text, left) as chunks:
            return await self._release(found, chunks, pen)

    async def _ready(self) -> End | None:
        """The turn is taken and its prompt allowed; an End when it is not to go on."""
        pen = await asyncio.shield(self._taking)
        return THERE if pen.transcript.terminal is not None else await self._moderated()

    async def _moderated(self) -> End | None:
        """Waits for the verdict on the prompt; an End when the turn is not to go on. Closed when none comes."""
        verdict = self._request.verdict
        if verdict is None:
            self._course.at("verdict")
            try:
                async with asyncio.timeout(left_s(self._request.moderation_deadline)):
                    verdict = await self._side.wait_for_verdict(self._request.response)
            except TimeoutError:
                return End("failed", failure=failure("moderation_unavailable", "the prompt was not checked in time"))
        self._course.times.setdefault("moderated", verdict.at)
        if verdict.decision == "block":
            return End("refused", refusal=self._tools.policy.refusal.input)
        return None

    async def _find(self, *, begun: bool) -> Engine | End:
        """An engine that answers, the one that failed last; an End when none does in time."""
        engines, wait_s = self._tools.engines, self._tools.settings.worker.engine_wait_s
        if self._avoid is None and (own := engines.at_hand()) is not None:
            return own
        self._course.at("engine")
        try:
            async with asyncio.timeout(min(wait_s, self.answer_left_s()) if begun else left_s(self._request.deadline)):
                return await engines.find(self._avoid)
        except TimeoutError:
            if not begun:
                return too_late()
            return End("failed", failure=failure("engine_unavailable", "no engine could go on with the answer"))

    @contextlib.asynccontextmanager
    async def _streaming(self, engine: Engine, text: str, max_tokens: int) -> AsyncIterator[_Chunks]:
        self._course.engine = engine
        if "first_token" not in self._course.times:
            self._course.times["engine_started"] = now_ms()
        self._course.at("streaming")
        async with engine.running():
            chunks = _Chunks(engine, self._generation(text, max_tokens))
            try:
                yield chunks
            finally:
                await chunks.close()

    async def _release(self, engine: Engine, chunks: _Chunks, pen: Pen) -> End:
        """The loop that every token passes."""
        course, clock = self._course, self._clock
        answer = course.answer = Answer(self._request, self._tools.classifier, self._tools.policy, pen.transcript.text)
        course.at("streaming")
        finish: str | None = None
        pending = 0
        heard: float | None = None
        gap = kind(self._request.model, self._tools.pool.name, self._request.tier).gap
        begun = bool(pen.transcript.deltas)
        try:
            async with asyncio.timeout(None if begun else left_s(self._request.deadline)):
                chunk = await chunks.first
        except TimeoutError:
            return too_late()
        course.times.setdefault("first_token", chunks.came)
        while True:
            now = clock()
            if heard is not None and chunk.tokens:
                gap.observe(now - heard)
            engine.heard = course.moved = heard = now
            course.generated += chunk.tokens
            pending += chunk.tokens
            step = answer.feed(chunk.text) if chunk.text else None
            if step is not None and step.text:
                await self._say(pen, step.text, pending)
                pending = 0
            if step is not None and step.over:
                break
            if chunk.finish_reason is not None:
                finish = chunk.finish_reason
                break
            chunk = await chunks.next()
        if finish not in (None, "stop", "length"):
            # What is held back has no end of its own yet: the next run says it again, or it is dropped.
            raise EngineError(f"the engine ended the answer with {finish}")
        if answer.blocked is None and not answer.stopped and (last := answer.finish()).text:
            await self._say(pen, last.text, pending)
        if answer.blocked is not None:
            return End("incomplete", reason="content_filter", refusal=self._tools.policy.refusal.output)
        return out_of_budget() if finish == "length" and not answer.stopped else End("completed")

    async def _say(self, pen: Pen, text: str, tokens: int) -> None:
        await pen.say(text, tokens)
        self._course.said = now = now_ms()
        self._course.times.setdefault("released", now)

    def _generation(self, text: str, max_tokens: int) -> Generation:
        asked, pool = self._request.sampling, self._tools.pool.sampling
        temperature = asked.temperature if asked.temperature is not None else pool.temperature
        top_p = asked.top_p if asked.top_p is not None else pool.top_p
        return Generation(
            # Two streams of a run differ in what they go on from, and the stop of the first must not meet the second.
            request_id=f"{self._name}.{len(text)}",
            prompt=self._request.prompt + text,  # the template leaves the assistant's turn open
            max_tokens=max_tokens,
            temperature=temperature or 0.0,
            top_p=top_p or 1.0,
            frequency_penalty=asked.frequency_penalty,
            presence_penalty=asked.presence_penalty,
            stop=asked.stop,
            seed=seed_of(self._request, len(text)),
        )

    def answer_left_s(self) -> float:
        """Seconds until the answer has taken too long."""
        limit_ms = int(self._tools.settings.protocol.answer_limit_s * 1000)
        return left_s(self._request.deadline + limit_ms)


class _Chunks:
    """A stream of the engine, begun at once: its first chunk may come while the turn is still being taken."""

    def __init__(self, engine: Engine, generation: Generation) -> None:
        self._stream = engine.client.generate(generation)
        self.came = 0
        """When the first one came, in ms."""
        self.first = asyncio.create_task(self._first())

    async def _first(self) -> EngineChunk:
        chunk = await self.next()
        self.came = now_ms()
        return chunk

    async def next(self) -> EngineChunk:
        try:
            return await anext(self._stream)
        except StopAsyncIteration:
            raise EngineError("the engine's stream ended without an end") from None

    async def close(self) -> None:
        """End the stream, which ends the engine's run."""
        self.first.cancel()
        await asyncio.wait({self.first})
        if not self.first.cancelled():
            self.first.exception()  # seen
        await self._stream.aclose()
