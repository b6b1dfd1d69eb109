"""What the roles tell each other and their operators."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from schemas.base import Event, Millis, Model, ResponseId, SessionId, UserId


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
    engine: str | None = None
    """Where the worker's own engine is."""
    drained: bool = False
    """An operator has taken that engine out: the worker begins nothing on it while another one answers."""
    runs: dict[str, int] | None = None
    """Turns that the worker runs on each engine of the pool, its own or not, by address; None: it doesn't say."""
    at: Millis


class PoolDrain(Event):
    """An operator takes a pool, or one engine of it, out of use, or puts it back; compacted by pool and engine."""

    type: Literal["pool.drain"] = "pool.drain"
    pool: str
    engine: str | None = None
    """Its address, as workers know it; None: the whole pool."""
    drained: bool
    """False: in use again."""
    who: str
    """The operating system's name of the operator, and the machine's."""
    at: Millis


class PartitionMoved(Model):
    """Where a group goes on in one partition."""

    partition: int = Field(ge=0)
    before: int | None
    """Its committed offset; None: it had committed none."""
    after: int = Field(ge=0)


class OffsetsMoved(Event):
    """An operator moves a group's committed offsets of one topic. Written before it is done: it may have failed."""

    type: Literal["offsets.moved"] = "offsets.moved"
    who: str
    """The operating system's name of the operator, and the machine's."""
    command: str
    group: str
    topic: str
    moved: tuple[PartitionMoved, ...]
    at: Millis


class UsageLimit(Event):
    """A user crossed a limit, or came back under it; compacted by user."""

    type: Literal["usage.limit"] = "usage.limit"
    user: UserId
    limit: str
    over: bool
    until: Millis | None = None
    at: Millis


class ContentRead(Event):
    """An operator was shown what somebody wrote, or an answer to it. Written before it is shown."""

    type: Literal["content.read"] = "content.read"
    who: str
    """The operating system's name of the user, and the machine's: as true as those are."""
    command: str
    session: SessionId | None = None
    response: ResponseId | None = None
    what: str
    """What was asked for: an id, or a place in the log."""
    at: Millis
