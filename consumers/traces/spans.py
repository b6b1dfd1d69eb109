"""One turn's end as the spans of a trace, by OpenTelemetry's conventions for generative AI. Pure.

A span's id is made of the response and the span's name, and a trace without a client's of the response: who exports a
turn twice, after a takeover or a restart, says the same thing twice.

    chat MODEL ─┬─ moderation               accepted … verdict          (beside the others)
                ├─ orchestration            accepted … request
                ├─ queue                    request … taken by a worker
                ├─ slot                     taken … slot of the engine
                ├─ text_completion MODEL    slot … end; an event at its first token
                └─ guard                    first token … first text
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from schemas.base import Millis, Timings
from schemas.turns import TurnEnded

Value = str | int | bool | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Span:
    """One span; times in ms since the Unix epoch."""

    name: str
    trace: str
    """32 hex digits."""
    id: str
    """16 hex digits."""
    parent: str | None
    """None: the root of its trace."""
    start: Millis
    end: Millis
    serves: bool = False
    """Its kind: it answers somebody else's request."""
    calls: bool = False
    """Its kind: it asks an engine."""
    attributes: Mapping[str, Value] = field(default_factory=dict)
    first_token: Millis | None = None
    error: str | None = None
    """What made it fail, by the error taxonomy."""


def spans(ended: TurnEnded) -> list[Span]:
    """The spans of a turn, its own first."""
    trace, parent = _parent(ended)
    root = _id(ended.response, "chat")
    own = Span(
        f"chat {ended.model}",
        trace,
        root,
        parent,
        ended.accepted_at,
        max(ended.accepted_at, ended.ended_at),
        serves=True,
        attributes=dict(_attributes(ended)),
        first_token=ended.timings.released,
        error=ended.failure.code if ended.failure else "expired" if ended.status == "expired" else None,
    )
    return [own, *(_child(ended, trace, root, *stage) for stage in _stages(ended.timings, ended))]


def _child(ended: TurnEnded, trace: str, root: str, name: str, start: Millis, end: Millis) -> Span:
    if name != "engine":
        return Span(name, trace, _id(ended.response, name), root, start, max(start, end))
    model = ended.model_revision or ended.model
    about: dict[str, Value] = {"gen_ai.operation.name": "text_completion", "gen_ai.request.model": model}
    if ended.engine:
        host, _, port = ended.engine.rpartition(":")
        about |= (
            {"server.address": host, "server.port": int(port)} if port.isdecimal() else {"server.address": ended.engine}
        )
    return Span(
        f"text_completion {ended.model}",
        trace,
        _id(ended.response, name),
        root,
        start,
        max(start, end),
        calls=True,
        attributes={"gen_ai.provider.name": "parley", **about},
        first_token=ended.timings.first_token,
    )


def _stages(times: Timings, ended: TurnEnded) -> Iterator[tuple[str, Millis, Millis]]:
    """(name, start, end) of what the turn's times tell."""
    begun = ended.accepted_at
    for name, start, end in (
        ("moderation", begun, times.moderated),
        ("orchestration", begun, times.dispatched),
        ("queue", times.dispatched, times.taken),
        ("slot", times.taken, times.engine_started),
        ("engine", times.engine_started, ended.ended_at),
        ("guard", times.first_token, times.released),
    ):
        if start is not None and end is not None:
            yield name, start, end


def _attributes(ended: TurnEnded) -> Iterator[tuple[str, Value]]:
    yield "gen_ai.operation.name", "chat"
    yield "gen_ai.provider.name", "parley"
    yield "gen_ai.request.model", ended.model
    yield "gen_ai.response.model", ended.model_revision or ended.model
    yield "gen_ai.response.id", ended.response
    yield "gen_ai.conversation.id", str(ended.session)
    yield "gen_ai.response.finish_reasons", (ended.reason or ended.status,)
    yield "gen_ai.usage.input_tokens", ended.usage.input_tokens
    yield "gen_ai.usage.output_tokens", ended.usage.output_tokens
    yield "parley.usage.generated_tokens", ended.usage.generated_tokens
    yield "parley.turn", ended.turn
    yield "parley.tier", ended.tier
    yield "parley.takeovers", len(ended.continued_at)
    if ended.pool:
        yield "parley.pool", ended.pool
    if ended.failure:
        yield "error.type", ended.failure.code


def _parent(ended: TurnEnded) -> tuple[str, str | None]:
    """(trace, parent) by the client's traceparent; without one the trace is the turn's own."""
    if ended.traceparent is None:
        return hashlib.sha256(ended.response.encode()).hexdigest()[:32], None
    _, trace, parent, _ = ended.traceparent.split("-")
    return trace, parent


def _id(response: str, name: str) -> str:
    return hashlib.sha256(f"{response} {name}".encode()).hexdigest()[:16]
