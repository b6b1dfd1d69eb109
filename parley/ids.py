"""Ids that carry their own address.

A session id is a UUIDv7 whose twelve bits after the version are the cell. A response id holds its session, its
acceptance time and its route's lane and offset, so that any edge can find an answer's tokens from the id alone,
without a registry and without a clock. Public ids end in 64 bits of HMAC(key, user, id): a foreign or forged id is
refused without reading anything.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from typing import NewType
from uuid import UUID

from schemas.base import Route

SESSION_TOPIC_LANE: int = 0xFFFF
"""The lane number that stands for the session's own topic."""
MAC_BYTES = 8

Keys = NewType("Keys", tuple[bytes, ...])
"""The edges' secrets for MACs: the current one first; older ones are still accepted."""


class UnknownId(ValueError):
    """Mistyped, forged, or another user's: callers answer all of these alike."""


def new_session(cell: int = 0, now_ms: int | None = None) -> UUID:
    """A fresh session id of a cell (0 to 4095)."""
    ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    return UUID(int=ms << 80 | 0x7 << 76 | cell << 64 | 0b10 << 62 | secrets.randbits(62))


def session_from_key(user: UUID, key_hash: str, cell: int = 0) -> UUID:
    """The session of a keyed request that names none (UUIDv8): the same for every retry, on any edge."""
    digest = int.from_bytes(hashlib.sha256(b"session" + user.bytes + key_hash.encode()).digest()[:16])
    cleared = digest & ~(0xFFFF << 64) & ~(0b11 << 62)
    return UUID(int=cleared | 0x8 << 76 | cell << 64 | 0b10 << 62)


def session_created_ms(session: UUID) -> int | None:
    """When a UUIDv7 session was made, in ms; None for one derived from a key."""
    return session.int >> 80 if session.version == 7 else None


@dataclass(frozen=True, slots=True)
class ResponseAddress:
    """What a response id says."""

    session: UUID
    accepted_ms: int
    lane: int
    """Partition of the lanes' topic, or SESSION_TOPIC_LANE."""
    start: int
    """The reader's offset on the route at acceptance."""
    nonce: bytes

    def body(self) -> bytes:
        """34 bytes: session 16, time 6, lane 2, offset 6, random 4."""
        return (
            self.session.bytes
            + self.accepted_ms.to_bytes(6)
            + self.lane.to_bytes(2)
            + self.start.to_bytes(6)
            + self.nonce
        )

    @classmethod
    def parse(cls, body: bytes) -> ResponseAddress:
        """The address in 34 bytes."""
        return cls(
            UUID(bytes=body[:16]),
            int.from_bytes(body[16:22]),
            int.from_bytes(body[22:24]),
            int.from_bytes(body[24:30]),
            body[30:34],
        )

    def route(self, lanes_topic: str, session_topic_prefix: str) -> Route:
        """Where the turn's token events are."""
        if self.lane == SESSION_TOPIC_LANE:
            return Route(topic=f"{session_topic_prefix}{self.session.hex}", partition=0, start=self.start)
        return Route(topic=lanes_topic, partition=self.lane, start=self.start)


def _mac(key: bytes, user: UUID, kind: bytes, body: bytes) -> bytes:
    return hmac.digest(key, kind + user.bytes + body, "sha256")[:MAC_BYTES]


def _encode(prefix: str, data: bytes) -> str:
    return prefix + urlsafe_b64encode(data).decode().rstrip("=")


def _decode(prefix: str, text: str, size: int) -> bytes:
    if not text.startswith(prefix):
        raise UnknownId(f"an id of this kind begins with {prefix}")
    coded = text[len(prefix) :]
    try:
        data = urlsafe_b64decode(coded + "=" * (-len(coded) % 4))
    except ValueError:
        raise UnknownId("not an id") from None
    if len(data) != size or _encode(prefix, data) != text:  # one id has one spelling
        raise UnknownId("not an id")
    return data


def _check(keys: Keys, user: UUID, kind: bytes, data: bytes) -> bytes:
    body, mac = data[:-MAC_BYTES], data[-MAC_BYTES:]
    if not any(hmac.compare_digest(mac, _mac(key, user, kind, body)) for key in keys):
        raise UnknownId("not an id")
    return body


def conversation_id(keys: Keys, user: UUID, session: UUID) -> str:
    """The public id of a session."""
    return _encode("conv_", session.bytes + _mac(keys[0], user, b"conv", session.bytes))


def parse_conversation_id(keys: Keys, user: UUID, text: str) -> UUID:
    """The session that a public id of this user names.

    Raises:
        UnknownId: mistyped, forged or somebody else's.
    """
    return UUID(bytes=_check(keys, user, b"conv", _decode("conv_", text, 24)))


def session_of(text: str) -> UUID:
    """The session in a conversation id that an operator looks into: the MAC, which needs the user, is not checked.

    Raises:
        UnknownId: not a conversation id.
    """
    return UUID(bytes=_decode("conv_", text, 24)[:-MAC_BYTES])


def new_response_id(keys: Keys, user: UUID, session: UUID, lane: int, start: int, now_ms: int) -> str:
    """The id of a turn that is being accepted."""
    body = ResponseAddress(session, now_ms, lane, start, secrets.token_bytes(4)).body()
    return _encode("resp_", body + _mac(keys[0], user, b"resp", body))


def parse_response_id(keys: Keys, user: UUID, text: str) -> ResponseAddress:
    """The address in a response id of this user.

    Raises:
        UnknownId: mistyped, forged or somebody else's.
    """
    return ResponseAddress.parse(_check(keys, user, b"resp", _decode("resp_", text, 42)))


def response_address(text: str) -> ResponseAddress:
    """The address in a response id from the log, whose MAC has been checked at acceptance.

    Raises:
        UnknownId: not a response id.
    """
    return ResponseAddress.parse(_decode("resp_", text, 42)[:-MAC_BYTES])


def message_id(response: str, position: int) -> str:
    """The id of a turn's item: input items first, then the output. Known at acceptance."""
    return _encode("msg_", _decode("resp_", response, 42) + position.to_bytes(2))


def parse_message_id(text: str) -> tuple[str, int]:
    """(response id, position) of a message.

    Raises:
        UnknownId: not a message id.
    """
    data = _decode("msg_", text, 44)
    return _encode("resp_", data[:-2]), int.from_bytes(data[-2:])
