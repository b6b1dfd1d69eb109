"""How far a turn has come, over all its runs, and how a run may end."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Literal

from inference_workers.answer import Answer
from inference_workers.engine.pool import Engine
from parley.clock import now_ms
from parley.errors import failure
from schemas.base import Failure
from schemas.routes import TerminalKind

Stage = Literal["taking", "slot", "verdict", "engine", "streaming", "terminal", "proof", "turn ended"]
"""What a turn waits for."""
LIMITED: frozenset[Stage] = frozenset({"slot", "verdict", "engine"})
"""Waits that have limits of their own, and may be long."""
FAILURES = (
    "moderation_unavailable",
    "start_deadline_exceeded",
    "answer_deadline_exceeded",
    "engine_unavailable",
    "engine_error",
    "engine_refused",
    "unprocessable",
)
"""What a worker ends turns with that is no fault of the caller's."""


@dataclass(frozen=True, slots=True)
class End:
    """How a run of a turn came to its end."""

    kind: TerminalKind
    reason: str | None = None
    failure: Failure | None = None
    refusal: str | None = None


THERE = End("completed")
"""Stands for the terminal that the route already has: nobody looks at it."""


def too_late() -> End:
    """No first token by the start deadline."""
    return End("failed", failure=failure("start_deadline_exceeded", "no engine answered in time: try again"))


def out_of_budget() -> End:
    """All tokens that were asked for have been said."""
    return End("incomplete", reason="max_output_tokens")


@dataclass(slots=True)
class Course:
    """The state of a turn that outlives its runs."""

    stage: Stage = "taking"
    moved: float = field(default_factory=lambda: asyncio.get_running_loop().time())
    """When it last got on, by the loop's clock."""
    times: dict[str, int] = field(default_factory=lambda: {"taken": now_ms()})
    said: int | None = None
    """When its last text was written, in ms."""
    generated: int = 0
    """Tokens that the engine has made for this holder."""
    inherited: int | None = None
    """Tokens that were on the route when the turn was first taken here: made for those who held it before."""
    answer: Answer | None = None
    """Of the last run: it knows what the guard decided."""
    engine: Engine | None = None
    """Of the last run."""

    def at(self, stage: Stage) -> None:
        """It has come to the next thing to wait for."""
        self.stage = stage
        self.moved = asyncio.get_running_loop().time()

    def stalled(self, now: float, limit_s: float) -> bool:
        """It has not got on for longer than anything that it waits for should take."""
        return self.stage not in LIMITED and now - self.moved > limit_s
