"""From acceptance to the engine: prompts, verdicts, cancels and inference requests."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from schemas.base import (
    Dispatch,
    Event,
    Item,
    JsonObject,
    MessageId,
    Millis,
    Model,
    ResponseId,
    Route,
    Sampling,
    SessionId,
    Tier,
    Timings,
    Traceparent,
    UserId,
)


class PromptAccepted(Event):
    """A user's prompt, in the log on all in-sync replicas: from here the turn ends exactly once."""

    type: Literal["prompt.accepted"] = "prompt.accepted"
    response: ResponseId
    session: SessionId
    user: UserId
    tier: Tier
    accepted_at: Millis
    model: str
    items: tuple[Item, ...] = Field(min_length=1)
    """What the user sent in this turn, in order; the last is the newest prompt."""
    instructions: str | None = None
    sampling: Sampling = Sampling()
    parent: ResponseId | None = None
    """The turn that this one follows; None: the session's newest."""
    new_session: bool
    """The edge made the session for this prompt: there is nothing to look for."""
    listed: bool = True
    """The session shows up in the user's list."""
    store: bool = True
    truncation: Literal["auto", "disabled"] = "auto"
    """auto: older turns that do not fit are left out; disabled: the turn fails instead."""
    route: Route
    key_hash: str | None = None
    """HMAC(user, Idempotency-Key), hex."""
    body_hash: str | None = None
    """Hash of the request body that came with the key, hex."""
    echo: JsonObject = Field(default_factory=dict)
    """The request's fields that the public response repeats."""
    traceparent: Traceparent | None = None

    def input_texts(self) -> list[str]:
        """What input moderation scores: messages, those put in the assistant's mouth too, and instructions."""
        texts = [item.text for item in self.items]
        return [*texts, self.instructions] if self.instructions else texts


class Verdict(Event):
    """A decision on a text. The first in log order for (response, stage) counts."""

    type: Literal["verdict"] = "verdict"
    response: ResponseId
    session: SessionId
    stage: Literal["input", "output"]
    decision: Literal["allow", "block"]
    categories: tuple[str, ...] = ()
    scores: dict[str, float] = Field(default_factory=dict)
    policy: str
    model: str
    at: Millis


class Cancel(Event):
    """A user's wish, from any device, that a turn ends now. Durable and idempotent."""

    type: Literal["cancel"] = "cancel"
    response: ResponseId
    session: SessionId
    user: UserId
    at: Millis


class OutputItem(Model):
    """The message that the answer will be: known at acceptance."""

    id: MessageId


class InferenceRequest(Event):
    """All that a worker needs to run a turn: replay needs nothing else."""

    type: Literal["inference.request"] = "inference.request"
    response: ResponseId
    session: SessionId
    user: UserId
    tier: Tier
    turn: int = Field(ge=1)
    parent: ResponseId | None
    dispatch: Dispatch
    pool: str
    model: str
    prompt: str
    """The text for the engine, after the chat template, with the assistant's turn left open."""
    prompt_tokens: int
    dropped_turns: int = Field(default=0, ge=0)
    """Earlier turns that did not fit."""
    max_tokens: int = Field(ge=1)
    """The answer's token budget: the asked or default limit, cut to what the context leaves."""
    sampling: Sampling
    output: OutputItem
    route: Route
    deadline: Millis
    """The first token must be on the route by then."""
    moderation_deadline: Millis
    verdict: Verdict | None = None
    """The verdict on the prompt, if it was known at dispatch."""
    template: str
    listed: bool = True
    store: bool = True
    timings: Timings
    traceparent: Traceparent | None = None
