"""What the roles tell each other and their operators."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from schemas.base import Event, Millis, UserId


class PoolStatus(Event):
    """A worker's state, each second; compacted by (pool, worker)."""

    type: Literal["pool.status"] = "pool.status"
    pool: str
    worker: str
    slots: int = Field(ge=0)
    running: int = Field(ge=0)
    queued: dict[str, int]
    """Requests waiting, by tier."""
    oldest_queued_ms: dict[str, int]
    """Age of the oldest waiting request, by tier."""
    at: Millis


class UsageLimit(Event):
    """A user crossed a limit, or came back under it; compacted by user."""

    type: Literal["usage.limit"] = "usage.limit"
    user: UserId
    limit: str
    over: bool
    until: Millis | None = None
    at: Millis
