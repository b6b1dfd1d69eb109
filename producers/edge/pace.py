"""How soon the text of a turn comes to the edge that accepted it: what users wait for, whatever the cause."""

from __future__ import annotations

import time

from parley.clock import now_ms
from parley.stages import STAGES, seconds
from producers.edge.metrics import FIRST_TEXT, GAP
from schemas.base import Tier


class Pace:
    """Of one turn. Made when its request has been parsed; what is done for each piece of text is one observation."""

    __slots__ = ("_began", "_gap", "_kind", "_last")

    def __init__(self, pool: str, tier: Tier) -> None:
        self._kind = (pool, tier)
        self._gap = GAP.labels(pool, tier)
        self._began = time.monotonic()
        self._last: float | None = None

    def accepted(self) -> None:
        """The prompt goes to the log now."""
        STAGES.labels(*self._kind, "edge").observe(time.monotonic() - self._began)

    def text(self, appended: int) -> None:
        """A piece of text has come, which the log took at `appended` (ms)."""
        now = time.monotonic()
        if self._last is None:
            FIRST_TEXT.labels(*self._kind).observe(now - self._began)
            STAGES.labels(*self._kind, "fan-out").observe(seconds(appended, now_ms()))
        else:
            self._gap.observe(now - self._last)
        self._last = now
