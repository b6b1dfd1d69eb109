"""The orchestrator's plans as they were against plans under another topics.yaml. Pure.

A plan is a function of the session as the log of turns had it by then: so the log is folded as the orchestrator folds
it, and at each decision its planning is asked again. Nothing is written anywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from uuid import UUID

from consumers.orchestrator.planning import plan
from parley.errors import ParleyError
from parley.session import Session
from parley.settings import Settings
from producers.replay.manifest import Manifest
from producers.replay.prompts import Prompt
from producers.replay.report import SAME, Chart, Figure, Report, Row, count_changes, spread, tally
from schemas.turns import TurnStarted
from schemas.wire import TurnsEvent

POOL, CONTEXT, FAILS, RUNS, FAILURE = "other pool", "other context", "fails now", "runs now", "fails otherwise"
NEVER = "was not planned"
"""It ended before its turn came (refused, cancelled, expired), or the log has no decision about it yet."""
PLANNING_FAILURES = frozenset({"previous_response_not_found", "model_not_found", "context_length_exceeded"})
TORN = "its past is not in the log"
"""Retention has taken the session's beginning: nobody can say what its context was made of."""


@dataclass(frozen=True, slots=True)
class Planned:
    """What was decided: a pool with a context, or a failure."""

    pool: str | None
    tokens: int = 0
    kept: int = 0
    """Turns of the past in the context."""
    dropped: int = 0
    """Those that did not fit."""
    failure: str | None = None

    @classmethod
    def by(cls, decision: TurnStarted, path: int) -> Planned:
        """As a decision says, of a turn with `path` remembered turns before it."""
        if decision.pool is None:
            return cls(None, failure=decision.failure.code if decision.failure else decision.why)
        dropped = decision.dropped_turns
        return cls(decision.pool, decision.prompt_tokens, max(0, path - dropped), dropped)

    def figures(self) -> dict[str, Figure]:
        """As a report shows it."""
        if self.pool is None:
            return {"failure": self.failure}
        return {"pool": self.pool, "tokens": self.tokens, "turns kept": self.kept, "turns dropped": self.dropped}


@dataclass(frozen=True, slots=True)
class Replanned:
    """A turn's two plans."""

    before: Planned
    after: Planned

    @property
    def change(self) -> str:
        """In words."""
        old, new = self.before, self.after
        if old == new:
            return SAME
        if old.pool is None:
            return FAILURE if new.pool is None else RUNS
        if new.pool is None:
            return FAILS
        return POOL if old.pool != new.pool else CONTEXT


class Replanning:
    """Folds the log of turns, and plans the turns of some prompts again on the way."""

    def __init__(self, settings: Settings, prompts: Mapping[str, Prompt]) -> None:
        self._settings = settings
        self._prompts = prompts
        self._sessions: dict[UUID, Session] = {}
        self._torn: set[UUID] = set()
        self.planned: dict[str, Replanned] = {}
        self.torn: set[str] = set()
        """Responses whose session's beginning was missing."""

    def fold(self, event: TurnsEvent) -> None:
        """One more event, in log order."""
        session = self._sessions.setdefault(event.session, Session(event.session))
        if not isinstance(event, TurnStarted):
            session.apply(event)
            return
        if event.turn > 1 and not session.turns:
            self._torn.add(event.session)
        asked = event.response in self._prompts and event.response not in self.planned and was_planned(event)
        again = self._plan_again(session, event) if asked else None
        if session.apply(event) is None and again is not None:
            self.planned[event.response] = again

    def _plan_again(self, session: Session, decision: TurnStarted) -> Replanned | None:
        if decision.session in self._torn:
            self.torn.add(decision.response)
            return None
        prompt = self._prompts[decision.response].event
        path = len(session.path(decision.parent) or ())
        try:
            after = Planned.by(plan(self._settings, session, prompt, decision.dispatch, decision.accepted_at), path)
        except ParleyError as error:
            after = Planned(None, failure=error.kind.code)
        return Replanned(Planned.by(decision, path), after)


def was_planned(decision: TurnStarted) -> bool:
    """Its planning was asked, and said where it goes or why it can't: it was not ended for another reason before."""
    if decision.pool is not None:
        return True
    return decision.failure is not None and decision.failure.code in PLANNING_FAILURES


def compare(
    manifest: Manifest, prompts: Iterable[Prompt], replanning: Replanning, versions: dict[str, tuple[str, str]]
) -> Report:
    """The report of a replay of planning."""
    rows = tuple(_row(prompt, replanning, manifest) for prompt in prompts)
    known = list(replanning.planned.values())
    totals = count_changes(rows) | {
        "tokens of prompts before": sum(each.before.tokens for each in known),
        "tokens of prompts now": sum(each.after.tokens for each in known),
    }
    charts = _charts([each.before for each in known], [each.after for each in known])
    return Report(manifest=manifest, versions=versions, totals=totals, charts=charts, rows=rows)


def _row(prompt: Prompt, replanning: Replanning, manifest: Manifest) -> Row:
    event = prompt.event
    found = replanning.planned.get(event.response)
    unknown = TORN if event.response in replanning.torn else NEVER
    return Row(
        response=event.response,
        session=str(event.session),
        source=prompt.source,
        at=int(prompt.record.timestamp),
        change=found.change if found else unknown,
        before=found.before.figures() if found else {},
        after=found.after.figures() if found else {},
        texts={"prompt": "\n".join(event.input_texts())} if manifest.content else {},
    )


def _charts(before: list[Planned], after: list[Planned]) -> tuple[Chart, ...]:
    old, new = ([each for each in plans if each.pool is not None] for plans in (before, after))
    return tuple(
        chart
        for chart in (
            tally("plans, by pool or failure", map(_fate, before), map(_fate, after)),
            spread("turns by tokens of the prompt", [p.tokens for p in old], [p.tokens for p in new]),
            spread("turns by turns kept in the context", [p.kept for p in old], [p.kept for p in new]),
        )
        if chart is not None
    )


def _fate(planned: Planned) -> str:
    return planned.pool or planned.failure or "ended"
