"""What the stores keep for readers: the message store behind a connection that may come later.

The edge starts and carries chats without the message store; only history needs it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from uuid import UUID

from parley.clock import now_ms
from parley.errors import ParleyError
from parley.settings import MessagesSettings, ProtocolSettings
from parley.stores.messages import MessageStore
from parley.stores.stored import SessionHeader, StoredTurn

log = logging.getLogger(__name__)

RETRY_S = 2.0
"""How long a failed attempt to connect is believed before the next."""


def may_run(turn: StoredTurn, protocol: ProtocolSettings) -> bool:
    """The turn has no end and may get one. An older one has ended in a log that was lost with the end.

    A request is taken up to max_turn_age after its prompt, has its deadlines, and is ended max_turn_age after them.
    """
    lasts_s = 2 * protocol.max_turn_age_s + protocol.start_deadline_s + protocol.answer_limit_s + protocol.margin_s
    return turn.status is None and now_ms() - turn.accepted_at <= lasts_s * 1000


class Kept:
    """The message store, for reading. Every method may raise ParleyError(store_unavailable)."""

    def __init__(self, settings: MessagesSettings) -> None:
        self._settings = settings
        self._store: MessageStore | None = None
        self._connecting = asyncio.Lock()
        self._failed: tuple[float, ParleyError] | None = None

    async def warm_up(self) -> None:
        """Connect if the store is there."""
        with contextlib.suppress(ParleyError):
            await self._connected()

    async def close(self) -> None:
        """Disconnect."""
        if self._store is not None:
            await self._store.close()

    async def header(self, session: UUID) -> SessionHeader | None:
        """Whose the session is, and whether it was deleted; None: nothing is stored of it."""
        return await (await self._connected()).header(session)

    async def turn_of(self, session: UUID, response: str) -> StoredTurn | None:
        """The turn of a response."""
        return await (await self._connected()).turn_of(session, response)

    async def turns(
        self, session: UUID, *, after: int, before: int | None, limit: int, newest_first: bool
    ) -> list[StoredTurn]:
        """Turns with numbers between `after` and `before`, both excluded."""
        store = await self._connected()
        return await store.turns(session, after=after, before=before, limit=limit, newest_first=newest_first)

    async def _connected(self) -> MessageStore:
        if self._store is not None:
            return self._store
        async with self._connecting:
            if self._store is None:
                if self._failed is not None and time.monotonic() < self._failed[0]:
                    raise self._failed[1]
                try:
                    self._store = await MessageStore.connect(self._settings)
                except ParleyError as error:
                    self._failed = (time.monotonic() + RETRY_S, error)
                    log.warning("no message store: %s", error)
                    raise
            return self._store
