"""History against the real broker and the real stores."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient

from consumers.history.main import Store, feed, group_of
from consumers.history.messages import MessagesView
from parley.errors import ParleyError
from parley.health import Health
from parley.log.admin import connect
from parley.log.partitions import partition_of, session_key
from parley.log.producer import Producer
from parley.log.views import Entry, ViewConsumer
from parley.settings import Settings
from parley.stores.cql import CqlClient
from parley.stores.messages import MessageStore
from parley.stores.migrate import migrate
from parley.stores.postgres import open_pool
from parley.stores.sessions import Sessions
from parley.topics import DLQ, TURNS
from schemas.turns import Feedback, TurnEnded
from schemas.wire import REPLAY_HEADER, TurnsEvent, decoder, encode, headers
from tests.integration.stores_parts import (
    NOW,
    Chat,
    Proxy,
    address_of,
    all_settings,
    fresh_database,
    messages_settings,
    through,
)

pytestmark = pytest.mark.stack


@dataclass
class World:
    """A log, two stores, and the hand that writes chat.turns."""

    settings: Settings
    producer: Producer
    messages: MessageStore
    sessions: Sessions

    @property
    def partitions(self) -> int:
        return self.settings.topics.session_partitions

    async def say(self, *events: TurnsEvent, more: tuple[tuple[str, bytes], ...] = ()) -> None:
        for event in events:
            await self.raw(event.session.hex, encode(event), headers(event.type, session=event.session.hex, more=more))

    async def raw(self, session_hex: str, value: bytes, pairs: Any = ()) -> int:
        return await self.producer.send_keyed(
            TURNS, value, key=session_key(session_hex), count=self.partitions, headers=pairs
        )

    async def committed(self, store: Store, session_hex: str) -> int | None:
        """The group's committed offset on the session's partition."""
        where = TopicPartition(TURNS, partition_of(session_key(session_hex), self.partitions))
        client = AIOKafkaAdminClient(bootstrap_servers=self.settings.kafka.bootstrap)
        await client.start()
        try:
            found = await client.list_consumer_group_offsets(group_of(store), partitions=[where])
        finally:
            await client.close()
        return found[where].offset if where in found else None


@pytest.fixture(scope="module")
async def world(kafka_bootstrap: str, message_store: Any, postgres_dsn: str) -> AsyncIterator[World]:
    settings = all_settings(kafka_bootstrap, messages_settings(message_store), await fresh_database(postgres_dsn))
    async with connect(settings.kafka) as admin:
        names = [settings.topics.topics[name] for name in (TURNS, DLQ)]
        await admin.create(names, replication=1, min_insync_replicas=1)
    await migrate(settings)
    producer = Producer(settings.kafka, "tests")
    await producer.start()
    messages = await MessageStore.connect(settings.messages)
    async with open_pool(settings.postgres) as pool:
        yield World(settings, producer, messages, Sessions(pool))
    await messages.close()
    await producer.stop()


@asynccontextmanager
async def running(settings: Settings, *stores: Store) -> AsyncIterator[None]:
    """History, one task a store; stopped as by SIGTERM."""
    stop = asyncio.Event()
    tasks = [asyncio.create_task(feed(settings, store, stop)) for store in stores]
    try:
        yield
    finally:
        stop.set()
        await asyncio.wait_for(asyncio.gather(*tasks), 20)


async def eventually(check: Callable[[], Awaitable[bool]], within: float = 60.0) -> None:
    async with asyncio.timeout(within):
        while not await check():
            await asyncio.sleep(0.05)


def holds(world: World, chat: Chat, *statuses: str | None) -> Callable[[], Awaitable[bool]]:
    """The message store has these turns of the chat, with these statuses."""

    async def check() -> bool:
        return [turn.status for turn in await world.messages.turns(chat.session, limit=1000)] == list(statuses)

    return check


async def test_a_turn_is_kept_from_its_start_on_in_both_stores(world: World) -> None:
    chat = Chat()
    async with running(world.settings, "messages", "sessions"):
        await world.say(chat.started(1, text="What is a fence?"))
        await eventually(holds(world, chat, None))
        [turn] = await world.messages.turns(chat.session, limit=10)
        assert (turn.items[0].text, turn.output) == ("What is a fence?", ())

        await world.say(chat.ended(1))
        await eventually(holds(world, chat, "completed"))

        async def titled() -> bool:
            rows = await world.sessions.list(chat.user, limit=10)
            return [row.title for row in rows] == ["What is a fence?"]

        await eventually(titled)


async def test_nothing_is_lost_or_shown_twice_over_restarts(world: World) -> None:
    chat = Chat()
    for turn in range(1, 41):
        async with asyncio.timeout(60):
            await world.say(chat.started(turn), chat.ended(turn))
        if turn % 10 == 0:
            async with running(world.settings, "messages"):
                await eventually(holds(world, chat, *["completed"] * turn))
    turns = await world.messages.turns(chat.session, limit=100)
    assert [turn.turn for turn in turns] == list(range(1, 41))


async def test_what_is_committed_is_in_the_store(world: World) -> None:
    """The orchestrator takes the committed offset for the watermark below which the store has everything."""
    chat = Chat()
    async with running(world.settings, "messages"):
        await world.say(chat.started(1))
        last = await world.raw(chat.session.hex, encode(chat.ended(1)))

        async def committed() -> bool:
            return await world.committed("messages", chat.session.hex) == last + 1

        await eventually(committed)
        assert await holds(world, chat, "completed")()


async def test_bad_bytes_go_to_the_dead_letters_as_they_were_and_the_next_record_is_kept(world: World) -> None:
    chat = Chat()
    bad = b'{"type":"turn.ended","v":1,"response":' + uuid4().hex.encode()
    too_late = encode(chat.ended(1)).replace(str(chat.ended(1).ended_at).encode(), b"99999999999999999999")
    offsets = [
        await world.raw(chat.session.hex, bad, (("type", b"turn.ended"), ("odd", b"\xff"))),
        await world.raw(chat.session.hex, too_late),
    ]
    await world.say(Feedback(response=chat.response(1), session=chat.session, user=chat.user, rating="up", at=1))
    await world.say(chat.started(1), chat.ended(1))
    async with running(world.settings, "messages", "sessions"):
        await eventually(holds(world, chat, "completed"))
        letters = await _dead_letters(world, b"history-messages", 2, only={bad, too_late})
    assert [letter.value for letter in letters] == [bad, too_late]
    found = dict(letters[0].headers)
    assert (letters[0].key, found["odd"]) == (session_key(chat.session.hex), b"\xff")
    assert (found["x-dlq-topic"], found["x-dlq-offset"]) == (TURNS.encode(), str(offsets[0]).encode())


async def _dead_letters(world: World, group: bytes, count: int, only: set[bytes] | None = None) -> list[Any]:
    """The letters of a group, once there are so many; with `only`, those with these bytes: others have theirs too."""
    consumer = AIOKafkaConsumer(DLQ, bootstrap_servers=world.settings.kafka.bootstrap, auto_offset_reset="earliest")
    await consumer.start()
    try:
        letters: list[Any] = []
        async with asyncio.timeout(20):
            while len(letters) < count:
                for records in (await consumer.getmany(timeout_ms=200)).values():
                    ours = (record for record in records if only is None or record.value in only)
                    letters += [record for record in ours if dict(record.headers).get("x-dlq-group") == group]
        return letters
    finally:
        await consumer.stop()


async def test_what_a_replay_writes_is_refused(world: World) -> None:
    replayed, live = Chat(), Chat()
    await world.say(replayed.started(1), more=((REPLAY_HEADER, b"replay-1"),))
    await world.say(replayed.started(2), live.started(1))
    async with running(world.settings, "messages", "sessions"):
        await eventually(holds(world, live, None))
        await eventually(holds(world, replayed, None))
    assert [turn.turn for turn in await world.messages.turns(replayed.session, limit=10)] == [2]


async def test_a_deleted_session_stays_deleted_when_its_running_turn_ends(world: World) -> None:
    chat, after = Chat(), Chat()
    async with running(world.settings, "messages", "sessions"):
        await world.say(chat.changed(opened=True, title="Secret plans"), chat.started(1), chat.started(2))
        await eventually(holds(world, chat, None, None))
        await world.say(chat.deleted(), chat.ended(1), chat.ended(2), chat.changed(title="Again"))
        partition = partition_of(session_key(chat.session.hex), world.partitions)
        while partition_of(session_key(after.session.hex), world.partitions) != partition:
            after = Chat()
        await world.say(after.started(1))
        await eventually(holds(world, after, None))

        async def listed() -> bool:
            return await world.sessions.get(after.user, after.session) is not None

        await eventually(listed)
    header = await world.messages.header(chat.session)
    assert header is not None
    assert header.deleted
    assert await world.messages.turns(chat.session, limit=10) == []
    assert await world.sessions.get(chat.user, chat.session) is None


async def test_a_deletion_that_was_cut_short_is_finished(world: World) -> None:
    """The process died after the session had been marked and before its messages were gone."""
    chat = Chat()
    async with running(world.settings, "messages"):
        await world.say(chat.started(1), chat.ended(1))
        await eventually(holds(world, chat, "completed"))
        client = await CqlClient.connect(world.settings.messages)
        keyspace = world.messages.keyspace
        mark = f"UPDATE {keyspace}.session_header SET deleted_at = toTimestamp(now()) WHERE session_id = %s"
        await client.execute(mark, (chat.session,))

        async def gone() -> bool:
            rows = f"SELECT * FROM {keyspace}.message WHERE session_id = %s AND bucket = 0"
            return not await client.execute(rows, (chat.session,))

        assert not await gone()
        await world.say(chat.deleted())
        await eventually(gone)
        await client.close()


async def test_what_a_process_still_knows_of_a_session_that_another_has_deleted_is_void(
    world: World,
) -> None:
    """Two processes in turn have the session's partition; the first comes back to it within what it remembers."""
    chat = Chat()
    other = await MessageStore.connect(world.settings.messages)
    one, two = MessagesView(world.messages), MessagesView(other)
    events: list[tuple[MessagesView, TurnsEvent]] = [
        (one, chat.started(1)),
        (two, chat.deleted()),
        (one, chat.ended(1)),
        (one, chat.started(2)),
    ]
    for number, (view, event) in enumerate(events):
        await view.apply([Entry(event, SimpleNamespace(offset=number, timestamp=NOW + number))])
    client = await CqlClient.connect(world.settings.messages)
    for table in ("message", "turn_record"):
        rows = f"SELECT * FROM {world.messages.keyspace}.{table} WHERE session_id = %s AND bucket = 0"
        assert await client.execute(rows, (chat.session,)) == []
    await client.close()
    await other.close()


