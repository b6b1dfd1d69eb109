"""One turn under one request: taken, run on an engine, ended, proved.

    slot ─▶ taking ─▶ (verdict) ─▶ streaming ─▶ terminal ─▶ proof ─▶ turn ended
      │        └─ a terminal is there: only TurnEnded is repeated
      └─ cancelled, refused or too late: taken all the same, to be ended

Any failed send, any failure of the engine and any stall: fence again with run+1 and go on from what the log says, on
another engine of the pool if there is one that answers. A few times; then the turn ends failed, with what was shown.
Where the route itself is gone, the turn ends failed in the state log alone, with what this holder has seen of it.
(docs/protocol.md, sections 3 and 7.)
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import secrets
from collections.abc import AsyncGenerator

from inference_workers import metrics
from inference_workers.answer import Answer
from inference_workers.course import THERE, Course, End, too_late
from inference_workers.engine.errors import EngineError
from inference_workers.engine.pool import Engine
from inference_workers.generating import Run
from inference_workers.pen import Pen
from inference_workers.tools import Tools
from parley import stages
from parley.clock import left_s, now_ms
from parley.endings import turn_ended
from parley.errors import ParleyError, failure
from parley.log.held import Held
from parley.log.producer import TopicUnknown
from parley.log.ranges import RouteGone
from parley.log.taking import is_lost, take_turn
from parley.retrying import pause_s
from parley.side_inputs import SideInputs
from parley.transcript import Transcript
from schemas.base import Failure, Timings, Usage, epoch_of
from schemas.prompts import InferenceRequest, Verdict
from schemas.routes import Fence, Terminal

log = logging.getLogger(__name__)


class Superseded(Exception):
    """Somebody greater has the turn: it is let go, its offset too."""


class OtherLog(RouteGone):
    """The route's topic was made anew: what this holder has read there before is not in it."""


