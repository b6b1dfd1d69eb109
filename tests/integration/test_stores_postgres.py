"""Accounts, the list of sessions, and migrations on the real PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from click.testing import CliRunner, Result

from parley.errors import ParleyError
from parley.settings import PostgresSettings
from parley.stores import commands
from parley.stores.accounts import Accounts
from parley.stores.cql import CqlClient
from parley.stores.demo import DEMO_EMAIL, ensure_demo
from parley.stores.migrate import MigrationError, migrate, migrate_postgres
from parley.stores.postgres import Pool, borrowed, connect, open_pool
from parley.stores.sessions import SessionEvent, Sessions
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


@pytest.fixture(scope="module")
async def database(postgres_dsn: str) -> PostgresSettings:
    settings = await fresh_database(postgres_dsn)
    await migrate_postgres(settings)
    return settings


@pytest.fixture(scope="module")
async def pool(database: PostgresSettings) -> AsyncIterator[Pool]:
    async with open_pool(database) as pool:
        yield pool


@pytest.fixture
def accounts(pool: Pool) -> Accounts:
    return Accounts(pool)


@pytest.fixture
def sessions(pool: Pool) -> Sessions:
    return Sessions(pool)


# -- keys ----


async def test_a_key_leads_to_its_user(accounts: Accounts) -> None:
    user = await accounts.create_user(f"{uuid4()}@example.com", "paid")
    _, secret = await accounts.create_key(user.user_id, "laptop")
    assert secret.startswith("pk_")
    assert await accounts.authenticate(secret) == user


async def test_no_other_text_is_a_key(accounts: Accounts) -> None:
    user = await accounts.create_user(f"{uuid4()}@example.com", "paid")
    _, secret = await accounts.create_key(user.user_id, "laptop")
    other = "pk_" + secret[3:][::-1]
    for text in ("", "pk_", secret[:-1], secret + "A", secret.upper(), "\0" * 46, other):
        assert await accounts.authenticate(text) is None


async def test_a_revoked_key_is_refused_here_at_once_and_elsewhere_within_five_seconds(pool: Pool) -> None:
    now = 0.0
    here, elsewhere = Accounts(pool), Accounts(pool, clock=lambda: now)
    user = await here.create_user(f"{uuid4()}@example.com", "free")
    key_id, secret = await here.create_key(user.user_id, "lost phone")
    assert await here.authenticate(secret) == await elsewhere.authenticate(secret) == user
    assert await here.revoke_key(key_id)
    assert await here.authenticate(secret) is None
    now = 4.9
    assert await elsewhere.authenticate(secret) == user
    now = 5.1
    assert await elsewhere.authenticate(secret) is None
    [key] = await here.list_keys(user.user_id)
    assert (key.key_id, key.name) == (key_id, "lost phone")
    assert key.revoked_at is not None
    assert not await here.revoke_key("key_unknown")


async def test_the_database_does_not_hold_secrets(accounts: Accounts, pool: Pool) -> None:
    user = await accounts.create_user(f"{uuid4()}@example.com", "paid")
    _, secret = await accounts.create_key(user.user_id, "laptop")
    async with borrowed(pool) as connection:
        rows = await (
            await connection.execute("SELECT k::text, u::text FROM api_key k JOIN users u USING (user_id)")
        ).fetchall()
    assert secret not in str(rows)
    assert secret.encode().hex() not in str(rows)


async def test_an_address_belongs_to_one_user_in_whatever_case(accounts: Accounts) -> None:
    address = f"{uuid4()}@example.com"
    user = await accounts.create_user(address, "free")
    with pytest.raises(ParleyError, match="already"):
        await accounts.create_user(address.upper(), "free")
    assert await accounts.find_user(address.upper()) == user
    with pytest.raises(ParleyError, match="not an e-mail address"):
        await accounts.create_user("nobody", "free")
    with pytest.raises(ParleyError, match="no user"):
        await accounts.create_key(uuid4(), "of nobody")


async def test_the_demo_key_stays_the_same_until_it_no_longer_works(database: PostgresSettings, tmp_path: Path) -> None:
    settings = all_settings(postgres=database)
    file = tmp_path / "data" / "demo.key"
    secret = await ensure_demo(settings, file)
    assert await ensure_demo(settings, file) == secret
    assert file.stat().st_mode & 0o777 == 0o600
    async with open_pool(database) as pool:
        accounts = Accounts(pool)
        user = await accounts.authenticate(secret)
        assert user is not None
        assert (user.email, user.tier) == (DEMO_EMAIL, "paid")
        [key] = await accounts.list_keys(user.user_id)
        await accounts.revoke_key(key.key_id)
        renewed = await ensure_demo(settings, file)
        assert renewed != secret
        assert await accounts.authenticate(renewed) == user


async def test_users_and_keys_are_made_on_the_command_line(database: PostgresSettings) -> None:
    environment = {"PARLEY_POSTGRES__DSN": database.dsn.get_secret_value()}

    async def call(group: Any, *words: str) -> Result:
        return await asyncio.to_thread(CliRunner().invoke, group, words, env=environment)

    address = f"{uuid4()}@example.com"
    made = await call(commands.users, "create", address, "--tier", "paid")
    assert made.exit_code == 0, made.output
    again = await call(commands.users, "create", address)
    assert (again.exit_code, "already" in again.output) == (1, True)
    key = await call(commands.keys, "create", address, "--name", "laptop")
    key_id, secret = key.output.split()
    async with open_pool(database) as pool:
        user = await Accounts(pool).authenticate(secret)
        assert user is not None
        assert (user.email, str(user.user_id)) == (address, made.output.strip())
    listed = await call(commands.keys, "list", made.output.strip())
    assert (key_id in listed.output, "active" in listed.output, secret in listed.output) == (True, True, False)
    assert (await call(commands.keys, "revoke", key_id)).exit_code == 0
    assert "revoked" in (await call(commands.keys, "list", address)).output
    unknown = await call(commands.keys, "create", "nobody@example.com")
    assert (unknown.exit_code, "parley users create" in unknown.output) == (1, True)


# -- sessions ----


def at(*events: SessionEvent, first: int = NOW) -> list[tuple[SessionEvent, int]]:
    """Events that follow each other in the log, a second apart."""
    return [(event, first + 1000 * place) for place, event in enumerate(events)]


async def test_a_session_is_named_by_its_first_prompt_and_dated_by_its_newest_event(sessions: Sessions) -> None:
    chat = Chat()
    first = chat.started(1, text="Why is\nthe sky   blue?")
    await sessions.apply(at(first, chat.ended(1), chat.started(2), chat.ended(2)))
    [row] = await sessions.list(chat.user, limit=10)
    assert (row.session_id, row.user_id, row.title) == (chat.session, chat.user, "Why is the sky blue?")
    assert row.created_at.timestamp() * 1000 == NOW
    assert row.updated_at.timestamp() * 1000 == NOW + 3000
    assert await sessions.get(chat.user, chat.session) == row


async def test_a_title_that_the_user_gave_stands_before_and_after_the_first_prompt(sessions: Sessions) -> None:
    before, after = Chat(), Chat()
    await sessions.apply(at(before.changed(opened=True, title="Mine"), before.started(1), before.ended(1)))
    await sessions.apply(at(after.started(1), after.changed(title="Mine"), after.ended(1), after.started(2)))
    for chat in (before, after):
        row = await sessions.get(chat.user, chat.session)
        assert row is not None
        assert row.title == "Mine"


async def test_reading_the_log_again_changes_nothing(sessions: Sessions) -> None:
    chat = Chat()
    events = at(
        chat.changed(opened=True, title="One", metadata={"a": "1"}),
        chat.started(1),
        chat.changed(title="Two", metadata={"a": "2"}),
        chat.ended(1),
        chat.changed(metadata={"b": "3"}),
    )
    await sessions.apply(events)
    once = await sessions.get(chat.user, chat.session)
    assert once is not None
    assert (once.title, once.metadata) == ("Two", {"b": "3"})
    for start in range(len(events)):
        for end in range(start, len(events) + 1):
            await sessions.apply(events[start:end])
            assert await sessions.get(chat.user, chat.session) == once


async def test_sessions_that_are_not_listed_are_not_in_the_list_but_can_be_read(sessions: Sessions) -> None:
    chat = Chat()
    await sessions.apply(at(chat.started(1, listed=False), chat.ended(1, listed=False)))
    assert await sessions.list(chat.user, limit=10) == []
    assert await sessions.get(chat.user, chat.session) is not None


async def test_of_turns_that_are_not_to_be_stored_nothing_is_known(sessions: Sessions) -> None:
    chat = Chat()
    await sessions.apply(at(chat.started(1, store=False), chat.ended(1, store=False)))
    assert await sessions.get(chat.user, chat.session) is None


async def test_the_list_comes_in_pages_newest_first_even_within_one_millisecond(sessions: Sessions) -> None:
    user = uuid4()
    chats = [Chat(user) for _ in range(25)]
    await sessions.apply([(chat.started(1), NOW + place // 5) for place, chat in enumerate(chats)])
    found = []
    before = None
    while page := await sessions.list(user, limit=4, before=before):
        found += page
        before = (page[-1].updated_at, page[-1].session_id)
    assert {row.session_id for row in found} == {chat.session for chat in chats}
    assert len(found) == 25
    assert [row.updated_at for row in found] == sorted((row.updated_at for row in found), reverse=True)


async def test_a_session_belongs_to_its_user(sessions: Sessions) -> None:
    chat = Chat()
    intruder = Chat(session=chat.session)
    await sessions.apply(at(chat.started(1, text="Mine")))
    before = await sessions.get(chat.user, chat.session)
    await sessions.apply(at(intruder.changed(title="Theirs"), intruder.deleted(), first=NOW + 9000))
    assert await sessions.get(chat.user, chat.session) == before
    assert await sessions.get(intruder.user, chat.session) is None
    assert await sessions.list(intruder.user, limit=10) == []


async def test_nothing_comes_back_after_a_deletion(sessions: Sessions, pool: Pool) -> None:
    chat = Chat()
    events = at(
        chat.changed(opened=True, title="Secret plans", metadata={"about": "secrets"}),
        chat.started(1),
        chat.deleted(),
        chat.ended(1),
        chat.changed(title="Secret plans"),
    )
    await sessions.apply(events)
    await sessions.apply(events[:2])
    assert await sessions.get(chat.user, chat.session) is None
    assert await sessions.list(chat.user, limit=10) == []
    async with borrowed(pool) as connection:
        rows = await (
            await connection.execute("SELECT s::text FROM chat_session s WHERE session_id = %s", [chat.session])
        ).fetchall()
    assert len(rows) == 1
    assert "ecret" not in str(rows)


async def test_nul_characters_are_replaced_since_postgresql_refuses_them(sessions: Sessions) -> None:
    chat = Chat()
    await sessions.apply(at(chat.changed(opened=True, title="a\0b", metadata={"k\0": "v\0"})))
    row = await sessions.get(chat.user, chat.session)
    assert row is not None
    assert (row.title, row.metadata) == ("a�b", {"k�": "v�"})


# -- a database that is away, and connections ----


async def test_a_database_that_is_away_is_an_error_and_one_that_is_back_is_used(database: PostgresSettings) -> None:
    async with Proxy(*address_of(database)) as proxy, open_pool(through(database, proxy.port)) as pool:
        sessions, chat = Sessions(pool), Chat()
        await sessions.apply(at(chat.started(1)))
        await proxy.cut()
        with pytest.raises(ParleyError) as caught:
            await sessions.list(chat.user, limit=1)
        assert caught.value.kind.code == "store_unavailable"
        await proxy.heal()
        async with asyncio.timeout(20):
            while True:
                try:
                    assert await sessions.list(chat.user, limit=1)
                    break
                except ParleyError:
                    await asyncio.sleep(0.2)


async def test_missing_tables_say_what_to_run(postgres_dsn: str) -> None:
    async with open_pool(await fresh_database(postgres_dsn)) as pool:
        with pytest.raises(ParleyError, match="parley migrate"):
            await Sessions(pool).list(uuid4(), limit=1)


async def test_no_connection_is_left_in_a_transaction(sessions: Sessions, pool: Pool) -> None:
    """Field case F56."""
    chat = Chat()
    await sessions.apply(at(chat.started(1), chat.ended(1)))
    await asyncio.gather(*(sessions.list(chat.user, limit=10) for _ in range(50)))
    async with borrowed(pool) as connection:
        found = await connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in%'"
        )
        assert await found.fetchone() == (0,)


# -- migrations ----


async def test_migrations_run_once_however_many_start_them(postgres_dsn: str, message_store: Any) -> None:
    settings = all_settings(messages=messages_settings(message_store), postgres=await fresh_database(postgres_dsn))
    await asyncio.gather(*(migrate(settings) for _ in range(4)))
    await migrate(settings)
    async with connect(settings.postgres) as connection:
        rows = await (await connection.execute("SELECT number FROM schema_migration ORDER BY 1")).fetchall()
    assert rows == [(1,), (2,)]
    client = await CqlClient.connect(settings.messages)
    applied = await client.execute(f"SELECT number FROM {settings.messages.keyspace}.schema_migration")
    await client.close()
    assert [row.number for row in applied] == [1]


async def test_a_migration_whose_text_was_changed_is_refused(postgres_dsn: str) -> None:
    settings = await fresh_database(postgres_dsn)
    await migrate_postgres(settings)
    async with connect(settings) as connection:
        await connection.execute("UPDATE schema_migration SET checksum = 'of another text'")
        await connection.commit()
    with pytest.raises(MigrationError, match="write a new migration"):
        await migrate_postgres(settings)
