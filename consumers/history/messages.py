"""chat.turns into the message store."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Sequence
from uuid import UUID

from parley.log.views import Entry
from parley.stores.messages import MessageStore
from schemas.turns import SessionChanged, SessionDeleted, TurnEnded, TurnStarted
from schemas.wire import BadRecord, TurnsEvent

log = logging.getLogger(__name__)


class MessagesView:
    """Sessions side by side, each one's events in order. Nothing is remembered between batches."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store

    async def apply(self, entries: Sequence[Entry[TurnsEvent]]) -> None:
        """Write these events.

        Raises:
            ParleyError: store_unavailable. Some of them may have been written.
            BadRecord: the store can never take one of them.
        """
        sessions: dict[UUID, list[Entry[TurnsEvent]]] = defaultdict(list)
        for entry in entries:
            sessions[entry.event.session].append(entry)
        outcomes = await asyncio.gather(
            *(self._session(session, mine) for session, mine in sessions.items()), return_exceptions=True
        )
        errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        for error in sorted(errors, key=lambda error: isinstance(error, BadRecord)):
            raise error

    async def _session(self, session: UUID, entries: Sequence[Entry[TurnsEvent]]) -> None:
        """The header says what events before these came to: the session's user, and whether it was deleted."""
        header = await self._store.header(session)
        owner = header.user if header else None
        deleted = header is not None and header.deleted
        for entry in entries:
            event = entry.event
            owner = owner or event.user
            if event.user != owner:
                log.warning("%d: an event of another user than the session's is void", entry.offset)
            elif isinstance(event, SessionDeleted):
                await self._event(
                    entry
                )  # again, should the session be marked already: the first time may have been cut
                deleted = True
            elif not deleted:
                await self._event(entry)

    async def _event(self, entry: Entry[TurnsEvent]) -> None:
        match entry.event:
            case TurnStarted() as event:
                await self._store.write_started(event, offset=entry.offset, appended=entry.appended)
            case TurnEnded() as event:
                await self._store.write_ended(event, offset=entry.offset, appended=entry.appended)
            case SessionChanged() as event:
                await self._store.write_changed(event)
            case SessionDeleted() as event:
                await self._store.delete(event, appended=entry.appended)
