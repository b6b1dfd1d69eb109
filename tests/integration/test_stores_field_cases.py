"""What has broken the stores of other chat systems, tried on the real ones.

Sizes are parameters: what continuous integration runs is smaller than what was reported, since writing 200,000 messages
takes minutes on a small machine; the sizes of the reports run with `make test-long`.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from parley.errors import ParleyError
from parley.settings import MessagesSettings
from parley.stores.cql import CqlClient
from parley.stores.messages import BUCKET, MessageStore
from parley.stores.migrate import migrate_messages, migrate_postgres
from parley.stores.postgres import open_pool
from parley.stores.sessions import Sessions
from tests.integration.stores_parts import NOW, Chat, Proxy, address_of, fresh_database, messages_settings, through

pytestmark = pytest.mark.stack

NEWEST = 20
READS = 40


@pytest.fixture(scope="module")
async def keyspace(message_store: Any) -> MessagesSettings:
    settings = messages_settings(message_store)
    await migrate_messages(settings)
    return settings


@pytest.fixture(scope="module")
async def store(keyspace: MessagesSettings) -> AsyncIterator[MessageStore]:
    store = await MessageStore.connect(keyspace)
    yield store
    await store.close()


@pytest.fixture(scope="module")
async def cql(keyspace: MessagesSettings) -> AsyncIterator[CqlClient]:
    """The driver beside the store, to do and see what an operator would."""
    client = await CqlClient.connect(keyspace)
    yield client
    await client.close()


async def fill(store: MessageStore, chat: Chat, turns: int) -> None:
    """A chat of so many turns, of two messages each."""
    gate = asyncio.Semaphore(16)

    async def one(number: int) -> None:
        async with gate:
            await store.write_started(chat.started(number), offset=2 * number, appended=NOW + 2 * number)
            await store.write_ended(chat.ended(number), offset=2 * number + 1, appended=NOW + 2 * number + 1)

    for first in range(1, turns + 1, 1_000):
        await asyncio.gather(*(one(number) for number in range(first, min(first + 1_000, turns + 1))))


async def timed(what: Callable[[], Awaitable[object]], times: int = READS) -> list[float]:
    """Milliseconds of each call, one after the other."""
    took = []
    for _ in range(times):
        begin = time.perf_counter()
        await what()
        took.append((time.perf_counter() - begin) * 1000)
    return sorted(took)


def newest(store: MessageStore, chat: Chat) -> Callable[[], Awaitable[object]]:
    return lambda: store.turns(chat.session, limit=NEWEST, newest_first=True)


SIZES = [pytest.param(1_000, id="1,000 turns"), pytest.param(100_000, id="100,000 turns", marks=pytest.mark.long)]


@pytest.mark.parametrize("turns", SIZES)
async def test_a_long_chat_costs_no_more_than_a_short_one_and_its_neighbours_notice_nothing(
    store: MessageStore, cql: CqlClient, turns: int
) -> None:
    """Field case F52: one huge conversation, another one written all the time. Partitions are bounded, the newest page
    takes the same time however long the chat, and neighbours are read as fast as before."""
    short, long, neighbour = Chat(), Chat(), Chat()
    await fill(store, short, NEWEST)
    await fill(store, neighbour, NEWEST)
    before = await timed(newest(store, neighbour))
    filling = asyncio.create_task(fill(store, long, turns))
    await filling
    writing = asyncio.create_task(fill(store, Chat(), 500))
    beside = await timed(newest(store, neighbour), 10)
    await writing
    of_short, of_long = await timed(newest(store, short)), await timed(newest(store, long))
    assert statistics.median(of_long) < 3 * statistics.median(of_short) + 10
    assert statistics.median(beside) < 20 * statistics.median(before) + 50, "written to beside, on a shared machine"
    sizes = [
        (
            await cql.execute(
                f"SELECT count(*) AS n FROM {store.keyspace}.message WHERE session_id = %s AND bucket = %s",
                (long.session, bucket),
            )
        )[0].n
        for bucket in (0, 1, turns // BUCKET)
    ]
    assert max(sizes) <= 2 * BUCKET


DELETED = [pytest.param(500, id="500 messages"), pytest.param(5_000, id="5,000 messages", marks=pytest.mark.long)]


@pytest.mark.parametrize("messages", DELETED)
async def test_a_chat_whose_old_messages_were_deleted_opens_as_fast(
    store: MessageStore, cql: CqlClient, messages: int
) -> None:
    """Field case F51: all but the newest ten were deleted one by one; opening the newest page is quick and no read
    fails. Parley itself deletes whole sessions only, by partition; this is an operator's or an auditor's doing."""
    chat, turns = Chat(), messages // 2
    await fill(store, chat, turns)
    for table in ("message", "turn_record"):
        remove = await cql.prepare(
            f"DELETE FROM {store.keyspace}.{table} WHERE session_id = ? AND bucket = ? AND turn = ?"
        )
        for number in range(1, turns - 4):
            await cql.execute(remove, (chat.session, number // BUCKET, number))
    found = await store.turns(chat.session, limit=NEWEST, newest_first=True)
    assert [turn.turn for turn in found] == list(range(turns, turns - 5, -1))
    took = await timed(newest(store, chat))
    assert took[int(0.95 * READS)] < 300, "milliseconds; 100 where nothing else shares the machine"


class TestAWriteWhoseAnswerIsLost:
    """Field case F53: the write was applied, its answer never came, and it is written again."""

    async def test_a_message_is_there_once(self, store: MessageStore, keyspace: MessagesSettings) -> None:
        chat = Chat()
        async with Proxy(keyspace.hosts[0], keyspace.port) as proxy:
            cut = await MessageStore.connect(keyspace.model_copy(update={"hosts": ("127.0.0.1",), "port": proxy.port}))
            for _ in range(3):
                proxy.swallow()
                with pytest.raises(ParleyError) as caught:
                    await cut.write_started(chat.started(1), offset=2, appended=NOW)
                assert caught.value.kind.code == "store_unavailable"
                assert caught.value.kind.retryable
                await proxy.cut()
                await proxy.heal()
                await reconnected(cut, chat)
            await cut.write_started(chat.started(1), offset=2, appended=NOW)
            await cut.close()
        [turn] = await store.turns(chat.session, limit=10)
        assert [item.text for item in turn.items] == ["question 1"]
        header = await store.header(chat.session)
        assert header is not None
        assert header.last_turn == 1

    async def test_a_session_s_title_and_times_are_those_of_one_write(self, postgres_dsn: str) -> None:
        postgres = await fresh_database(postgres_dsn)
        await migrate_postgres(postgres)
        chat = Chat()
        events = [(chat.started(1, text="What is a fence?"), NOW), (chat.ended(1), NOW + 500)]
        async with Proxy(*address_of(postgres)) as proxy, open_pool(through(postgres, proxy.port)) as pool:
            cut = Sessions(pool)
            for _ in range(3):
                await cut.list(chat.user, limit=1)  # connected
                proxy.swallow()
                with pytest.raises((ParleyError, TimeoutError)):
                    async with asyncio.timeout(3):
                        await cut.apply(events)
                await proxy.cut()
                await proxy.heal()
                await listed(cut, chat)
            await cut.apply(events)
            [row] = await cut.list(chat.user, limit=10)
        assert row.title == "What is a fence?"
        assert (row.updated_at - row.created_at).total_seconds() == 0.5


async def reconnected(store: MessageStore, chat: Chat) -> None:
    async with asyncio.timeout(30):
        while True:
            try:
                await store.header(chat.session)
                return
            except ParleyError:
                await asyncio.sleep(0.2)


async def listed(sessions: Sessions, chat: Chat) -> None:
    async with asyncio.timeout(30):
        while True:
            try:
                await sessions.list(chat.user, limit=1)
                return
            except ParleyError:
                await asyncio.sleep(0.2)