@pytest.mark.parametrize("away", ["messages", "sessions"])
async def test_a_store_that_is_away_is_waited_for_and_the_other_goes_on(world: World, away: Store) -> None:
    """Promise 10: views catch up."""
    where = (
        (world.settings.messages.hosts[0], world.settings.messages.port)
        if away == "messages"
        else address_of(world.settings.postgres)
    )
    async with Proxy(*where) as proxy:
        if away == "messages":
            through_proxy = {"hosts": ("127.0.0.1",), "port": proxy.port}
            settings = world.settings.model_copy(
                update={"messages": world.settings.messages.model_copy(update=through_proxy)}
            )
        else:
            settings = world.settings.model_copy(update={"postgres": through(world.settings.postgres, proxy.port)})
        chats = [Chat() for _ in range(20)]

        async def messages_complete() -> bool:
            return all([await holds(world, chat, "completed", "completed")() for chat in chats])

        async def sessions_complete() -> bool:
            return all([await world.sessions.get(chat.user, chat.session) for chat in chats])

        complete = {"messages": messages_complete, "sessions": sessions_complete}
        other: Store = "sessions" if away == "messages" else "messages"
        async with running(settings, "messages", "sessions"):
            for chat in chats[:10]:
                await world.say(chat.started(1), chat.ended(1))
            await eventually(holds(world, chats[9], "completed"))
            await proxy.cut()
            for chat in chats:
                await world.say(chat.started(1), chat.ended(1), chat.started(2), chat.ended(2))
            await eventually(complete[other])
            await asyncio.sleep(6)  # the membership outlasts a session timeout in which nothing is written
            assert not await complete[away]()
            await proxy.heal()
            await eventually(complete[away])


