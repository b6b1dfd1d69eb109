"""Events without whose they are and without what was said, in the same shape. Pure.

Ids become other ids, the same one always the same; each letter becomes an x, each figure a 0. Lengths, whitespace and
punctuation stay, so pieces of a text still are pieces of that text.
"""

from __future__ import annotations

import hashlib
from typing import Any
from uuid import UUID, uuid4

from parley.ids import (
    Keys,
    message_id,
    new_response_id,
    new_session,
    parse_message_id,
    response_address,
    session_created_ms,
)
from parley.timeline.redact import OPAQUE, PLAIN

_KEYS = Keys((b"no edge's secret: of fixtures, 32",))
_HASHES = frozenset({"key_hash", "body_hash", "opened_with"})
_MACHINES = frozenset({"engine", "worker", "writer", "who"})
"""Fields whose values may name a machine or a person who operates it."""
_DROPPED = frozenset({"traceparent"})
"""Ids that a client made: they lead to its own traces."""


class Disguise:
    """One mapping of ids, for all events that belong together."""

    def __init__(self, *, content: bool = False) -> None:
        self._content = content
        self._uuids: dict[UUID, UUID] = {}
        self._responses: dict[str, str] = {}

    def event(self, fields: dict[str, Any]) -> dict[str, Any]:
        """An event's JSON, disguised."""
        disguised: dict[str, Any] = self._value(fields, "")
        return disguised

    def uuid(self, real: UUID) -> UUID:
        """A session's or user's other id; that of a session was made at the same time."""
        if real not in self._uuids:
            born = session_created_ms(real)
            self._uuids[real] = uuid4() if born is None else new_session(now_ms=born)
        return self._uuids[real]

    def response(self, real: str) -> str:
        """A response's other id: of the other session, with the same time and the same place on its route."""
        if real not in self._responses:
            at = response_address(real)
            session = self.uuid(at.session)
            self._responses[real] = new_response_id(_KEYS, session, session, at.lane, at.start, at.accepted_ms)
        return self._responses[real]

    def _value(self, value: Any, name: str) -> Any:
        if name in OPAQUE:
            return type(value)()
        if name in _DROPPED:
            return None
        if isinstance(value, dict):
            return {key: self._value(inner, key) for key, inner in value.items()}
        if isinstance(value, list):
            return [self._value(inner, name) for inner in value]
        return self._text(value, name) if isinstance(value, str) else value

    def _text(self, text: str, name: str) -> str:
        if text.startswith("resp_") and name != "text":
            return self.response(text)
        if text.startswith("msg_") and name != "text":
            response, position = parse_message_id(text)
            return message_id(self.response(response), position)
        if name in ("session", "user"):
            return str(self.uuid(UUID(text)))
        if name in _HASHES:
            return hashlib.sha256(b"disguised" + text.encode()).hexdigest()
        if name in _MACHINES:
            return f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
        if name == "topic":
            for real, other in self._uuids.items():
                text = text.replace(real.hex, other.hex)
        return text if name in PLAIN or self._content else shape(text)


def shape(text: str) -> str:
    """The text's outline: "Is it 7?" becomes "Xx xx 0?"."""
    return "".join(map(_outline, text))


def _outline(character: str) -> str:
    if character.isalpha():
        return "X" if character.isupper() else "x"
    if character.isdigit():
        return "0"
    return character if character.isascii() or character.isspace() else "□"
