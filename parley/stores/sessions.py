"""The list of a user's sessions: a view of chat.turns in PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

import psycopg
from psycopg.types.json import Jsonb

from parley.stores.postgres import Pool, borrowed
from schemas.base import Item, Millis
from schemas.turns import SessionChanged, SessionDeleted, TurnEnded, TurnStarted
from schemas.wire import BadRecord

TITLE_LIMIT = 60
"""Characters of a title made from a prompt."""

SessionEvent = TurnStarted | TurnEnded | SessionChanged | SessionDeleted

_COLUMNS = "session_id, user_id, title, created_at, updated_at, metadata, opened_with"
_VISIBLE = "user_id = %(user)s AND listed AND deleted_at IS NULL"

# Events of another user than the session's, and events of a deleted session, change nothing; nor does an opening with
# the key and another body than the first. A title that the user gave
# stands before one that was made from a prompt; of two given ones the newer stands. All of it is the same when the log
# is read again from an earlier offset.
_CHANGE = """
INSERT INTO chat_session AS s
    (session_id, user_id, title, titled_at, metadata, described_at, listed, created_at, updated_at, opened_with)
VALUES (%(session)s, %(user)s, coalesce(%(title)s, %(suggested)s), %(titled)s, coalesce(%(metadata)s, '{}'::jsonb),
    %(described)s, %(listed)s, %(at)s, %(at)s, %(opened_with)s)
ON CONFLICT (session_id) DO UPDATE SET
    title = CASE WHEN %(titled)s >= coalesce(s.titled_at, '-infinity') THEN %(title)s
                 ELSE coalesce(s.title, %(suggested)s) END,
    titled_at = greatest(s.titled_at, %(titled)s),
    metadata = CASE WHEN %(described)s >= coalesce(s.described_at, '-infinity') THEN %(metadata)s ELSE s.metadata END,
    described_at = greatest(s.described_at, %(described)s),
    listed = s.listed OR excluded.listed,
    created_at = least(s.created_at, excluded.created_at),
    updated_at = greatest(s.updated_at, excluded.updated_at),
    opened_with = coalesce(s.opened_with, excluded.opened_with)
WHERE s.user_id = excluded.user_id AND s.deleted_at IS NULL
    AND coalesce(s.opened_with = excluded.opened_with, true)
"""
_DELETE = """
INSERT INTO chat_session AS s (session_id, user_id, listed, created_at, updated_at, deleted_at)
VALUES (%(session)s, %(user)s, false, %(at)s, %(at)s, %(at)s)
ON CONFLICT (session_id) DO UPDATE SET
    title = NULL, titled_at = NULL, metadata = '{}', described_at = NULL, deleted_at = excluded.deleted_at
WHERE s.user_id = excluded.user_id AND s.deleted_at IS NULL
"""


@dataclass(frozen=True, slots=True)
class SessionRow:
    """A session as its user sees it in the list."""

    session_id: UUID
    user_id: UUID
    title: str | None
    created_at: datetime
    updated_at: datetime
    metadata: dict[str, str]
    opened_with: str | None = None
    """Hash of the body of the keyed request that opened it."""


def title_from(items: Sequence[Item]) -> str | None:
    """A title from the first thing that a user said: white space collapsed, cut at a word."""
    for item in items:
        text = _storable(" ".join(item.text.split())) if item.role == "user" else ""
        if text:
            return _cut(text, TITLE_LIMIT)
    return None


def _cut(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    head = text[:limit]  # the last place is the ellipsis's
    words, space, _ = head.rpartition(" ")
    return (words if space and len(words) >= limit // 2 else head[:-1]) + "…"


def _storable(text: str) -> str:
    """PostgreSQL keeps every character but NUL."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}")


class Sessions:
    """Sessions in PostgreSQL. Every method may raise ParleyError(store_unavailable)."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def list(self, user_id: UUID, *, limit: int, before: tuple[datetime, UUID] | None = None) -> list[SessionRow]:
        """A user's listed sessions, newest first; the next page is `before` the last row's (updated_at, session_id)."""
        older = "" if before is None else "AND (updated_at, session_id) < (%(updated)s, %(session)s)"
        updated, session = before or (None, None)
        async with borrowed(self._pool) as connection:
            found = await connection.execute(
                f"SELECT {_COLUMNS} FROM chat_session WHERE {_VISIBLE} {older} "
                "ORDER BY updated_at DESC, session_id DESC LIMIT %(limit)s".encode(),
                {"user": user_id, "limit": limit, "updated": updated, "session": session},
            )
            return [SessionRow(*row) for row in await found.fetchall()]

    async def get(self, user_id: UUID, session_id: UUID) -> SessionRow | None:
        """One session of the user, listed or not."""
        async with borrowed(self._pool) as connection:
            found = await connection.execute(
                f"SELECT {_COLUMNS} FROM chat_session "
                "WHERE session_id = %(session)s AND user_id = %(user)s AND deleted_at IS NULL".encode(),
                {"user": user_id, "session": session_id},
            )
            row = await found.fetchone()
        return SessionRow(*row) if row else None

    async def was_deleted(self, user_id: UUID, session_id: UUID) -> bool:
        """The user has had this session, and has deleted it."""
        async with borrowed(self._pool) as connection:
            found = await connection.execute(
                "SELECT 1 FROM chat_session "
                "WHERE session_id = %(session)s AND user_id = %(user)s AND deleted_at IS NOT NULL",
                {"user": user_id, "session": session_id},
            )
            return await found.fetchone() is not None

    async def apply(self, events: Sequence[tuple[SessionEvent, Millis]]) -> None:
        """Bring the view up to these events of chat.turns with their append times, in log order, all or nothing.

        Idempotent: it may run again with the same events, or with older ones.

        Raises:
            BadRecord: PostgreSQL can't keep a value among these events.
        """
        steps = [step for event, at in events if (step := _step(event, at)) is not None]
        if not steps:
            return
        try:
            async with borrowed(self._pool) as connection, connection.pipeline(), connection.transaction():
                for statement, values in steps:
                    await connection.execute(statement.encode(), values)
        except psycopg.DataError as error:
            raise BadRecord(f"can't be stored: {type(error).__name__}") from error


def _step(event: SessionEvent, at: Millis) -> tuple[str, dict[str, object]] | None:
    appended = datetime.fromtimestamp(at / 1000, UTC)
    who: dict[str, object] = {"session": event.session, "user": event.user, "at": appended}
    if isinstance(event, SessionDeleted):
        return _DELETE, who
    change: dict[str, object] = {
        "title": None,
        "suggested": None,
        "titled": None,
        "metadata": None,
        "described": None,
        "listed": False,
        "opened_with": None,
    }
    if isinstance(event, SessionChanged):
        change |= {"listed": event.opened, "opened_with": event.opened_with}
        if event.title is not None:
            change |= {"title": _storable(event.title), "titled": appended}
        if event.metadata is not None:
            pairs = {_storable(key): _storable(value) for key, value in event.metadata.items()}
            change |= {"metadata": Jsonb(pairs), "described": appended}
    elif not event.store:
        return None
    else:
        change["listed"] = event.listed
        if isinstance(event, TurnStarted):
            change["suggested"] = title_from(event.items)
    return _CHANGE, who | change
