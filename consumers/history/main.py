"""`parley history`: one process feeds one store from chat.turns.

Each store has a group of its own: one that is away does not hold the other up. The committed offset of
`history-messages` is also the watermark below which the orchestrator finds sessions in the message store.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Literal, TypeVar

from consumers.history.messages import MessagesView
from parley.log.views import Entry, ViewConsumer
from parley.process import HEALTH, until_stopped
from parley.retrying import until_done
from parley.settings import Settings
from parley.stores.messages import MessageStore
from parley.stores.migrate import migrate_messages, migrate_postgres
from parley.stores.postgres import open_pool
from parley.stores.sessions import Sessions
from parley.topics import TURNS
from schemas.turns import Feedback
from schemas.wire import TurnsEvent, decode_turns_event

T_ = TypeVar("T_")
Store = Literal["messages", "sessions"]
Apply = Callable[[Sequence[Entry[TurnsEvent]]], Awaitable[None]]


class _Stopped(Exception):
    """Asked to end before the store was there."""


def group_of(store: Store) -> str:
    """The consumer group that feeds a store."""
    return f"history-{store}"


async def run(settings: Settings, store: Store) -> None:
    """Feed a store until SIGTERM or SIGINT; what is written by then is committed."""
    stop = asyncio.Event()
    await until_stopped(feed(settings, store, stop), stop.set)


async def feed(settings: Settings, store: Store, stop: asyncio.Event) -> None:
    """Feed a store until `stop` is set. Its tables are made if they aren't there; it is waited for if it isn't."""
    opened = _messages if store == "messages" else _sessions
    with contextlib.suppress(_Stopped):
        async with opened(settings, stop) as apply:
            await ViewConsumer(settings, group_of(store), [TURNS], decode_turns_event, apply, HEALTH).run(stop)


@asynccontextmanager
async def _messages(settings: Settings, stop: asyncio.Event) -> AsyncIterator[Apply]:
    async def connect() -> MessageStore:
        await migrate_messages(settings.messages)
        return await MessageStore.connect(settings.messages)

    store = await _reached(connect, stop)
    try:
        yield MessagesView(store).apply
    finally:
        await store.close()


@asynccontextmanager
async def _sessions(settings: Settings, stop: asyncio.Event) -> AsyncIterator[Apply]:
    await _reached(lambda: migrate_postgres(settings.postgres), stop)
    async with open_pool(settings.postgres) as pool:
        sessions = Sessions(pool)

        async def apply(entries: Sequence[Entry[TurnsEvent]]) -> None:
            await sessions.apply([(e.event, e.appended) for e in entries if not isinstance(e.event, Feedback)])

        yield apply


async def _reached(connect: Callable[[], Coroutine[None, None, T_]], stop: asyncio.Event) -> T_:
    """What `connect` returns, once the store is there."""
    trying = asyncio.create_task(until_done(connect))
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({trying, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not trying.done():
            raise _Stopped
        return trying.result()
    finally:
        for task in (trying, stopping):
            task.cancel()
        await asyncio.gather(trying, stopping, return_exceptions=True)
