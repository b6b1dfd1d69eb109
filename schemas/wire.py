"""Events to bytes and back, and the headers that say what a record is when its body can't be read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Any, TypeVar, Union, cast

import orjson
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from schemas.base import Route
from schemas.operations import ContentRead, OffsetsMoved, PoolDrain, PoolStatus, UsageLimit
from schemas.prompts import Cancel, InferenceRequest, PromptAccepted, Verdict
from schemas.routes import Delta, Fence, Opened, Terminal
from schemas.turns import Feedback, SessionChanged, SessionDeleted, TurnEnded, TurnStarted

TurnsEvent = TurnStarted | TurnEnded | SessionChanged | SessionDeleted | Feedback
"""What chat.turns carries."""

EVENTS: dict[str, type[BaseModel]] = {
    str(event.model_fields["type"].default): event
    for event in (
        PromptAccepted,
        Verdict,
        Cancel,
        InferenceRequest,
        Opened,
        Fence,
        Delta,
        Terminal,
        TurnStarted,
        TurnEnded,
        SessionChanged,
        SessionDeleted,
        Feedback,
        PoolStatus,
        PoolDrain,
        OffsetsMoved,
        UsageLimit,
        ContentRead,
    )
}
"""Every event by its type."""

Headers = tuple[tuple[str, bytes], ...]
E_ = TypeVar("E_", bound=BaseModel)


class BadRecord(ValueError):
    """Bytes that are no event of the kinds expected. It will not get better by trying again."""


def encode(event: BaseModel) -> bytes:
    """The event's JSON."""
    return event.model_dump_json().encode()


def decoder(*types: type[E_]) -> Callable[[bytes | None], E_]:
    """A function from a record's value to an event of one of these types; it raises BadRecord."""
    union: Any = types[0] if len(types) == 1 else Annotated[Union[types], Field(discriminator="type")]  # noqa: UP007
    adapter: TypeAdapter[E_] = TypeAdapter(union)

    def decode(value: bytes | None) -> E_:
        if value is None:
            raise BadRecord("the record has no value")
        try:
            return adapter.validate_json(value)
        except ValidationError as error:
            raise BadRecord(describe(error)) from None

    return decode


decode_turns_event = cast(
    "Callable[[bytes | None], TurnsEvent]",
    decoder(TurnStarted, TurnEnded, SessionChanged, SessionDeleted, Feedback),
)
"""An event of chat.turns; raises BadRecord."""


def describe(error: ValidationError) -> str:
    """Where and why a value was refused, without the value: it may be what somebody wrote."""
    return "; ".join(f"{'.'.join(map(str, e['loc'])) or 'record'}: {e['msg']}" for e in error.errors()[:5])


def headers(
    event: str,
    *,
    response: str | None = None,
    session: str | None = None,
    route: Route | None = None,
    deadline: int | None = None,
    dispatch: tuple[int, int] | None = None,
    traceparent: str | None = None,
    more: Iterable[tuple[str, bytes]] = (),
) -> Headers:
    """Headers of a record that belongs to a turn: enough to end the turn when the body is unreadable."""
    pairs = [("type", event.encode())]
    if response is not None:
        pairs.append(("response", response.encode()))
    if session is not None:
        pairs.append(("session", session.encode()))
    if route is not None:
        pairs.append(("route", orjson.dumps([route.topic, route.partition, route.start])))
    if deadline is not None:
        pairs.append(("deadline", b"%d" % deadline))
    if dispatch is not None:
        pairs.append(("dispatch", b"%d.%d" % dispatch))
    if traceparent is not None:
        pairs.append(("traceparent", traceparent.encode()))
    return (*pairs, *more)


def header(pairs: Iterable[tuple[str, bytes]], name: str) -> str | None:
    """The first header of this name as text, or None when it is missing or no text."""
    for key, value in pairs:
        if key == name:
            try:
                return value.decode()
            except UnicodeDecodeError:
                return None
    return None


def route_of(pairs: Iterable[tuple[str, bytes]]) -> tuple[str, Route] | None:
    """(response, route) of the headers of a record that belongs to a turn."""
    pairs = list(pairs)
    response, route = header(pairs, "response"), header(pairs, "route")
    try:
        topic, partition, start = orjson.loads(route or "")
        where = Route(topic=topic, partition=partition, start=start)
    except (ValueError, TypeError):
        return None
    return (response, where) if response else None


def turn_of(pairs: Iterable[tuple[str, bytes]]) -> tuple[str, Route, tuple[int, int]] | None:
    """(response, route, dispatch) of a request's headers: what it takes to end its turn when the body is unreadable."""
    pairs = list(pairs)
    place = route_of(pairs)
    try:
        takeover, count = (int(number) for number in (header(pairs, "dispatch") or "").split("."))
    except ValueError:
        return None
    return (*place, (takeover, count)) if place else None


STARTED_HEADER = "started"
"""Of a request: the offset of its TurnStarted in chat.turns, which says all that the end of the turn has to say."""
REPLAY_HEADER = "x-replay-id"
"""Stamped on everything that a replay writes; live roles refuse records that carry it."""
