"""The worker: the control flow of inference_workers (main.py and turn.py), step by step."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from parley.endings import turn_ended
from parley.errors import failure
from parley.log.ranges import RouteGone
from parley.side_inputs import SideInputs
from parley.transcript import Transcript
from schemas.base import Dispatch, Failure, Usage, epoch_of
from schemas.prompts import InferenceRequest
from schemas.routes import Delta, Fence, Terminal, TerminalKind

from .events import ANSWER_TOKENS, CONTROL, LANE, TURNS, VERDICTS
from .log import Record, SendFailed
from .member import Held, Member, Task
from .taking import take_turn

RUNS_LIMIT = 3


class Superseded(Exception):
    """Somebody greater has the turn."""


class EngineFailed(Exception):
    """The engine broke off."""


@dataclass(frozen=True, slots=True)
class End:
    """How a run of a turn came to its end."""

    kind: TerminalKind
    failure: Failure | None = None
    refusal: str | None = None


@dataclass(slots=True)
class _Running:
    dispatch: Dispatch
    offsets: list[int]
    finished: bool = False


class Worker(Member):
    """Reads requests of its pool, runs turns on its engine."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._sides: dict[int, SideInputs] = {}
        self._turns: dict[int, dict[str, _Running]] = {}

    def take(self, taken: list[Held]) -> Task:
        logs = self.world.logs
        ends = {held: [len(logs.log((topic, held.partition))) for topic in (VERDICTS, CONTROL)] for held in taken}
        for held in taken:
            side = self._sides[held.partition] = SideInputs(self.follower, held.partition, self.world.protocol)  # type: ignore[arg-type]
            self._turns[held.partition] = {}
            side.follow(0, 0)
        for held in taken:
            for topic, end in zip((VERDICTS, CONTROL), ends[held], strict=True):
                yield from self.follower.reached(topic, held.partition, end - 1)

    def drop(self, held: Held) -> None:
        side = self._sides.pop(held.partition, None)
        if side is not None:
            side.stop()
        self._turns.pop(held.partition, None)

    def record(self, held: Held, record: Record) -> None:
        request: InferenceRequest = record.event
        turns = self._turns[held.partition]
        if self.world.too_old(record):
            held.end(record.offset)
            return
        known = turns.get(request.response)
        if known is not None and (request.dispatch <= known.dispatch or "greater-replaces" in self.without):
            if known.finished:
                held.end(record.offset)
            else:
                known.offsets.append(record.offset)
            return
        running = _Running(request.dispatch, [*(known.offsets if known else ()), record.offset])
        turns[request.response] = running
        held.spawn(f"turn-{request.response}", self._run(held, request, running))

    def _run(self, held: Held, request: InferenceRequest, running: _Running) -> Task:
        yield from self._turn(held, request, running)
        self._finish(held, running)

    @staticmethod
    def _finish(held: Held, running: _Running) -> None:
        running.finished = True
        for offset in running.offsets:
            held.end(offset)

    def _turn(self, held: Held, request: InferenceRequest, running: _Running) -> Task:
        run, engine_failures, writer = 0, 0, str(self.world.fresh())
        hopeless: Failure | None = None
        while True:
            if run == 0 or "raise-run" not in self.without:
                run += 1
                writer = str(self.world.fresh())
            fence = Fence(epoch=epoch_of(request.dispatch, held.takeover, run), writer=writer)
            try:
                transcript = yield from self._to_terminal(held, request, fence, hopeless)
                if "offset-last" in self.without:
                    self._finish(held, running)
                dispatch = self.world.ended_under(request.dispatch, transcript)
                ended = turn_ended(request, transcript, dispatch)
                yield from self.acknowledged(self.send((TURNS, held.partition), Record(ended, request.response)))
                return
            except (Superseded, RouteGone):
                return
            except EngineFailed:
                engine_failures += 1
                if engine_failures >= RUNS_LIMIT:
                    hopeless = failure("engine_error", "the model could not answer")
            except SendFailed:
                pass
            yield

    def _to_terminal(
        self, held: Held, request: InferenceRequest, fence: Fence, hopeless: Failure | None
    ) -> Generator[None, None, Transcript]:
        """Take the turn, answer, end it on its route, prove. What the route says then."""
        world, response = self.world, request.response
        with world.engine(response):  # started on the assumption that nothing is there
            transcript = yield from take_turn(self, response, request.route, fence, request.prompt)
            if transcript is None:
                raise Superseded
            if transcript.terminal is not None:
                return transcript
            sent: list[Record] = []
            if hopeless is not None:
                end = End("failed", hopeless)
            else:
                gated = yield from self._moderated(held, request)
                end = gated or (yield from self._stream(held, request, fence.writer, transcript, sent))
        terminal = Terminal(
            writer=fence.writer,
            seq=transcript.seq,
            kind=end.kind,
            failure=end.failure,
            refusal=end.refusal,
            model=request.model,
            usage=Usage(output_tokens=transcript.tokens),
            ended_at=world.now,
        )
        last = self.send(LANE, Record(terminal, response, before=tuple(transcript.deltas)))
        yield from self.acknowledged(*sent, last)
        transcript.apply(terminal)
        yield from held.prove()
        return transcript

    def _moderated(self, held: Held, request: InferenceRequest) -> Generator[None, None, End | None]:
        """Waits for the verdict on the prompt. Closed when none comes."""
        if "verdict-gate" in self.without:
            return None
        side = self._sides[held.partition]
        while (verdict := request.verdict or side.verdict(request.response)) is None:
            if self.world.late(request.moderation_deadline):
                if "fail-closed" in self.without:
                    return None
                return End("failed", failure("moderation_unavailable", "the prompt was not checked in time"))
            yield
        if verdict.decision == "block":
            return End("refused", refusal="no")
        return None

    def _stream(
        self, held: Held, request: InferenceRequest, writer: str, transcript: Transcript, sent: list[Record]
    ) -> Generator[None, None, End]:
        world, choices, response = self.world, self.choices, request.response
        side = self._sides[held.partition]
        if not transcript.deltas and world.late(request.deadline):
            return End("failed", failure("start_deadline_exceeded", "no engine answered in time"))
        while transcript.seq < ANSWER_TOKENS:
            if side.cancelled(response):
                return End("cancelled")
            if not world.healing and choices.chance(0.02):
                raise EngineFailed
            if any(record.heard == "failed" for record in sent):
                raise SendFailed
            before = tuple(transcript.deltas)
            delta = Delta(writer=writer, seq=transcript.seq, text=f"{transcript.seq}.{world.fresh()} ", tokens=1)
            sent.append(self.send(LANE, Record(delta, response, before=before)))
            transcript.apply(delta)
            yield
        if not world.healing and choices.chance(0.03):
            return End("incomplete", refusal="the rest is withheld")
        return End("completed")
