"""chat.turns: the state log of sessions. Everything that is kept of a session is a fold of these events."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from schemas.base import (
    Dispatch,
    Epoch,
    Event,
    Failure,
    Item,
    JsonObject,
    Millis,
    ResponseId,
    Route,
    Sampling,
    SessionId,
    Tier,
    Timings,
    Traceparent,
    Usage,
    UserId,
)
from schemas.routes import TerminalKind


class TurnStarted(Event):
    """The orchestrator's decision about a turn: to run it on a pool, or (no pool) to end it."""

    type: Literal["turn.started"] = "turn.started"
    response: ResponseId
    session: SessionId
    user: UserId
    tier: Tier
    turn: int = Field(ge=1)
    """1, 2, … in the session: the order of messages, never a clock."""
    parent: ResponseId | None
    items: tuple[Item, ...]
    instructions: str | None = None
    pool: str | None
    why: TerminalKind | Literal["expired"] | None = None
    """Without a pool: how the turn is being ended."""
    failure: Failure | None = None
    """Of a turn that is being ended as failed."""
    model: str
    dispatch: Dispatch
    key_hash: str | None = None
    body_hash: str | None = None
    listed: bool = True
    store: bool = True
    truncation: Literal["auto", "disabled"] = "auto"
    sampling: Sampling = Sampling()
    route: Route
    deadline: Millis
    """The first token must be on the route by then; it begins to run when the turn's turn comes."""
    moderation_deadline: Millis
    echo: JsonObject = Field(default_factory=dict)
    """The request's fields that the public response repeats."""
    prompt_tokens: int = 0
    dropped_turns: int = 0
    """Turns of the path that did not fit the context window."""
    accepted_at: Millis
    traceparent: Traceparent | None = None


class TurnEnded(Event):
    """The end of a turn, self-contained: views need nothing else to keep the turn."""

    type: Literal["turn.ended"] = "turn.ended"
    response: ResponseId
    session: SessionId
    user: UserId
    tier: Tier
    turn: int = Field(ge=1)
    parent: ResponseId | None
    dispatch: Dispatch
    """Under which its writer acted; differs from the epoch's when a later dispatch repeats an end."""
    epoch: Epoch
    """Of the fence that the terminal belongs to; NO_EPOCH when the turn never ran."""
    status: TerminalKind | Literal["expired"]
    reason: str | None = None
    failure: Failure | None = None
    output: tuple[Item, ...]
    delta_lengths: tuple[int, ...] = ()
    """Characters of each delta, so that a stored answer replays with the same event numbers."""
    waited: bool = False
    """The turn's Opened said waiting: its public events begin with created, queued."""
    usage: Usage = Usage()
    dropped_turns: int = Field(default=0, ge=0)
    """Earlier turns that the model did not see, since they no longer fit its context."""
    timings: Timings = Timings()
    model: str
    pool: str | None = None
    engine: str | None = None
    model_revision: str | None = None
    template: str | None = None
    policy: str | None = None
    code: str
    seed: int | None = None
    continued_at: tuple[int, ...] = ()
    """Characters that the answer had at each takeover."""
    accepted_at: Millis
    ended_at: Millis
    listed: bool = True
    store: bool = True
    traceparent: Traceparent | None = None


class SessionChanged(Event):
    """A user opened a session or changed what describes it. Fields that are None stay as they are."""

    type: Literal["session.changed"] = "session.changed"
    session: SessionId
    user: UserId
    at: Millis
    opened: bool = False
    opened_with: str | None = None
    """Hash of the body of a keyed request that opened the session, hex: another body with the key is refused."""
    title: str | None = None
    metadata: dict[str, str] | None = None


class SessionDeleted(Event):
    """A user deleted a session: nothing is kept of it beyond the log's retention."""

    type: Literal["session.deleted"] = "session.deleted"
    session: SessionId
    user: UserId
    at: Millis


class Feedback(Event):
    """A user's thumb on an answer."""

    type: Literal["feedback"] = "feedback"
    response: ResponseId
    session: SessionId
    user: UserId
    rating: Literal["up", "down"]
    comment: str | None = None
    at: Millis