async def test_a_process_stops_promptly_while_its_store_is_away(world: World) -> None:
    async with Proxy(*address_of(world.settings.postgres)) as proxy:
        settings = world.settings.model_copy(update={"postgres": through(world.settings.postgres, proxy.port)})
        chat = Chat()
        stop = asyncio.Event()
        task = asyncio.create_task(feed(settings, "sessions", stop))
        await world.say(chat.started(1))

        async def seen() -> bool:
            return await world.sessions.get(chat.user, chat.session) is not None

        await eventually(seen)
        await proxy.cut()
        await world.say(chat.started(2))
        await asyncio.sleep(1)
        stop.set()
        await asyncio.wait_for(task, 15)
    before = await world.sessions.get(chat.user, chat.session)
    assert before is not None
    async with running(world.settings, "sessions"):

        async def caught_up() -> bool:
            row = await world.sessions.get(chat.user, chat.session)
            return row is not None and row.updated_at > before.updated_at

        await eventually(caught_up)


@asynccontextmanager
async def topic_of_its_own(world: World, partitions: int) -> AsyncIterator[str]:
    """For views that are not history's."""
    name = f"t{uuid4().hex[:8]}"
    async with connect(world.settings.kafka) as admin:
        made = world.settings.topics.topics[TURNS].model_copy(update={"name": name, "partitions": partitions})
        await admin.create([made], replication=1, min_insync_replicas=1)
        yield name
        await admin.delete([name])


