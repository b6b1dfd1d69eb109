"""Where a turn's time went: a fold of its timeline into stages, runs and gaps between deltas. Pure.

Two kinds of clock tell it. The log's append times order everything and are the brokers'; what happens inside of a role
(the slot, the first token, its release) only the role's own `Timings` know. A role's time is held between the appends
that must lie before and after it, and where it had to be moved the waterfall says how far the clocks differ.

The log ends where the edges begin to read: the fan-out to users is in the edges' metrics, not here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from parley.timeline.fold import Entry
from schemas.base import Dispatch, Epoch, Millis, Timings
from schemas.prompts import InferenceRequest, PromptAccepted, Verdict
from schemas.routes import Delta, Fence, Opened, Terminal
from schemas.turns import TurnEnded, TurnStarted

E_ = TypeVar("E_")
Clock = Literal["log", "edge", "worker"]
_OF_A_TURN = (PromptAccepted, Verdict, Opened, TurnStarted, InferenceRequest, Fence, Delta, Terminal, TurnEnded)
"""What a turn is made of. Its timeline also has what came later: a thumb, whoever read it, a zombie's words."""
SKEW_MS = 5
"""Clocks that differ by less are not worth a word: appends themselves take as long."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of the turn's time. Stages of roles that work at the same time overlap."""

    name: str
    start: Millis
    end: Millis | None
    """None: it has not ended."""
    note: str = ""
    clock: Clock = "log"
    """Whose clock told one of its ends; `log` where both are append times."""


@dataclass(frozen=True, slots=True)
class Run:
    """What one writer wrote under one fence that counted."""

    epoch: Epoch
    writer: str
    fenced: Millis
    deltas: tuple[Millis, ...] = ()
    """When the log took each."""
    tokens: int = 0
    over: Millis | None = None
    """The terminal, or the fence that ended the run; None: it goes on."""


@dataclass(frozen=True, slots=True)
class Gaps:
    """Times between two deltas of one run, in ms. Gaps over a takeover are the stage `takeover`."""

    count: int = 0
    p50: Millis = 0
    p99: Millis = 0
    longest: Millis = 0
    longest_before: int = 0
    """The `seq` of the delta that came after the longest gap."""


@dataclass(slots=True)
class Waterfall:
    """One turn's time."""

    response: str
    began: Millis
    """When the edge accepted it, by its clock, but not after the log took it."""
    last: Millis
    """The end, or of a turn that runs: the last thing that the log holds of it."""
    status: str | None = None
    """None: it runs."""
    turn: int | None = None
    pool: str | None = None
    tier: str | None = None
    stages: list[Stage] = field(default_factory=list)
    """In the order in which they began."""
    runs: list[Run] = field(default_factory=list)
    gaps: Gaps = field(default_factory=Gaps)
    voids: int = 0
    """Records that changed nothing: a zombie's, a repetition."""
    notes: list[str] = field(default_factory=list)

    @property
    def first_text(self) -> Millis | None:
        """When the log took the first delta."""
        return min((run.deltas[0] for run in self.runs if run.deltas), default=None)

    @property
    def ttft_ms(self) -> Millis | None:
        """From acceptance to the first delta in the log."""
        return None if self.first_text is None else self.first_text - self.began


def waterfall(response: str, entries: Iterable[Entry]) -> Waterfall | None:
    """The waterfall of a response; None when the log holds nothing of it. `entries`: in the timeline's order."""
    own = [entry for entry in entries if entry.response == response]
    if not own:
        return None
    return _Fold(response, own).result()


def gaps(runs: Sequence[Run]) -> Gaps:
    """What readers waited between deltas, as the log took them."""
    waits: list[tuple[Millis, int]] = []
    seq = 0
    for run in runs:
        for before, after in zip(run.deltas, run.deltas[1:], strict=False):
            seq += 1
            waits.append((max(0, after - before), seq))
        seq += bool(run.deltas)
    if not waits:
        return Gaps()
    ordered = sorted(wait for wait, _ in waits)
    longest, before_seq = max(waits, key=lambda wait: wait[0])
    return Gaps(len(waits), _rank(ordered, 0.5), _rank(ordered, 0.99), longest, before_seq)


