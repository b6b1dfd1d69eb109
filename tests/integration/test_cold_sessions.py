"""A session's past from the real message store: as much as is needed, and never less without saying so."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from consumers.orchestrator.cold import PAGE, load_turns
from parley.errors import ParleyError
from parley.session import Session
from parley.settings import MessagesSettings
from parley.stores.cql import CqlClient
from parley.stores.lazy import LazyMessageStore
from parley.stores.messages import BUCKET, MessageStore
from parley.stores.migrate import migrate_messages
from schemas.base import Failure
from tests.integration.stores_parts import NOW, Chat, messages_settings
from tests.integration.test_stores_field_cases import fill

pytestmark = pytest.mark.stack

TURNS = 1_234


@pytest.fixture(scope="module")
async def settings(message_store: Any) -> MessagesSettings:
    made = messages_settings(message_store)
    await migrate_messages(made)
    return made


@pytest.fixture(scope="module")
async def store(settings: MessagesSettings) -> AsyncIterator[LazyMessageStore]:
    made = LazyMessageStore(settings)
    yield made
    await made.close()


@pytest.fixture(scope="module")
async def messages(store: LazyMessageStore) -> MessageStore:
    return await store.get()


@pytest.fixture(scope="module")
async def long(messages: MessageStore) -> Chat:
    chat = Chat()
    await fill(messages, chat, TURNS)
    return chat


async def test_of_a_long_session_only_the_end_is_read_until_somebody_needs_more(
    store: LazyMessageStore, long: Chat
) -> None:
    """Field case F52: what the next turn of a chat costs does not grow with the chat."""
    session = Session(long.session)
    await load_turns(store, session, enough=300, since=NOW + TURNS)
    assert (session.user, session.last_number, session.beyond) == (long.user, TURNS, TURNS - PAGE)
    path = session.path(long.response(TURNS))
    assert path is not None
    assert [turn.number for turn in path] == list(range(TURNS - PAGE + 1, TURNS + 1))
    assert (path[-1].items[0].text, path[-1].answer) == (f"question {TURNS}", f"answer {TURNS}")
    assert session.reaches(long.response(TURNS), 300)
    assert not session.reaches(long.response(7), 300), "a branch from long ago"
    await load_turns(store, session)
    assert session.beyond == 0
    path = session.path(long.response(7))
    assert path is not None
    assert [turn.number for turn in path] == list(range(1, 8))


async def test_turns_whose_keys_live_are_all_read(store: LazyMessageStore, long: Chat) -> None:
    session = Session(long.session)
    await load_turns(store, session, enough=1, since=NOW + 600)
    assert session.beyond < 600


async def test_a_hole_is_an_error_that_may_mend(
    store: LazyMessageStore, messages: MessageStore, settings: MessagesSettings
) -> None:
    """The turn waits; it never runs with a shorter memory."""
    chat = Chat()
    await fill(messages, chat, 5)
    client = await CqlClient.connect(settings)
    remove = f"DELETE FROM {settings.keyspace}.turn_record WHERE session_id = %s AND bucket = %s AND turn = %s"
    await client.execute(remove, (chat.session, 3 // BUCKET, 3))
    await client.close()
    with pytest.raises(ParleyError, match="turn 3 ") as caught:
        await load_turns(store, Session(chat.session))
    assert (caught.value.kind.code, caught.value.kind.retryable) == ("store_inconsistent", True)
    fold = Session(chat.session)
    fold.apply(chat.started(3))
    fold.apply(chat.ended(3))
    await load_turns(store, fold)  # the log has it
    assert sorted(turn.number for turn in fold.turns.values()) == [1, 2, 3, 4, 5]


async def test_what_the_log_knows_and_the_store_does_not_have_yet_is_missed(store: LazyMessageStore) -> None:
    """A session that the store has never heard of, whose turns before the fold must be somewhere."""
    chat = Chat()
    fold = Session(chat.session)
    fold.apply(chat.started(2))
    with pytest.raises(ParleyError, match="turn 1 "):
        await load_turns(store, fold)


async def test_an_end_that_only_the_store_has_counts(store: LazyMessageStore, messages: MessageStore) -> None:
    """A TurnStarted that had counted as failed lands when its turn has long ended, behind the fold's beginning."""
    chat = Chat()
    later = Failure(code="engine_error", message="it failed", retryable=True)
    await messages.write_started(chat.started(1, key_hash="k"), offset=1, appended=NOW)
    await messages.write_ended(chat.ended(1, status="failed", failure=later, store=False), offset=2, appended=NOW)
    fold = Session(chat.session)
    fold.apply(chat.started(1, key_hash="k"))
    assert fold.open_turns() != []
    await load_turns(store, fold)
    assert fold.open_turns() == []
    assert fold.turns[chat.response(1)].retryable


async def test_a_deleted_session_is_known_as_deleted(store: LazyMessageStore, messages: MessageStore) -> None:
    chat = Chat()
    await fill(messages, chat, 2)
    await messages.delete(chat.deleted(), appended=NOW + 10)
    session = Session(chat.session)
    await load_turns(store, session)
    assert session.deleted
    assert session.turns == {}
