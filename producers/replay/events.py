"""What a record says, whatever topic it comes from."""

from __future__ import annotations

from collections.abc import Callable

import orjson
from pydantic import BaseModel, ValidationError

from parley.log.ranges import Record
from schemas.routes import decode_route_record
from schemas.wire import EVENTS, BadRecord, decoder, describe, header

_DECODERS: dict[str, Callable[[bytes | None], BaseModel]] = {kind: decoder(event) for kind, event in EVENTS.items()}


def events_of(record: Record) -> tuple[BaseModel, ...]:
    """The events of a record: several on a route, else one.

    Raises:
        BadRecord: this version can't read it.
    """
    value: bytes | None = record.value
    if value is None:
        raise BadRecord("the record has no value")
    if value[:1] == b"[":
        try:
            return decode_route_record(value)
        except ValidationError as error:
            raise BadRecord(describe(error)) from None
    return (_DECODERS[_kind(value)](value),)


def _kind(value: bytes) -> str:
    try:
        kind = orjson.loads(value)["type"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        raise BadRecord("it is no event") from None
    if kind not in _DECODERS:
        raise BadRecord("there is no event of its type")
    return str(kind)


def place(record: Record) -> str:
    """Where a record lies: chat.prompts-3@120."""
    return f"{record.topic}-{record.partition}@{record.offset}"


def response_of(record: Record) -> str | None:
    """The response that a record is about, as far as its headers or its key tell."""
    found = header(record.headers, "response")
    if found is None and (record.key or b"").startswith(b"resp_"):
        found = (record.key or b"").decode("ascii", "replace")
    return found
