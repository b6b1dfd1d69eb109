"""chat.turns into the message store."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from parley.log.views import Entry
from parley.stores.messages import MessageStore
from schemas.turns import SessionChanged, SessionDeleted, TurnEnded, TurnStarted
from schemas.wire import BadRecord, TurnsEvent

log = logging.getLogger(__name__)


KNOWN_S = 600.0
"""How long a session's header is known without being read again. Should another process have deleted the session
meanwhile, what is written by what is known here is dead on arrival: a deletion is stamped with an hour's lead."""
KNOWN = 10_000
"""Sessions whose headers are known, at most."""


@dataclass(slots=True)
class _Known:
    """What events so far came to."""

    owner: UUID | None
    deleted: bool
    since: float


class MessagesView:
    """Sessions side by side, each one's events in order."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._known: dict[UUID, _Known] = {}

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
        known = await self._what_is_known(session)
        try:
            for entry in entries:
                if known.owner not in (None, entry.event.user):
                    log.warning("%d: an event of another user than the session's is void", entry.offset)
                    continue
                deletes = isinstance(entry.event, SessionDeleted)
                if deletes or not known.deleted:  # a deletion again, too: the first time may have been cut
                    await self._event(entry)
                known.owner, known.deleted = entry.event.user, known.deleted or deletes
        except BaseException:
            self._known.pop(session, None)  # what was written of it, only the store can tell
            raise

    async def _what_is_known(self, session: UUID) -> _Known:
        """Whose the session is, and whether it was deleted."""
        now = time.monotonic()
        known = self._known.get(session)
        if known is None or now - known.since > KNOWN_S:
            header = await self._store.header(session)
            known = _Known(header.user if header else None, header is not None and header.deleted, now)
            self._known.pop(session, None)
            self._known[session] = known
            if len(self._known) > KNOWN:
                del self._known[next(iter(self._known))]
        return known

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
