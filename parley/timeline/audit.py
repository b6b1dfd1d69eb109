"""Who was shown what people wrote, and who moved a group: records in chat.audit, acknowledged before it is done."""

from __future__ import annotations

import getpass
import logging
import socket
from collections.abc import Sequence
from uuid import UUID

from parley.clock import now_ms
from parley.errors import ParleyError
from parley.log.partitions import partition_of, session_key
from parley.log.producer import Producer
from parley.settings import Settings
from parley.topics import AUDIT
from schemas.base import Event
from schemas.operations import ContentRead, OffsetsMoved
from schemas.wire import Headers, encode, headers

log = logging.getLogger(__name__)


def operator() -> str:
    """user@machine, as the operating system tells."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, in a container
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


async def record_reading(
    settings: Settings, command: str, what: str, *, session: UUID | None = None, response: str | None = None
) -> None:
    """Put into the log that the operator is shown contents.

    Raises:
        ParleyError: log_unavailable: it can't be recorded, so nothing may be shown.
    """
    event = ContentRead(who=operator(), command=command, what=what, session=session, response=response, at=now_ms())
    key = session_key(session.hex) if session else what.encode()
    about = headers(event.type, response=response, session=session.hex if session else None)
    try:
        await _record(settings, [event], key, about)
    except ParleyError as error:
        raise ParleyError(
            error.kind.code, f"nothing is shown, since the reading can't be recorded in {AUDIT}: {error.message}"
        ) from error


async def record_moves(settings: Settings, moves: Sequence[OffsetsMoved]) -> None:
    """Put into the log that the operator moves a group's offsets; the moves are one group's.

    Raises:
        ParleyError: log_unavailable: it can't be recorded, so nothing may be moved.
    """
    try:
        await _record(settings, moves, moves[0].group.encode(), headers(moves[0].type))
    except ParleyError as error:
        raise ParleyError(
            error.kind.code, f"nothing was moved, since it can't be recorded in {AUDIT}: {error.message}"
        ) from error


async def _record(settings: Settings, events: Sequence[Event], key: bytes, about: Headers) -> None:
    partition = partition_of(key, settings.topics.topics[AUDIT].partitions)
    producer = Producer(settings.kafka, "parley-audit")
    await producer.start()
    try:
        for event in events:
            await producer.send(AUDIT, encode(event), key=key, partition=partition, headers=about)
    finally:
        await producer.stop()
