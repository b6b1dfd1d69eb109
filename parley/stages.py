"""Where turns' time goes, stage by stage, and how turns end: what every role that ends one counts.

The times are the turn's own (schemas.base.Timings), which come with it from role to role. Each is of its role's clock;
a difference of two clocks that is negative counts as none.

    edge ─▶ log ─▶ orchestration ─▶ log ─▶ queue ─▶ engine ─▶ guard ─▶ fan-out
             └─▶ moderation ··········································┘ (in parallel: the guard waits for it)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

from prometheus_client import Counter, Histogram

from parley.errors import KINDS
from schemas.base import TIERS, Timings
from schemas.turns import TurnEnded

NO_POOL = "none"
"""The label of turns that ended before they had one."""

Stage = Literal["edge", "log", "moderation", "orchestration", "queue", "engine", "guard", "fan-out"]

FIRST_TEXT_BUCKETS = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1, 1.5, 2.5, 5, 10, 30, 60)
"""Seconds until text comes; 0.5 is the promise."""
GAP_BUCKETS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 2.5, 10)
"""Seconds between two pieces of text; 0.05 is the promise."""

STAGES = Histogram(
    "parley_stage_seconds",
    "Time of one stage of a turn until its first text: edge, log (both ways), moderation (beside the others), "
    "orchestration, queue, engine, guard, fan-out.",
    ("pool", "tier", "stage"),
    buckets=(0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1, 2.5, 5, 10, 30, 60, 300),
)
ENDED = Counter(
    "parley_turns_ended",
    "Turns by how they ended, counted by who wrote the end; code and fault (parley.errors): of one that failed.",
    ("pool", "tier", "status", "code", "fault"),
)


def stages(times: Timings) -> Iterator[tuple[Stage, float]]:
    """The stages of a turn that its times tell, in seconds. The edge's own are not among them."""
    yield from _between("log", times.accepted, times.opened, times.dispatched, times.taken)
    yield from _between("moderation", times.accepted, times.moderated)
    yield from _between("orchestration", times.opened, times.dispatched)
    yield from _between("queue", times.taken, times.engine_started)
    yield from _between("engine", times.engine_started, times.first_token)
    yield from _between("guard", times.first_token, times.released)


def expect(pool: str | None, codes: Iterable[str]) -> None:
    """Tell of failures that no turn has had yet as none, so that the first one is seen to be one more.

    `codes` are those that the role can end a turn of the pool with and that are not the caller's fault; None: of turns
    that got no pool.
    """
    for tier in TIERS:
        for code in codes:
            for status in ("failed", "expired") if code == "expired" else ("failed",):
                ENDED.labels(pool or NO_POOL, tier, status, code, KINDS[code].fault)


def observe(ended: TurnEnded) -> None:
    """Count an end that is in the log. The times of a turn that was continued are its last run's: they tell nothing."""
    pool = ended.pool or NO_POOL
    failure = ended.failure
    code = failure.code if failure is not None else "expired" if ended.status == "expired" else ""
    ENDED.labels(pool, ended.tier, ended.status, code, KINDS[code].fault if code in KINDS else "").inc()
    if not ended.continued_at:
        for stage, took in stages(ended.timings):
            STAGES.labels(pool, ended.tier, stage).observe(took)


def seconds(start_ms: int, end_ms: int) -> float:
    """Between two times that may be of different clocks: never negative."""
    return max(0, end_ms - start_ms) / 1000


def _between(stage: Stage, *times: int | None) -> Iterator[tuple[Stage, float]]:
    """The sum of the spans from each first to each second time; nothing unless all of them are known."""
    known = [time for time in times if time is not None]
    if len(known) == len(times):
        yield stage, sum(seconds(start, end) for start, end in zip(known[::2], known[1::2], strict=True))