class Turn:
    """Runs one request to its end."""

    def __init__(self, tools: Tools, held: Held, side: SideInputs, request: InferenceRequest) -> None:
        self._tools = tools
        self._held = held
        self._side = side
        self.request = request
        self.course = Course()
        self._cancelled = asyncio.Event()
        self._patience: asyncio.Timeout | None = None
        self._pen: Pen | None = None
        """Of the last run that has taken the turn."""

    async def run(self) -> None:
        """To the end of the turn; returns when its TurnEnded is acknowledged, or the turn is somebody else's."""
        self._side.on_cancel(self.request.response, self._cancelled.set)
        run, failures, lost = 0, 0, False
        hopeless: Failure | None = None
        avoid: Engine | None = None
        try:
            while True:
                run += 1
                self.course.at("taking")
                try:
                    if lost:
                        await self._end_without_route(run)
                    else:
                        await self._attempt_with_patience(run, hopeless, avoid)
                    return
                except Superseded:
                    log.info("a turn was taken by somebody greater")
                    return
                except (RouteGone, TopicUnknown) as error:
                    log.warning("run %d of a turn can't find its route: %s", run, error)
                    lost = isinstance(error, OtherLog) or await self._is_lost()
                    if not lost:
                        await asyncio.sleep(pause_s(min(run, 6)))
                except EngineError as error:
                    failures += 1
                    log.warning("run %d of a turn failed in the engine: %s", run, error)
                    avoid = self._doubt(error)
                    if not error.retryable or failures >= self._tools.settings.worker.runs_limit:
                        hopeless = failure(error.kind.code, "the model could not answer")
                except TimeoutError:
                    failures += 1
                    log.error("run %d of a turn did not get on: %s", run, self.course.stage)
                    if failures >= self._tools.settings.worker.runs_limit:
                        hopeless = failure("answer_deadline_exceeded", "the answer did not get on: try again")
                    await asyncio.sleep(pause_s(failures))
                except ParleyError as error:
                    log.warning("run %d of a turn lost the log: %s", run, error)
                    await asyncio.sleep(pause_s(min(run, 6)))
        finally:
            self._side.off_cancel(self.request.response, self._cancelled.set)

    async def _is_lost(self) -> bool:
        request, tools = self.request, self._tools
        try:
            return await is_lost(tools.ranges, request.route, request.timings.accepted or 0, tools.settings.protocol)
        except ParleyError as error:
            log.warning("whether a turn's route is lost can't be told now: %s", error)
            return False

    def begin_anew(self) -> bool:
        """It does not get on: break off what it waits for, and take the turn again. False: that is happening anyway."""
        if self._patience is None or self._patience.expired():
            return False
        self._patience.reschedule(asyncio.get_running_loop().time())
        return True

    def _doubt(self, error: EngineError) -> Engine | None:
        engine = self.course.engine
        if engine is not None:
            engine.doubt()
            metrics.ENGINE_FAILURES.labels(engine.url, error.kind.code).inc()
        return engine

    async def _attempt_with_patience(self, run: int, hopeless: Failure | None, avoid: Engine | None) -> None:
        """Raises TimeoutError: `begin_anew` has broken it off."""
        async with asyncio.timeout(None) as self._patience:
            try:
                await self._attempt(run, hopeless, avoid)
            finally:
                self._patience = None  # between two attempts there is nothing to break off

    async def _attempt(self, run: int, hopeless: Failure | None, avoid: Engine | None) -> None:
        taking = asyncio.create_task(self._take(run))
        try:
            if hopeless is not None:
                end = End("failed", failure=hopeless)
            else:
                end = await self._in_a_slot(taking, run, avoid)
            await self._end(await asyncio.shield(taking), end)
        finally:
            taking.cancel()

    async def _take(self, run: int) -> Pen:
        request, tools = self.request, self._tools
        fence = self._fence(run)
        transcript = await take_turn(tools.tokens, tools.ranges, request.response, request.route, fence)
        if transcript is None:
            raise Superseded
        if self._pen is not None and self._pen.transcript.opened is not None and transcript.opened is None:
            raise OtherLog(f"{request.route.topic} was made anew")
        if self.course.inherited is None:
            self.course.inherited = transcript.tokens
        self._pen = Pen(tools.tokens, request.response, request.route, transcript)
        return self._pen

    def _fence(self, run: int) -> Fence:
        return Fence(epoch=epoch_of(self.request.dispatch, self._held.takeover, run), writer=secrets.token_hex(4))

    async def _in_a_slot(self, taking: asyncio.Task[Pen], run: int, avoid: Engine | None) -> End:
        request = self.request
        dispatch = request.dispatch
        running = Run(
            self._tools,
            request,
            self._side,
            self.course,
            taking,
            number=run,
            # Unique, since a stop works by it.
            name=f"{request.response}:{dispatch[0]}.{dispatch[1]}.{self._held.takeover}.{run}",
            avoid=avoid,
        )
        async with self._slot() as admitted:
            if not admitted.is_set():
                transcript = (await asyncio.shield(taking)).transcript
                if transcript.terminal is not None:
                    return THERE
                # What has begun waits longer.
                limit_s = running.answer_left_s() if transcript.deltas else left_s(request.deadline)
                if not await self._admission(admitted, limit_s):
                    return End("cancelled") if self._cancelled.is_set() else too_late()
            return await running.follow(self._cancelled)

    @contextlib.asynccontextmanager
    async def _slot(self) -> AsyncGenerator[asyncio.Event, None]:
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

    async def _admission(self, admitted: asyncio.Event, limit_s: float) -> bool:
        """Whether there is a slot before it is too late, or the user has cancelled."""
        self.course.at("slot")
        waits = [asyncio.create_task(event.wait()) for event in (admitted, self._cancelled)]
        try:
            await asyncio.wait(waits, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        return admitted.is_set()

    async def _end(self, pen: Pen, end: End) -> None:
        """Terminal, proof, TurnEnded: each after the one before it."""
        transcript = pen.transcript
        if transcript.terminal is None:
            self.course.at("terminal")
            await pen.end(self._terminal(transcript, end))
            self.course.at("proof")
            await self._held.prove()
        await self._log_end(transcript)

    async def _end_without_route(self, run: int) -> None:
        """The same where no route is left to write to. What was written is told as far as this holder has seen it.

        One that has seen nothing may come after a holder who has ended the turn: then that end stands, whose epoch is
        greater than this one's.
        """
        known = self._pen.transcript if self._pen is not None else Transcript()
        fence = self._fence(run)
        if self._pen is None:
            fence = Fence(epoch=epoch_of(self.request.dispatch, 0, 0), writer=fence.writer)
        transcript = dataclasses.replace(known, deltas=list(known.deltas), joins=list(known.joins))
        if transcript.terminal is None:
            transcript.apply(fence)
            transcript.apply(
                self._terminal(
                    transcript, End("failed", failure=failure("log_unavailable", "the answer's log is gone: ask again"))
                )
            )
        self.course.at("proof")
        await self._held.prove()
        await self._log_end(transcript)

    async def _log_end(self, transcript: Transcript) -> None:
        request, tools, course = self.request, self._tools, self.course
        course.at("turn ended")
        ended = turn_ended(
            request,
            transcript,
            request.dispatch,
            timings=Timings(
                accepted=request.timings.accepted,
                opened=request.timings.opened,
                dispatched=request.timings.dispatched,
                ended=now_ms(),
                **course.times,
            ),
            engine=(course.engine or tools.engines.own).url,
            model_revision=tools.pool.revision,
            template=request.template,
            policy=tools.policy.version,
            seed=request.sampling.seed,
        )
        await tools.log_end(ended, self._held.partition)
        stages.observe(ended)
        metrics.observe(ended, tools.pool.name, course.said)
        if course.answer is not None:
            with contextlib.suppress(ParleyError):
                await tools.post_verdict(self._output_verdict(course.answer), self._held.partition)

    def _terminal(self, transcript: Transcript, end: End) -> Terminal:
        assert transcript.fence is not None
        return Terminal(
            writer=transcript.fence.writer,
            seq=transcript.seq,
            kind=end.kind,
            reason=end.reason,
            failure=end.failure,
            refusal=end.refusal,
            model=self.request.model,
            usage=Usage(
                input_tokens=self.request.prompt_tokens,
                output_tokens=self._tools.tokenizer.count(transcript.text) if transcript.text else 0,
                generated_tokens=(self.course.inherited or 0) + self.course.generated,
            ),
            dropped_turns=self.request.dropped_turns,
            ended_at=now_ms(),
        )

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
