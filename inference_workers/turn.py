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
from inference_workers.tools import Tools, now_ms
from parley.context import MIN_ANSWER_TOKENS
from parley.endings import turn_ended
from parley.errors import ParleyError, failure
from parley.log.group import Held
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
        run = 0
        engine_failures = 0
        try:
            while True:
                run += 1
                self._failed = False
                try:
                    await self._attempt(run, last=engine_failures >= self._tools.settings.worker.runs_limit)
                    return
                except Superseded:
                    log.info("a turn was taken by somebody greater")
                    return
                except EngineError as error:
                    engine_failures += 1
                    log.warning("run %d of a turn failed in the engine: %s", run, error)
                except ParleyError as error:
                    log.warning("run %d of a turn lost the log: %s", run, error)
                    await asyncio.sleep(pause_s(min(run, 6)))
        finally:
            self._side.on_cancel(self.request.response, None)

    async def _attempt(self, run: int, last: bool) -> None:
        request = self.request
        fence = Fence(
            epoch=epoch_of(request.dispatch, self._held.takeover, run), writer=secrets.token_hex(4)
        )
        taking = asyncio.create_task(
            take_turn(self._tools.producer, self._tools.ranges, request.response, request.route, fence)
        )
        try:
            async with self._slot():
                if last:
                    transcript = await self._taken(taking)
                    end = End("failed", failure=failure("engine_unavailable", "the model did not answer"))
                else:
                    transcript, end = await self._stream(taking, run)
        except TimeoutError:  # no slot in time
            transcript = await self._taken(taking)
            late = failure("start_deadline_exceeded", "no engine had room in time: try again")
            end = End("cancelled") if self._cancelled.is_set() else End("failed", failure=late)
        finally:
            if not taking.done():
                taking.cancel()
        await self._end(transcript, end)

    @staticmethod
    async def _taken(taking: asyncio.Task[Transcript | None]) -> Transcript:
        transcript = await asyncio.shield(taking)
        if transcript is None:
            raise Superseded
        return transcript

    @contextlib.asynccontextmanager
    async def _slot(self) -> AsyncGenerator[None, None]:
        """A slot of the engine. Raises TimeoutError when none is free by the deadline, or the turn is cancelled."""
        admission, request = self._tools.admission, self.request
        admitted = asyncio.Event()
        admission.enter(request.response, request.tier, request.deadline, now_ms(), admitted.set)
        try:
            if not admitted.is_set():
                # A cancelled turn need not wait: it is ended without a slot.
                waits = [asyncio.create_task(e.wait()) for e in (admitted, self._cancelled)]
                try:
                    await asyncio.wait(
                        waits, timeout=self._left_s(request.deadline), return_when=asyncio.FIRST_COMPLETED
                    )
                finally:
                    for wait in waits:
                        wait.cancel()
            if not admitted.is_set():
                raise TimeoutError
            yield
        finally:
            if admitted.is_set():
                admission.leave()
            else:
                admission.withdraw(request.response)

    # -- the engine ---------------------------------------------------------------------------------------------------

    async def _stream(self, taking: asyncio.Task[Transcript | None], run: int) -> tuple[Transcript, End]:
        """Run the engine and release what may be; gives the fold with what was sent, and how it ended."""
        engine = asyncio.create_task(self._from_engine(taking, run))
        cancelled = asyncio.create_task(self._cancelled.wait())
        try:
            limit = self._tools.settings.protocol.answer_limit_s
            await asyncio.wait({engine, cancelled}, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
            if engine.done():
                return engine.result()
            engine.cancel()  # ends the stream, and with it the engine's run; the slot is free
            with contextlib.suppress(asyncio.CancelledError):
                await engine
            if self._cancelled.is_set():
                # The stop request is quicker than the end of the stream, which engines look for now and then.
                with contextlib.suppress(EngineError):
                    await self._tools.engine.stop(self._run_id(run))
                end = End("cancelled")
            else:
                slow = failure("answer_deadline_exceeded", "the answer took too long")
                end = End("failed", failure=slow)
            return await self._taken(taking), end
        finally:
            cancelled.cancel()
            if not engine.done():
                engine.cancel()

    async def _from_engine(self, taking: asyncio.Task[Transcript | None], run: int) -> tuple[Transcript, End]:
        request, tools = self.request, self._tools
        # On the assumption that the route is empty the engine is started at once: first tokens do not wait.
        stream: AsyncGenerator[EngineChunk, None] | None = None
        first: asyncio.Task[EngineChunk] | None = None
        if run == 1:
            stream = tools.engine.generate(self._generation("", request.max_tokens, run))
            first = asyncio.create_task(anext(stream))  # type: ignore[arg-type]
        try:
            transcript = await self._taken(taking)
            if transcript.terminal is not None:
                return transcript, End("completed")  # not looked at: the terminal that is there counts
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
        chunk = await self._first_chunk(stream, first)
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
            try:
                chunk = await anext(stream)
            except StopAsyncIteration:
                break
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

    async def _first_chunk(
        self, stream: AsyncGenerator[EngineChunk, None], first: asyncio.Task[EngineChunk] | None
    ) -> EngineChunk:
        waiting = first or asyncio.create_task(anext(stream))  # type: ignore[arg-type]
        try:
            async with asyncio.timeout(self._left_s(self.request.deadline)):
                return await asyncio.shield(waiting)
        except TimeoutError:
            waiting.cancel()
            raise EngineError("no first token by the deadline") from None
        except StopAsyncIteration:
            raise EngineError("the engine said nothing") from None

    async def _abandon(
        self, stream: AsyncGenerator[EngineChunk, None], first: asyncio.Task[EngineChunk] | None
    ) -> None:
        if first is not None and not first.done():
            first.cancel()
        if first is not None:
            with contextlib.suppress(asyncio.CancelledError, EngineError, StopAsyncIteration):
                await first
        await stream.aclose()

    async def _moderated(self) -> End | None:
        """Waits for the verdict on the prompt; an End when the turn is not to go on. Closed when none comes."""
        verdict: Verdict | None = self.request.verdict
        if verdict is None:
            try:
                async with asyncio.timeout(self._left_s(self.request.moderation_deadline)):
                    verdict = await self._side.wait_for_verdict(self.request.response)
            except TimeoutError:
                return End("failed", failure=failure("moderation_unavailable", "the prompt could not be checked in time"))
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
            prompt=self._tools.continued_prompt(self.request, text),
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
        await self._tools.producer.post(
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
            await tools.producer.send(
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


__all__ = ["MIN_ANSWER_TOKENS", "Turn"]
