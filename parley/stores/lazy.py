"""A message store that is connected to when it is first asked, so that a role starts and works while it is down."""

from __future__ import annotations

import asyncio

from parley.settings import MessagesSettings
from parley.stores.messages import MessageStore


class LazyMessageStore:
    """The message store behind a connection that is made when needed, and tried again with the next question."""

    def __init__(self, settings: MessagesSettings) -> None:
        self._settings = settings
        self._store: MessageStore | None = None
        self._connecting = asyncio.Lock()

    async def get(self) -> MessageStore:
        """The store.

        Raises:
            ParleyError: store_unavailable.
        """
        async with self._connecting:
            if self._store is None:
                self._store = await MessageStore.connect(self._settings)
            return self._store

    async def close(self) -> None:
        """Disconnect, if there is a connection."""
        if self._store is not None:
            await self._store.close()