@asynccontextmanager
async def member(world: World, topic: str, apply: Any) -> AsyncIterator[ViewConsumer[TurnEnded]]:
    """One member of the group that feeds a store of ends through `apply`."""
    decode: Callable[[bytes | None], TurnEnded] = decoder(TurnEnded)
    view = ViewConsumer(world.settings, f"group-of-{topic}", [topic], decode, apply, Health())
    stop = asyncio.Event()
    task = asyncio.create_task(view.run(stop))
    yield view
    stop.set()
    await asyncio.wait_for(task, 30)


async def test_whatever_a_member_had_in_hand_when_it_lost_a_partition_is_written_by_somebody(world: World) -> None:
    chat = Chat()
    written: list[int] = []

    async def slow(entries: Sequence[Entry[TurnEnded]]) -> None:
        await asyncio.sleep(0.3)
        written.extend(entry.event.turn for entry in entries)

    async def say(turns: range) -> None:
        for turn in turns:
            await world.producer.send(topic, encode(chat.ended(turn)), key=None, partition=turn % 4)
            await asyncio.sleep(0.02)

    async def complete() -> bool:
        return set(written) == set(range(1, 61))

    async with topic_of_its_own(world, 4) as topic, AsyncExitStack() as second:
        async with member(world, topic, slow):
            await say(range(1, 21))
            await second.enter_async_context(member(world, topic, slow))
            await say(range(21, 41))
        await say(range(41, 61))
        await eventually(complete)


async def test_a_record_that_fails_in_a_way_nobody_foresaw_is_found_and_given_up(world: World) -> None:
    chat = Chat()
    written: list[int] = []

    async def picky(entries: Sequence[Entry[TurnEnded]]) -> None:
        if any(entry.event.turn == 2 for entry in entries):
            raise RuntimeError("a bug")
        written.extend(entry.event.turn for entry in entries)

    async with topic_of_its_own(world, 1) as topic, member(world, topic, picky):
        for turn in (1, 2, 3):
            await world.producer.send(topic, encode(chat.ended(turn)), key=None, partition=0)
        [letter] = await _dead_letters(world, f"group-of-{topic}".encode(), 1)
        assert letter.value == encode(chat.ended(2))

        async def complete() -> bool:
            return set(written) == {1, 3}

        await eventually(complete)


async def test_a_partition_stands_still_rather_than_be_emptied_into_the_dead_letters(world: World) -> None:
    """Twenty bad records in a row (protocol.md, section 8). The view's other partitions go on."""
    chat = Chat()
    written: list[tuple[int, int]] = []

    async def apply(entries: Sequence[Entry[TurnEnded]]) -> None:
        written.extend((entry.record.partition, entry.event.turn) for entry in entries)

    async def seen(*turns: tuple[int, int]) -> None:
        async def all_there() -> bool:
            return set(turns) <= set(written)

        await eventually(all_there)

    async with topic_of_its_own(world, 2) as topic:
        await world.producer.send(topic, encode(chat.ended(1)), key=None, partition=0)
        for number in range(25):
            await world.producer.send(topic, b"bad %d" % number, key=None, partition=0)
        await world.producer.send(topic, encode(chat.ended(2)), key=None, partition=0)
        async with member(world, topic, apply) as view:
            letters = await _dead_letters(world, f"group-of-{topic}".encode(), 20)

            async def still() -> bool:
                return f"{topic}-0 stands still" in view.health.readiness()

            await eventually(still)
            await world.producer.send(topic, encode(chat.ended(3)), key=None, partition=1)
            await seen((0, 1), (1, 3))
        assert [letter.value for letter in letters] == [b"bad %d" % number for number in range(20)]
        assert len(await _dead_letters(world, f"group-of-{topic}".encode(), 20)) == 20
        assert (0, 2) not in written
        async with member(world, topic, apply):  # a restart gives up the five that are left, and goes on
            await seen((0, 2))
        assert written.count((0, 1)) == 1, "what was written before the standstill is committed"


async def test_no_broker_is_said_plainly(world: World, free_port: int) -> None:
    settings = all_settings(f"127.0.0.1:{free_port}", world.settings.messages, world.settings.postgres)
    with pytest.raises(ParleyError, match=str(free_port)) as caught:
        await feed(settings, "sessions", asyncio.Event())
    assert caught.value.kind.code == "log_unavailable"
