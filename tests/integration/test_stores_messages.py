"""Turns and messages on the real message store."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest

from parley.errors import ParleyError
from parley.settings import MessagesSettings
from parley.stores.cql import CqlClient
from parley.stores.messages import BUCKET, MessageStore, epoch_bytes
from parley.stores.migrate import migrate_messages
from schemas.base import NO_EPOCH, Item, Refusal, Text
from schemas.turns import TurnEnded, TurnStarted
from tests.integration.stores_parts import NOW, Chat, Proxy, messages_settings

pytestmark = pytest.mark.stack


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
    """The driver beside the store, to look at tables as an operator would."""
    client = await CqlClient.connect(keyspace)
    yield client
    await client.close()


async def keep(store: MessageStore, *events: TurnStarted | TurnEnded, first: int = 100) -> None:
    """Write records that follow each other in the log."""
    for offset, event in enumerate(events, first):
        if isinstance(event, TurnStarted):
            await store.write_started(event, offset=offset, appended=NOW + offset)
        else:
            await store.write_ended(event, offset=offset, appended=NOW + offset)


# -- one turn ----------------------------------------------------------------------------------------------------------


async def test_what_the_user_said_is_there_before_the_answer_is(store: MessageStore) -> None:
    chat = Chat()
    await keep(store, chat.started(1))
    [turn] = await store.turns(chat.session, limit=10)
    assert [item.text for item in turn.items] == ["question 1"]
    assert turn.output == ()
    assert turn.status is None


async def test_a_kept_turn_comes_back_as_it_was(store: MessageStore) -> None:
    chat = Chat()
    started = chat.started(1, key_hash="k", body_hash="b", instructions="Be brief.", echo={"temperature": 1.0})
    answer = Item(
        id=chat.ended(1).output[0].id,
        role="assistant",
        status="incomplete",
        parts=(Text(text="Well, "), Refusal(refusal="I can't help with that.")),
    )
    ended = chat.ended(
        1, status="incomplete", reason="content_filter", output=(answer,), delta_lengths=(4, 2), waited=True
    )
    await keep(store, started, ended)
    turn = await store.turn_of(chat.session, chat.response(1))
    assert turn is not None
    assert (turn.items, turn.output) == (started.items, (answer,))
    assert (turn.status, turn.reason, turn.delta_lengths, turn.waited) == ("incomplete", "content_filter", (4, 2), True)
    assert (turn.key_hash, turn.body_hash, turn.instructions) == ("k", "b", "Be brief.")
    assert (turn.echo, turn.epoch, turn.dispatch) == ({"temperature": 1.0}, ended.epoch, (1, 1))
    assert (turn.accepted_at, turn.ended_at) == (started.accepted_at, ended.ended_at)


async def test_writing_again_changes_nothing(store: MessageStore) -> None:
    chat = Chat()
    events = [chat.started(1), chat.ended(1), chat.started(2), chat.ended(2)]
    await keep(store, *events)
    once = await store.turns(chat.session, limit=10)
    await keep(store, *events)
    await keep(store, *events[:1])
    assert await store.turns(chat.session, limit=10) == once
    assert [turn.turn for turn in once] == [1, 2]


async def test_writes_may_arrive_in_any_order(store: MessageStore) -> None:
    """The log's order decides, by offsets, not the order in which slow and fast writers reach the store."""
    for order in itertools.permutations(range(4)):
        chat = Chat()
        records = [
            chat.started(1, (1, 1)),
            chat.started(1, (2, 1)),
            chat.ended(1, (1, 1), text="of the overruled run"),
            chat.ended(1, (2, 1), text="of the standing run"),
        ]
        for place in order:
            await keep(store, records[place], first=100 + place)
        [turn] = await store.turns(chat.session, limit=10)
        assert [item.text for item in turn.output] == ["of the standing run"], order


async def test_an_end_under_an_overruled_decision_is_never_shown(store: MessageStore) -> None:
    chat = Chat()
    await keep(store, chat.started(1, (1, 1)), chat.started(1, (2, 1)), chat.ended(1, (1, 1)))
    [turn] = await store.turns(chat.session, limit=10)
    assert (turn.status, turn.output) == (None, ())


async def test_an_older_epoch_is_never_shown(store: MessageStore) -> None:
    chat = Chat()
    newer = chat.ended(1, epoch=(1, 1, 2, 1), text="of the newer run")
    older = chat.ended(1, epoch=(1, 1, 1, 9), text="of the older run")
    await keep(store, chat.started(1), newer, older)
    [turn] = await store.turns(chat.session, limit=10)
    assert [item.text for item in turn.output] == ["of the newer run"]


async def test_a_late_start_does_not_reopen_an_ended_turn(store: MessageStore) -> None:
    chat = Chat()
    await keep(store, chat.started(1), chat.ended(1), chat.started(1, (2, 1), pool="synthetic"))
    [turn] = await store.turns(chat.session, limit=10)
    assert (turn.status, turn.dispatch) == ("completed", (1, 1))
    assert [item.text for item in turn.output] == ["answer 1"]


