"""One record of any topic as entries, judged by nothing else: what `parley log TOPIC` shows. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
from pydantic import BaseModel, ValidationError

from parley.ids import UnknownId, response_address
from parley.log.ranges import Record
from parley.timeline.fold import DEAD_LETTER, UNREADABLE, Entry, entry_of, letter_note
from parley.topics import DLQ
from schemas.routes import decode_route_record
from schemas.wire import EVENTS, BadRecord, decoder, describe, header

TOMBSTONE = "tombstone"
"""A record without a value: of a compacted topic, the end of its key."""
OTHER = "record"
"""A record of a topic that is not ours to read: a changelog of Faust's."""

_decoders: dict[str, Callable[[bytes | None], BaseModel]] = {name: decoder(event) for name, event in EVENTS.items()}


def entries_of(record: Record) -> list[Entry]:
    """The events of a record: one, or those of a route record."""
    response = response_of(record)
    if record.topic == DLQ:
        return [entry_of(record, DEAD_LETTER, response, note=letter_note(record))]
    if record.value is None:
        return [entry_of(record, TOMBSTONE, response)]
    if record.value.startswith(b"["):
        try:
            events = decode_route_record(record.value)
        except ValidationError as error:
            return [entry_of(record, UNREADABLE, response, note=describe(error))]
        return [entry_of(record, event.type, response, event) for event in events]
    kind = _type(record.value)
    if kind not in _decoders:
        size = f"{len(record.value)} bytes"
        if kind is None:
            return [entry_of(record, OTHER, response, note=size)]
        return [entry_of(record, UNREADABLE, response, note=f"no event {kind[:40]!r}, {size}")]
    try:
        event: Any = _decoders[kind](record.value)
    except BadRecord as error:
        return [entry_of(record, UNREADABLE, response, note=str(error))]
    return [entry_of(record, kind, getattr(event, "response", None) or response, event)]


def response_of(record: Record) -> str | None:
    """The response that a record belongs to, by its headers, or by the key on a route."""
    told = header(record.headers, "response")
    if told is not None:
        return told
    key = (record.key or b"")[:5]
    return record.key.decode("ascii", "replace") if key == b"resp_" and record.key else None


def session_of(record: Record, entry: Entry) -> str | None:
    """The session that an entry belongs to, as 32 hex digits: by the event, the headers or the response's id."""
    session = getattr(entry.event, "session", None)
    if session is not None:
        return str(session.hex)
    told = header(record.headers, "session")
    if told is not None:
        return told
    if entry.response is not None:
        try:
            return response_address(entry.response).session.hex
        except UnknownId:
            return None
    return None


def _type(value: bytes) -> str | None:
    try:
        told = orjson.loads(value)
    except orjson.JSONDecodeError:
        return None
    kind = told.get("type") if isinstance(told, dict) else None
    return kind if isinstance(kind, str) else None