def _rank(ordered: Sequence[Millis], share: float) -> Millis:
    """The nearest rank: a gap that there was."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


class _Fold:
    """The records of one response by what they are; of repeated ones the first that counts."""

    def __init__(self, response: str, entries: Sequence[Entry]) -> None:
        self._entries = entries
        self._response = response
        self._prompt, self._prompt_at = self._first(PromptAccepted)
        self._opened, self._opened_at = self._first(Opened)
        self._started, self._started_at = self._first(TurnStarted)
        self._ended, self._ended_at = self._first(TurnEnded)
        self._terminal, self._terminal_at = self._first(Terminal)
        self._runs = _runs(entries)
        self._times = self._ended.timings if self._ended else Timings()
        self._timed = self._timed_run()
        self._skews: dict[str, Millis] = {}

    def _first(self, kind: type[E_]) -> tuple[E_ | None, Millis | None]:
        return next(((e.event, e.at) for e in self._of(kind)), (None, None))  # type: ignore[return-value]

    def _of(self, kind: type[object]) -> Iterator[Entry]:
        return (entry for entry in self._entries if entry.void is None and isinstance(entry.event, kind))

    def result(self) -> Waterfall:
        """All of it."""
        told = self._started or self._ended
        made = Waterfall(
            self._response,
            self._began(),
            self._last(),
            status=self._ended.status if self._ended else None,
            turn=told.turn if told else None,
            pool=told.pool if told else None,
            tier=told.tier if told else self._prompt.tier if self._prompt else None,
            runs=self._runs,
            gaps=gaps(self._runs),
            voids=sum(entry.void is not None for entry in self._entries),
        )
        made.stages = sorted(
            [*self._before(made.began), *self._waiting_for_pools(), *self._answering(), *self._after()],
            key=lambda stage: stage.start,
        )
        made.notes = [
            f"{whose} clock is {abs(ms)} ms {'ahead of' if ms > 0 else 'behind'} the log's"
            for whose, ms in self._skews.items()
        ]
        if self._prompt is None:
            made.notes.append("the prompt is no longer in the log: the turn is told from what is left of it")
        if made.status is None:
            made.notes.append("the turn has not ended")
        return made

    def _last(self) -> Millis:
        own = [e.at for e in self._entries if e.void is None and isinstance(e.event, _OF_A_TURN)]
        return max(own or [entry.at for entry in self._entries])

    def _began(self) -> Millis:
        accepted = self._prompt or self._started
        if accepted is None:
            return self._entries[0].at
        return self._within("the edge's", accepted.accepted_at, None, self._entries[0].at)

    def _before(self, began: Millis) -> Iterator[Stage]:
        """From acceptance to the request: moderation works beside the orchestrator."""
        prompt_at = self._prompt_at
        if prompt_at is None:
            return
        yield Stage("log", began, prompt_at, "the prompt, from the edge to all in-sync replicas", "edge")
        verdict = next((e for e in self._of(Verdict) if getattr(e.event, "stage", "") == "input"), None)
        yield _moderation(prompt_at, verdict)
        waits = self._opened is not None and self._opened.waiting
        taken_at = self._opened_at if waits else self._started_at
        yield Stage("orchestration", prompt_at, taken_at, "the prompt read, the turn numbered")
        if waits and self._opened_at is not None:
            yield Stage("waiting", self._opened_at, self._started_at, "for the turn before it in its session")
        if self._started is not None and self._started_at is not None and self._started.pool is not None:
            requested = next((entry.at for entry in self._of(InferenceRequest)), None)
            tokens = self._started.prompt_tokens
            yield Stage("context", self._started_at, requested, f"{tokens} tokens of prompt, for {self._started.pool}")

    def _waiting_for_pools(self) -> Iterator[Stage]:
        """From each request until a worker takes it."""
        for entry in self._of(InferenceRequest):
            event = entry.event
            assert isinstance(event, InferenceRequest)
            run = next((run for run in self._runs if run.epoch[:2] == event.dispatch), None)
            where = f"{entry.topic}-{entry.partition}, dispatch {_dotted(event.dispatch)}"
            taken = self._taken(run) if run is not None else None
            yield Stage("queue", entry.at, taken, where, "log" if run is None or taken == run.fenced else "worker")

    def _taken(self, run: Run) -> Millis:
        """When a run's worker took the turn: by its own clock where that is told, else when its fence was logged."""
        requested = max((e.at for e in self._of(InferenceRequest) if e.at <= run.fenced), default=run.fenced)
        if self._timed is None or run.epoch[:3] != self._timed.epoch[:3]:
            return run.fenced
        return self._within("the worker's", self._times.taken, requested, run.fenced)

    def _answering(self) -> Iterator[Stage]:
        for number, run in enumerate(self._runs):
            first = run.deltas[0] if run.deltas else None
            if run is self._timed and first is not None:
                yield from self._inside(run, first)
            else:
                yield Stage("engine", run.fenced, first or run.over, "with slot and guard: this run left no times")
            if first is not None:
                said = f"{len(run.deltas)} deltas, {run.tokens} tokens, writer {run.writer}"
                yield Stage("answer", first, run.deltas[-1] if run.over else None, said)
            if run.over is not None and number + 1 < len(self._runs):
                last = run.deltas[-1] if run.deltas else run.fenced
                yield Stage("takeover", last, run.over, f"to epoch {_dotted(self._runs[number + 1].epoch)}")

    def _timed_run(self) -> Run | None:
        """The run that the worker's times are of: they are its last holder's, from its first run with a token."""
        if not self._runs or self._times.first_token is None:
            return None
        holder = self._runs[-1].epoch[:3]
        return next((run for run in self._runs if run.epoch[:3] == holder and run.deltas), None)

    def _inside(self, run: Run, first: Millis) -> Iterator[Stage]:
        """Up to the first delta, by the worker's clock. A worker starts its engine while it fences: these overlap."""
        taken, times = self._taken(run), self._times
        token = min(max(taken, times.first_token or taken), first)
        begun = min(max(taken, times.engine_started or taken), token)
        yield Stage("taking", taken, run.fenced, "the route read and fenced", "worker")
        if times.engine_started is not None and begun - taken > 1:
            yield Stage("slot", taken, begun, "for a slot of the engine", "worker")
        yield Stage("engine", begun, token, "to its first token", "worker")
        yield Stage("guard", token, first, "held back, scored, and into the log", "worker")

    def _after(self) -> Iterator[Stage]:
        if self._terminal_at is not None:
            last = next((run.deltas[-1] for run in reversed(self._runs) if run.deltas), None)
            if last is not None:
                yield Stage("end", last, self._terminal_at, "last text to the terminal that readers see")
            if self._runs:
                yield Stage("proof", self._terminal_at, self._ended_at, "the terminal proved, the end in chat.turns")
        for entry in self._of(Verdict):
            event = entry.event
            if isinstance(event, Verdict) and event.stage == "output" and self._ended_at is not None:
                yield Stage("verdict", self._ended_at, entry.at, f"on the answer: {event.decision}, for the record")

    def _within(self, whose: str, at: Millis | None, low: Millis | None, high: Millis) -> Millis:
        """A role's time, held between appends that must be around it."""
        if at is None:
            return high
        held = min(at, high) if low is None else max(low, min(at, high))
        if abs(at - held) > max(SKEW_MS, abs(self._skews.get(whose, 0))):
            self._skews[whose] = at - held
        return held


def _moderation(prompt_at: Millis, entry: Entry | None) -> Stage:
    if entry is None or not isinstance(entry.event, Verdict):
        return Stage("moderation", prompt_at, None, "no verdict on the prompt")
    return Stage("moderation", prompt_at, entry.at, f"{entry.event.decision}, policy {entry.event.policy}")


def _runs(entries: Iterable[Entry]) -> list[Run]:
    """Fences that counted, each with the deltas that its writer got in before the next one."""
    found: list[Run] = []
    fence: tuple[Fence, Millis] | None = None
    deltas: list[Millis] = []
    tokens = 0

    def close(over: Millis | None) -> None:
        if fence is not None:
            found.append(Run(fence[0].epoch, fence[0].writer, fence[1], tuple(deltas), tokens, over))

    for entry in entries:
        if entry.void is not None:
            continue
        match entry.event:
            case Fence() as event:
                close(entry.at)
                fence, deltas, tokens = (event, entry.at), [], 0
            case Delta() as event:
                deltas.append(entry.at)
                tokens += event.tokens
            case Terminal():
                close(entry.at)
                fence = None
            case _:
                pass
    close(None)
    return found


def _dotted(numbers: Dispatch | Epoch) -> str:
    return ".".join(map(str, numbers))
