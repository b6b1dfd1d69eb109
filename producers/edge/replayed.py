"""A stored turn as the route events that it was made from, so that a replay has the same events and numbers.

The store keeps the answer's items and the lengths of its deltas; fed through the same projection as the live route,
they give the events that the first reader saw (protocol.md, section 3). Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol
from uuid import UUID

from parley.errors import failure
from producers.edge.projection import Projection
from schemas.base import NO_EPOCH, Failure, Item, JsonObject, Refusal, Usage
from schemas.routes import Delta, Fence, Opened, Terminal, TerminalKind
from schemas.turns import TurnEnded

WRITER = "store"


class EndedTurn(Protocol):
    """What a replay needs of a turn that has ended, beside its echo; the store's turns and TurnEnded have it."""

    @property
    def response(self) -> str: ...
    @property
    def user(self) -> UUID: ...
    @property
    def status(self) -> str | None: ...
    @property
    def reason(self) -> str | None: ...
    @property
    def failure(self) -> Failure | None: ...
    @property
    def output(self) -> Sequence[Item]: ...
    @property
    def delta_lengths(self) -> Sequence[int]: ...
    @property
    def waited(self) -> bool: ...
    @property
    def usage(self) -> Usage: ...
    @property
    def dropped_turns(self) -> int: ...
    @property
    def model(self) -> str: ...
    @property
    def accepted_at(self) -> int: ...
    @property
    def ended_at(self) -> int | None: ...


class StoredEnd(EndedTurn, Protocol):
    """The same with what the response repeats of its request."""

    @property
    def echo(self) -> JsonObject: ...


def replay(turn: StoredEnd, session: UUID) -> Projection:
    """The projection of a finished turn, complete."""
    return _projection(turn, session, turn.echo)


def ended_projection(end: TurnEnded, echo: JsonObject) -> Projection:
    """The same from the state log. What the response repeats of its request is in the turn's beginning."""
    return _projection(end, end.session, echo)


def _projection(turn: EndedTurn, session: UUID, echo: JsonObject) -> Projection:
    projection = Projection(turn.response)
    for event in route_events(turn, session, echo):
        projection.apply(event)
    return projection


def route_events(turn: EndedTurn, session: UUID, echo: JsonObject) -> Iterator[Opened | Fence | Delta | Terminal]:
    """The events that a route would hold, had one writer written the whole turn."""
    yield Opened(session=session, user=turn.user, created_at=turn.accepted_at, waiting=turn.waited, echo=dict(echo))
    yield Fence(epoch=NO_EPOCH, writer=WRITER)
    text = "".join(item.text for item in turn.output)
    begin = 0
    for seq, length in enumerate(turn.delta_lengths):
        yield Delta(writer=WRITER, seq=seq, text=text[begin : begin + length], tokens=0)
        begin += length
    refusals = [part.refusal for item in turn.output for part in item.parts if isinstance(part, Refusal)]
    yield Terminal(
        writer=WRITER,
        seq=len(turn.delta_lengths),
        kind=_kind(turn.status),
        reason=turn.reason,
        failure=turn.failure
        or (failure("expired", "the turn waited too long and was not run") if turn.status == "expired" else None),
        refusal="".join(refusals) if refusals else None,
        model=turn.model,
        usage=turn.usage,
        dropped_turns=turn.dropped_turns,
        ended_at=turn.ended_at or turn.accepted_at,
    )


def _kind(status: str | None) -> TerminalKind:
    match status:
        case "completed" | "incomplete" | "refused" | "cancelled" | "failed":
            return status
        case _:  # expired: it never had a terminal on a route
            return "failed"