async def test_a_start_under_a_number_that_is_taken_overwrites_nothing(store: MessageStore) -> None:
    """Promise 10. An orchestrator that was stopped wakes up late, and gives the number that its successor has given."""
    chat = Chat()
    late = Chat(chat.user, chat.session).started(1, text="late")
    assert late.response != chat.response(1)
    await keep(store, chat.started(1), late, chat.ended(1))
    [turn] = await store.turns(chat.session, limit=10)
    assert (turn.response, [item.text for item in turn.items]) == (chat.response(1), ["question 1"])


async def test_a_turn_that_expired_before_it_ran_has_an_end_without_an_epoch(store: MessageStore) -> None:
    chat = Chat()
    await keep(store, chat.started(1, pool=None, why="expired"), chat.ended(1, epoch=NO_EPOCH, status="expired"))
    [turn] = await store.turns(chat.session, limit=10)
    assert (turn.status, turn.epoch, turn.output) == ("expired", NO_EPOCH, ())
    assert [item.text for item in turn.items] == ["question 1"]


async def test_of_a_turn_that_is_not_to_be_stored_only_its_place_is_kept(store: MessageStore, cql: CqlClient) -> None:
    chat = Chat()
    secret = "a secret of the user"
    events = [
        chat.started(1, text=secret, store=False, instructions=secret, echo={"x": secret}),
        chat.ended(1, text=secret, store=False),
    ]
    await keep(store, *events)
    [turn] = await store.turns(chat.session, limit=10)
    assert (turn.kept, turn.status, turn.items, turn.output) == (False, "completed", (), ())
    assert secret not in str(await _everything(store, cql, chat))


async def test_a_message_row_has_the_fields_of_a_message(store: MessageStore, cql: CqlClient, keyspace: Any) -> None:
    chat = Chat()
    ended = chat.ended(1, usage={"input_tokens": 5, "output_tokens": 3, "generated_tokens": 4})
    await keep(store, chat.started(1), ended)
    asked, answered = await cql.execute(
        f"SELECT * FROM {keyspace.keyspace}.message WHERE session_id = %s AND bucket = 0", (chat.session,)
    )
    assert (asked.role, asked.content, asked.message_id) == ("user", "question 1", chat.started(1).items[0].id)
    assert (answered.role, answered.content, answered.token_count) == ("assistant", "answer 1", 3)
    assert answered.created_at.timestamp() * 1000 == ended.ended_at
    assert answered.epoch == epoch_bytes(ended.epoch)


# -- a session ---------------------------------------------------------------------------------------------------------


async def test_the_header_knows_user_and_newest_turn_whatever_comes_last(store: MessageStore) -> None:
    chat = Chat()
    assert await store.header(chat.session) is None
    await store.write_changed(chat.changed(opened=True))
    header = await store.header(chat.session)
    assert header is not None
    assert (header.user, header.last_turn, header.deleted) == (chat.user, 0, False)
    await keep(store, chat.started(1), chat.started(2), chat.ended(1))
    header = await store.header(chat.session)
    assert header is not None
    assert header.last_turn == 2


