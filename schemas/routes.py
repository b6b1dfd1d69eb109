"""What is written to a turn's route. A record is a list of these events, keyed by the response.

protocol.md, section 3, is the source of the rules; parley.transcript folds them.
"""

from __future__ import annotations

from typing import Annotated, Literal

import orjson
from pydantic import Field, TypeAdapter

from schemas.base import Epoch, Event, Failure, JsonObject, Millis, ResponseId, SessionId, Usage, UserId

TerminalKind = Literal["completed", "incomplete", "refused", "cancelled", "failed"]


class Opened(Event):
    """The orchestrator has seen the prompt. The first in log order counts; it has no epoch."""

    type: Literal["opened"] = "opened"
    session: SessionId
    user: UserId
    created_at: Millis
    waiting: bool
    """An earlier turn of the session has not ended yet."""
    duplicate_of: ResponseId | None = None
    conflict: bool = False
    """The key came before with another body: the turn never runs."""
    echo: JsonObject = Field(default_factory=dict)


class Fence(Event):
    """Opens a run of the turn: what a writer of a smaller epoch writes after it is void."""

    type: Literal["fence"] = "fence"
    epoch: Epoch
    writer: str


class Delta(Event):
    """A piece of the answer. `seq` counts the deltas and the terminal of the turn over all its runs."""

    type: Literal["delta"] = "delta"
    writer: str
    seq: int = Field(ge=0)
    text: str
    tokens: int = Field(ge=0)


class Terminal(Event):
    """The one end of the turn. The client's last event is made from this."""

    type: Literal["terminal"] = "terminal"
    writer: str
    seq: int = Field(ge=0)
    kind: TerminalKind
    reason: str | None = None
    """Of an incomplete answer: max_output_tokens or content_filter."""
    failure: Failure | None = None
    refusal: str | None = None
    model: str
    usage: Usage = Usage()
    dropped_turns: int = Field(default=0, ge=0)
    """Earlier turns that the model did not see, since they no longer fit its context."""
    ended_at: Millis


RouteEvent = Annotated[Opened | Fence | Delta | Terminal, Field(discriminator="type")]
_RECORD: TypeAdapter[tuple[Opened | Fence | Delta | Terminal, ...]] = TypeAdapter(tuple[RouteEvent, ...])


def decode_route_record(value: bytes) -> tuple[Opened | Fence | Delta | Terminal, ...]:
    """The events of one record.

    Raises:
        pydantic.ValidationError: not a list of route events of a version that this code knows.
    """
    return _RECORD.validate_json(value)


def encode_route_record(events: tuple[Opened | Fence | Delta | Terminal, ...]) -> bytes:
    """One record of these events."""
    return _RECORD.dump_json(events)


def encode_delta(writer: str, seq: int, text: str, tokens: int) -> bytes:
    """A record of one delta: the bytes of `encode_route_record`, made faster since every token needs them."""
    return orjson.dumps([{"v": 1, "type": "delta", "writer": writer, "seq": seq, "text": text, "tokens": tokens}])
