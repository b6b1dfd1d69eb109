"""How prompts and answers are judged: counted where the verdict is written, since a policy that is wrong shows here."""

from __future__ import annotations

from typing import Literal

from prometheus_client import Counter

from schemas.prompts import Verdict

VERDICTS = Counter(
    "parley_verdicts",
    "Verdicts in the log, by stage (input: prompts, output: answers), decision and the policy's version.",
    ("stage", "decision", "policy"),
)


def expect(stage: Literal["input", "output"], policy: str) -> None:
    """Tell of decisions that have not been made yet as none, so that the first one is seen to be one more."""
    for decision in ("allow", "block"):
        VERDICTS.labels(stage, decision, policy)


def count(verdict: Verdict) -> None:
    """One that is in the log."""
    VERDICTS.labels(verdict.stage, verdict.decision, verdict.policy).inc()