async def test_a_long_session_is_read_in_pages_across_partitions(store: MessageStore, cql: CqlClient) -> None:
    """Field case F50: 1,234 turns in pages of 50, then without 101 to 400."""
    chat = Chat()
    gate = asyncio.Semaphore(16)

    async def one(number: int) -> None:
        async with gate:
            await keep(store, chat.started(number), chat.ended(number), first=number * 2)

    await asyncio.gather(*(one(number) for number in range(1, 1235)))
    everything = list(range(1, 1235))
    assert await _pages(store, chat) == everything
    assert await _pages_backwards(store, chat) == everything[::-1]
    newest = await store.turns(chat.session, limit=3, newest_first=True)
    assert [(turn.turn, turn.items[0].text, turn.output[0].text) for turn in newest] == [
        (n, f"question {n}", f"answer {n}") for n in (1234, 1233, 1232)
    ]

    remove = await cql.prepare(
        f"DELETE FROM {store.keyspace}.turn_record WHERE session_id = ? AND bucket = ? AND turn = ?"
    )
    await asyncio.gather(*(cql.execute(remove, (chat.session, turn // BUCKET, turn)) for turn in range(101, 401)))
    left = [number for number in everything if not 101 <= number <= 400]
    assert len(left) == 934
    assert await _pages(store, chat) == left
    assert await _pages_backwards(store, chat) == left[::-1]


async def _pages(store: MessageStore, chat: Chat) -> list[int]:
    found: list[int] = []
    while page := await store.turns(chat.session, after=found[-1] if found else 0, limit=50):
        assert len(page) == 50 or page[-1].turn == 1234
        found += [turn.turn for turn in page]
    return found


async def _pages_backwards(store: MessageStore, chat: Chat) -> list[int]:
    found: list[int] = []
    before: int | None = None
    while page := await store.turns(chat.session, before=before, limit=50, newest_first=True):
        found += [turn.turn for turn in page]
        before = found[-1]
    return found


async def test_nobody_finds_a_turn_under_another_session(store: MessageStore) -> None:
    mine, theirs = Chat(), Chat()
    await keep(store, mine.started(1), mine.ended(1))
    await keep(store, theirs.started(1), theirs.ended(1))
    assert await store.turn_of(theirs.session, mine.response(1)) is None


async def test_of_a_deleted_session_only_its_deletion_is_kept(store: MessageStore, cql: CqlClient) -> None:
    chat = Chat()
    turns = [BUCKET - 1, BUCKET, 1]
    for turn in turns:
        await keep(store, chat.started(turn), chat.ended(turn), first=turn * 2)
    await store.delete(chat.deleted(), appended=NOW + 5_000)
    header = await store.header(chat.session)
    assert header is not None
    assert (header.user, header.deleted) == (chat.user, True)
    assert await store.turns(chat.session, limit=10) == []
    for turn in turns:
        assert await store.turn_of(chat.session, chat.response(turn)) is None
    assert await _everything(store, cql, chat) == []


async def test_what_a_stopped_process_still_writes_under_a_deleted_session_is_dead_on_arrival(
    store: MessageStore, cql: CqlClient
) -> None:
    chat = Chat()
    await keep(store, chat.started(1))
    await store.delete(chat.deleted(), appended=NOW + 5_000)
    await keep(store, chat.ended(1), first=101)
    assert await _everything(store, cql, chat) == []


async def _everything(store: MessageStore, cql: CqlClient, chat: Chat) -> list[Any]:
    """Every row that holds something of a session, but for its header."""
    tables = ("turn_record", "message")
    return [
        row
        for table in tables
        for bucket in range(3)
        for row in await cql.execute(
            f"SELECT * FROM {store.keyspace}.{table} WHERE session_id = %s AND bucket = %s", (chat.session, bucket)
        )
    ]


async def test_absent_fields_leave_no_tombstones(store: MessageStore, keyspace: MessagesSettings) -> None:
    """Field case F51: what reading a page costs does not grow with what was never there."""
    from cassandra.cluster import Cluster
    from cassandra.io.libevreactor import LibevConnection

    chat = Chat()
    for turn in range(1, 51):
        await keep(store, chat.started(turn), chat.ended(turn), first=turn * 2)

    def trace() -> list[str]:
        cluster = Cluster(list(keyspace.hosts), port=keyspace.port, connection_class=LibevConnection)
        try:
            session = cluster.connect()
            query = f"SELECT * FROM {keyspace.keyspace}.message WHERE session_id = %s AND bucket = 0"
            result = session.execute(query, (chat.session,), trace=True)
            return [event.description for event in result.get_query_trace().events]
        finally:
            cluster.shutdown()

    reads = [line for line in await asyncio.to_thread(trace) if "live row" in line]
    assert reads
    assert all(" 0 tombstone" in line or " 0 dead" in line for line in reads), reads


# -- a store that is away ----------------------------------------------------------------------------------------------


async def test_a_store_that_does_not_answer_is_named(free_port: int) -> None:
    with pytest.raises(ParleyError, match=rf"127\.0\.0\.1:{free_port}.*is it running") as caught:
        await MessageStore.connect(MessagesSettings(port=free_port))
    assert caught.value.kind.code == "store_unavailable"


async def test_a_store_without_tables_says_what_to_run(message_store: Any) -> None:
    with pytest.raises(ParleyError, match="parley migrate"):
        await MessageStore.connect(messages_settings(message_store))


async def test_a_frozen_store_costs_its_callers_time_and_nobody_else(keyspace: MessagesSettings) -> None:
    """Field case F55: connecting and waiting never hold the loop, and a store that is back is used again."""
    async with Proxy(keyspace.hosts[0], keyspace.port) as proxy:
        stalls = _Stalls()
        watching = asyncio.create_task(stalls.watch())
        store = await MessageStore.connect(keyspace.model_copy(update={"hosts": ("127.0.0.1",), "port": proxy.port}))
        chat = Chat()
        await keep(store, chat.started(1))
        proxy.mute()
        with pytest.raises(ParleyError, match="message store"):
            await store.turns(chat.session, limit=10)
        await proxy.cut()
        with pytest.raises(ParleyError, match="message store"):
            await store.turns(chat.session, limit=10)
        await proxy.heal()
        async with asyncio.timeout(20):
            while True:
                try:
                    [turn] = await store.turns(chat.session, limit=10)
                    break
                except ParleyError:
                    await asyncio.sleep(0.2)
        assert turn.items[0].text == "question 1"
        watching.cancel()
        await store.close()
    assert stalls.longest < 0.5, "seconds; other processes share the machine, a blocking connect takes longer"


class _Stalls:
    """How long the loop did not come round."""

    longest = 0.0

    async def watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            before = loop.time()
            await asyncio.sleep(0.01)
            self.longest = max(self.longest, loop.time() - before - 0.01)
