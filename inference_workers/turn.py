"""One turn under one request: taken, run on the engine, released as it is found safe, ended, proved.

    waiting for a slot ─▶ taking ─▶ (verdict) ─▶ streaming ─▶ terminal ─▶ proof ─▶ TurnEnded
          │                 └─ a terminal is there: only TurnEnded is repeated
          └─ cancelled, refused or too late: taken all the same, to be ended

Any failed send: fence again with run+1 and go on from what the log says. Nothing of a turn is sent after a failed
record of it. (protocol.md, sections 3 and 7.)
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from aiokafka.structs import RecordMetadata

from inference_workers.answer import Answer, seed_of
from inference_workers.engine.client import EngineChunk
from inference_workers.engine.contract import Generation
from inference_workers.engine.errors import EngineError
from inference_workers.tools import Tools
from parley.clock import now_ms
from parley.endings import turn_ended
from parley.errors import ParleyError, failure
from parley.log.group import Held
from parley.log.ranges import RouteGone
from parley.log.taking import take_turn
from parley.retrying import pause_s
from parley.side_inputs import SideInputs
from parley.transcript import Transcript
from schemas.base import Failure, Timings, Usage, epoch_of
from schemas.prompts import InferenceRequest, Verdict
from schemas.routes import Delta, Fence, Terminal, TerminalKind, encode_delta, encode_route_record

log = logging.getLogger(__name__)


class Superseded(Exception):
    """Somebody greater has the turn: it is let go, its offset too."""


@dataclass(frozen=True, slots=True)
class End:
    """How a run of a turn came to its end."""

    kind: TerminalKind
    reason: str | None = None
    failure: Failure | None = None
    refusal: str | None = None


_THERE = End("completed")
"""Stands for the terminal that the route already has: nobody looks at it."""


def _too_late() -> End:
    return End("failed", failure=failure("start_deadline_exceeded", "no engine answered in time: try again"))


class Turn:
    """Runs one request to its end."""

    def __init__(self, tools: Tools, held: Held, side: SideInputs, request: InferenceRequest) -> None:
        self._tools = tools
        self._held = held
        self._side = side
        self.request = request
        self._cancelled = asyncio.Event()
        self._failed = False
        """A record of the current run was not acknowledged."""
        self._generated = 0
        self._times: dict[str, int] = {"taken": now_ms()}
        self._decided: Answer | None = None
        self._key = request.response.encode()

    async def run(self) -> None:
        """To the end of the turn; returns when its TurnEnded is acknowledged, or the turn is somebody else's."""
        self._side.on_cancel(self.request.response, self._cancelled.set)
        run, engine_failures = 0, 0
        hopeless: Failure | None = None
        try:
            while True:
                run += 1
                self._failed = False
                try:
                    await self._attempt(run, hopeless)
                    return
                except Superseded:
                    log.info("a turn was taken by somebody greater")
                    return
                except RouteGone as gone:
                    # Nobody can say what was shown. The orchestrator, who answers for the end, ends it by its age.
                    log.warning("a turn is let go: %s", gone)
                    return
                except EngineError as error:
                    engine_failures += 1
                    log.warning("run %d of a turn failed in the engine: %s", run, error)
                    if not error.retryable or engine_failures >= self._tools.settings.worker.runs_limit:
                        hopeless = failure(error.kind.code, "the model could not answer")
                    else:
                        await asyncio.sleep(pause_s(engine_failures))  # an engine that restarts needs a moment
                except ParleyError as error:
                    log.warning("run %d of a turn lost the log: %s", run, error)
                    await asyncio.sleep(pause_s(min(run, 6)))
        finally:
            self._side.off_cancel(self.request.response, self._cancelled.set)

    async def _attempt(self, run: int, hopeless: Failure | None) -> None:
        request, tools = self.request, self._tools
        fence = Fence(epoch=epoch_of(request.dispatch, self._held.takeover, run), writer=secrets.token_hex(4))
        taking = asyncio.create_task(take_turn(tools.tokens, tools.ranges, request.response, request.route, fence))
        try:
            async with self._queueing() as admitted:
                transcript = None if admitted.is_set() else await self._taken(taking)
                if transcript is not None and transcript.terminal is not None:
                    end = _THERE
                elif transcript is not None and not await self._admission(admitted, bool(transcript.deltas)):
                    end = End("cancelled") if self._cancelled.is_set() else _too_late()
                elif hopeless is not None:
                    transcript, end = await self._taken(taking), End("failed", failure=hopeless)
                else:
                    transcript, end = await self._stream(taking, run)
            await self._end(transcript, end)
        finally:
            taking.cancel()

    @staticmethod
    async def _taken(taking: asyncio.Task[Transcript | None]) -> Transcript:
        transcript = await asyncio.shield(taking)
        if transcript is None:
            raise Superseded
        return transcript

    @contextlib.asynccontextmanager
    async def _queueing(self) -> AsyncGenerator[asyncio.Event, None]:
        """Waits for a slot of the engine, or has one: the event tells."""
        admission, request = self._tools.admission, self.request
        admitted = asyncio.Event()
        admission.enter(request.response, request.tier, request.deadline, now_ms(), admitted.set)
        try:
            yield admitted
        finally:
            if admitted.is_set():
                admission.leave()
            else:
                admission.withdraw(request.response)

    async def _admission(self, admitted: asyncio.Event, begun: bool) -> bool:
        """Whether there is a slot before it is too late, or the user has cancelled. What has begun waits longer."""
        waits = [asyncio.create_task(event.wait()) for event in (admitted, self._cancelled)]
        try:
            left = self._answer_left_s() if begun else self._left_s(self.request.deadline)
            await asyncio.wait(waits, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        return admitted.is_set()

    # -- the engine ---------------------------------------------------------------------------------------------------

    async def _stream(self, taking: asyncio.Task[Transcript | None], run: int) -> tuple[Transcript, End]:
        """Run the engine and release what may be; gives the fold with what was sent, and how it ended."""
        engine = asyncio.create_task(self._from_engine(taking, run))
        cancelled = asyncio.create_task(self._cancelled.wait())
        try:
            await asyncio.wait({engine, cancelled}, timeout=self._answer_left_s(), return_when=asyncio.FIRST_COMPLETED)
            if engine.done():
                return engine.result()
            engine.cancel()  # ends the stream, and with it the engine's run
            await asyncio.wait({engine})
            if not self._cancelled.is_set():
                slow = failure("answer_deadline_exceeded", "the answer took too long")
                return await self._taken(taking), End("failed", failure=slow)
            # A stop request frees the slot at once; the end of a stream is noticed by engines only now and then.
            with contextlib.suppress(EngineError):
                await self._tools.engine.stop(self._run_id(run))
            return await self._taken(taking), End("cancelled")
        finally:
            cancelled.cancel()
            engine.cancel()

    async def _from_engine(self, taking: asyncio.Task[Transcript | None], run: int) -> tuple[Transcript, End]:
        request, tools = self.request, self._tools
        # On the assumption that the route is empty the engine is started at once: first tokens do not wait.
        stream: AsyncGenerator[EngineChunk, None] | None = None
        first: asyncio.Task[EngineChunk] | None = None
        if run == 1:
            stream = tools.engine.generate(self._generation("", request.max_tokens, run))
            first = asyncio.create_task(_next(stream))
        try:
            transcript = await self._taken(taking)
            if transcript.terminal is not None:
                return transcript, _THERE
            if (refused := await self._moderated()) is not None:
                return transcript, refused
            text = transcript.text
            if text and stream is not None:
                await self._abandon(stream, first)
                stream = first = None
            left = request.max_tokens - tools.tokenizer.count(text) if text else request.max_tokens
            if left <= 0:
                return transcript, End("incomplete", reason="max_output_tokens")
            if stream is None:
                stream = tools.engine.generate(self._generation(text, left, run))
            answer = self._decided = Answer(request, tools.classifier, tools.policy, text)
            return transcript, await self._release(stream, first, answer, transcript)
        finally:
            if stream is not None:
                await self._abandon(stream, first)

    async def _release(
        self,
        stream: AsyncGenerator[EngineChunk, None],
        first: asyncio.Task[EngineChunk] | None,
        answer: Answer,
        transcript: Transcript,
    ) -> End:
        """The loop that every token passes."""
        finish: str | None = None
        pending = 0
        begun = bool(transcript.deltas)
        try:
            async with asyncio.timeout(None if begun else self._left_s(self.request.deadline)):
                chunk = await (first or _next(stream))
        except TimeoutError:
            return _too_late()
        self._times.setdefault("first_token", now_ms())
        while True:
            self._generated += 1
            pending += 1
            step = answer.feed(chunk.text) if chunk.text else None
            if step is not None and step.text:
                await self._say(transcript, step.text, pending)
                pending = 0
            if step is not None and step.over:
                break
            if chunk.finish_reason is not None:
                finish = chunk.finish_reason
                break
            chunk = await _next(stream)
        if answer.blocked is None and not answer.stopped:
            last = answer.finish()
            if last.text:
                await self._say(transcript, last.text, pending)
        if answer.blocked is not None:
            return End("incomplete", reason="content_filter", refusal=self._tools.policy.refusal.output)
        if answer.stopped or finish == "stop":
            return End("completed")
        if finish == "length":
            return End("incomplete", reason="max_output_tokens")
        raise EngineError(f"the engine ended the answer with {finish}")

    async def _abandon(
        self, stream: AsyncGenerator[EngineChunk, None], first: asyncio.Task[EngineChunk] | None
    ) -> None:
        if first is not None:
            first.cancel()
            await asyncio.wait({first})
        await stream.aclose()

    async def _moderated(self) -> End | None:
        """Waits for the verdict on the prompt; an End when the turn is not to go on. Closed when none comes."""
        verdict: Verdict | None = self.request.verdict
        if verdict is None:
            try:
                async with asyncio.timeout(self._left_s(self.request.moderation_deadline)):
                    verdict = await self._side.wait_for_verdict(self.request.response)
            except TimeoutError:
                return End("failed", failure=failure("moderation_unavailable", "the prompt was not checked in time"))
        self._times.setdefault("moderated", verdict.at)
        if verdict.decision == "block":
            return End("refused", refusal=self._tools.policy.refusal.input)
        return None

    def _run_id(self, run: int) -> str:
        """The engine's id of a run: unique, since a stop works by it."""
        dispatch = self.request.dispatch
        return f"{self.request.response}:{dispatch[0]}.{dispatch[1]}.{self._held.takeover}.{run}"

    def _generation(self, text: str, max_tokens: int, run: int) -> Generation:
        asked, pool = self.request.sampling, self._tools.pool.sampling
        temperature = asked.temperature if asked.temperature is not None else pool.temperature
        top_p = asked.top_p if asked.top_p is not None else pool.top_p
        return Generation(
            request_id=self._run_id(run),
            prompt=self.request.prompt + text,  # the template leaves the assistant's turn open
            max_tokens=max_tokens,
            temperature=temperature or 0.0,
            top_p=top_p or 1.0,
            frequency_penalty=asked.frequency_penalty,
            presence_penalty=asked.presence_penalty,
            stop=asked.stop,
            seed=seed_of(self.request, len(text)),
        )

    # -- the route ----------------------------------------------------------------------------------------------------

    async def _say(self, transcript: Transcript, text: str, tokens: int) -> None:
        """Send a delta without waiting for its acknowledgement."""
        self._check()
        fence = transcript.fence
        assert fence is not None
        seq, route = transcript.seq, self.request.route
        await self._tools.tokens.post(
            route.topic,
            encode_delta(fence.writer, seq, text, tokens),
            key=self._key,
            partition=route.partition,
            on_done=self._sent,
        )
        transcript.apply(Delta(writer=fence.writer, seq=seq, text=text, tokens=tokens))
        self._times.setdefault("released", now_ms())

    def _sent(self, done: asyncio.Future[RecordMetadata]) -> None:
        if done.cancelled() or done.exception() is not None or done.result().offset < 0:
            self._failed = True

    def _check(self) -> None:
        if self._failed:
            raise ParleyError("log_unavailable", "a record of the turn was not acknowledged")

    async def _end(self, transcript: Transcript, end: End) -> None:
        """Terminal, proof, TurnEnded: each after the one before it."""
        request, tools = self.request, self._tools
        if transcript.terminal is None:
            self._check()
            fence = transcript.fence
            assert fence is not None
            terminal = Terminal(
                writer=fence.writer,
                seq=transcript.seq,
                kind=end.kind,
                reason=end.reason,
                failure=end.failure,
                refusal=end.refusal,
                model=request.model,
                usage=Usage(
                    input_tokens=request.prompt_tokens,
                    output_tokens=tools.tokenizer.count(transcript.text) if transcript.text else 0,
                    generated_tokens=self._generated,
                ),
                ended_at=now_ms(),
            )
            await tools.tokens.send(
                request.route.topic,
                encode_route_record((terminal,)),
                key=self._key,
                partition=request.route.partition,
            )
            self._check()
            transcript.apply(terminal)
            await self._held.prove()
        ended = turn_ended(
            request,
            transcript,
            request.dispatch,
            at=now_ms(),
            timings=Timings(
                accepted=request.timings.accepted, dispatched=request.timings.dispatched, ended=now_ms(), **self._times
            ),
            engine=tools.engine.url,
            model_revision=tools.pool.revision,
            template=request.template,
            policy=tools.policy.version,
            seed=request.sampling.seed,
        )
        await tools.log_end(ended, self._held.partition)
        if self._decided is not None:
            with contextlib.suppress(ParleyError):
                await tools.post_verdict(self._output_verdict(self._decided), self._held.partition)

    def _output_verdict(self, answer: Answer) -> Verdict:
        decision = answer.decision
        return Verdict(
            response=self.request.response,
            session=self.request.session,
            stage="output",
            decision=decision.action,
            categories=decision.categories,
            scores={name: round(score, 4) for name, score in decision.scores.items()},
            policy=self._tools.policy.version,
            model=self._tools.classifier.version,
            at=now_ms(),
        )

    @staticmethod
    def _left_s(deadline_ms: int) -> float:
        return max(0.0, (deadline_ms - now_ms()) / 1000)

    def _answer_left_s(self) -> float:
        limit_ms = int(self._tools.settings.protocol.answer_limit_s * 1000)
        return self._left_s(self.request.deadline + limit_ms)


async def _next(stream: AsyncGenerator[EngineChunk, None]) -> EngineChunk:
    try:
        return await anext(stream)
    except StopAsyncIteration:
        raise EngineError("the engine's stream ended without an end") from None
