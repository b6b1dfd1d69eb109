"""The wall clock, as events carry it."""

from __future__ import annotations

import time


def now_ms() -> int:
    """Milliseconds since the Unix epoch."""
    return time.time_ns() // 1_000_000


def left_s(deadline_ms: int) -> float:
    """Seconds until a deadline; 0 when it has passed."""
    return max(0.0, (deadline_ms - now_ms()) / 1000)
