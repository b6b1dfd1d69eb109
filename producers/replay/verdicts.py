"""Moderation as it was against moderation as it would be. Pure.

What was decided is in chat.verdicts for two hours, with scores. Later only the end of the turn tells, in chat.turns:
a refused turn was blocked, a turn with an answer was allowed, and why is not known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from producers.replay.manifest import Manifest
from producers.replay.prompts import Prompt
from producers.replay.report import SAME, Chart, Figure, Report, Row, count_changes, histogram, tally
from schemas.prompts import Verdict
from schemas.turns import TurnEnded

BLOCKED, ALLOWED = "newly blocked", "newly allowed"
CATEGORIES = "other categories"
UNKNOWN = "not known before"
MISSING = "no verdict now"
TENTHS = [n / 10 for n in range(11)]


@dataclass(frozen=True, slots=True)
class Judged:
    """What was decided of a prompt, as far as the log still tells."""

    decision: str
    categories: tuple[str, ...] | None = None
    """None: not known."""
    scores: Mapping[str, float] | None = None
    policy: str | None = None
    model: str | None = None

    @classmethod
    def by(cls, verdict: Verdict) -> Judged:
        """As a verdict says."""
        return cls(verdict.decision, verdict.categories, verdict.scores, verdict.policy, verdict.model)

    @classmethod
    def from_end(cls, ended: TurnEnded) -> Judged | None:
        """As a turn's end tells; None: it doesn't."""
        if ended.status == "refused":
            return cls("block", policy=ended.policy)
        if ended.status in ("completed", "incomplete"):
            return cls("allow", policy=ended.policy)
        return None

    @property
    def worst(self) -> tuple[str, float] | None:
        """The category that counts, with its score: the first of those blocked for, else the highest."""
        if not self.scores:
            return None
        name = self.categories[0] if self.categories else max(self.scores, key=lambda each: (self.scores or {})[each])
        return name, self.scores.get(name, 0.0)

    def figures(self) -> dict[str, Figure]:
        """As a report shows it."""
        worst = self.worst
        blocked = None if self.categories is None else ", ".join(self.categories)
        return {
            "decision": self.decision,
            "categories": blocked,
            "worst": worst[0] if worst else None,
            "score": round(worst[1], 4) if worst else None,
            "policy": self.policy,
            "model": self.model,
        }


def change(before: Judged | None, after: Judged | None) -> str:
    """What a replay makes of a turn."""
    if after is None:
        return MISSING
    if before is None:
        return UNKNOWN
    if before.decision != after.decision:
        return BLOCKED if after.decision == "block" else ALLOWED
    if before.categories is not None and before.categories != after.categories:
        return CATEGORIES
    return SAME


def compare(
    manifest: Manifest, prompts: Iterable[Prompt], before: Mapping[str, Judged], after: Mapping[str, Judged]
) -> Report:
    """The report of a moderation replay."""
    rows = tuple(_row(prompt, before.get(r := prompt.event.response), after.get(r), manifest) for prompt in prompts)
    old = [before[row.response] for row in rows if row.response in before]
    new = [after[row.response] for row in rows if row.response in after]
    totals = count_changes(rows) | {
        "blocked before": sum(each.decision == "block" for each in old),
        "blocked now": sum(each.decision == "block" for each in new),
    }
    versions = {
        "policy": (_names(each.policy for each in old), _names(each.policy for each in new)),
        "model": (_names(each.model for each in old), _names(each.model for each in new)),
    }
    return Report(manifest=manifest, versions=versions, totals=totals, charts=_charts(old, new), rows=rows)


def _row(prompt: Prompt, before: Judged | None, after: Judged | None, manifest: Manifest) -> Row:
    event = prompt.event
    return Row(
        response=event.response,
        session=str(event.session),
        source=prompt.source,
        at=int(prompt.record.timestamp),
        change=change(before, after),
        before=before.figures() if before else {},
        after=after.figures() if after else {},
        texts={"prompt": "\n".join(event.input_texts())} if manifest.content else {},
    )


def _charts(old: Sequence[Judged], new: Sequence[Judged]) -> tuple[Chart, ...]:
    def blocked_for(judged: Sequence[Judged]) -> list[str]:
        return [(j.categories or ("not known",))[0] for j in judged if j.decision == "block"]

    def scores(judged: Sequence[Judged]) -> list[float]:
        return [j.worst[1] for j in judged if j.worst is not None]

    return (
        tally("decisions", (j.decision for j in old), (j.decision for j in new)),
        tally("blocked, by worst category", blocked_for(old), blocked_for(new)),
        histogram("turns by worst score", scores(old), scores(new), TENTHS),
    )


def _names(versions: Iterable[str | None]) -> str:
    return ", ".join(sorted({version for version in versions if version is not None})) or "not known"
