"""Migrations that run by themselves: numbered files, applied once each, recognised by their checksums."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from parley.settings import MessagesSettings, PostgresSettings, Settings
from parley.stores.cql import CqlClient
from parley.stores.postgres import Connection, connect, store_errors

MIGRATIONS = Path(__file__).parent / "migrations"
LOCK = 0x7061726C6579
"""The advisory lock of whoever migrates: `parley` in ASCII."""


class MigrationError(Exception):
    """The files and what a store says was applied to it contradict each other."""


@dataclass(frozen=True, slots=True)
class Migration:
    """One numbered file."""

    number: int
    name: str
    text: str

    @property
    def checksum(self) -> str:
        """SHA-256 of the text, hex."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def load(folder: Path) -> list[Migration]:
    """The migrations of a folder, in order: 0001_name.sql or .cql, without gaps.

    Raises:
        MigrationError: a file is not named so, or a number is missing or taken twice.
    """
    found = []
    for path in sorted(folder.iterdir()):
        match = re.fullmatch(r"(\d{4})_(\w+)\.(?:sql|cql)", path.name)
        if match is None:
            raise MigrationError(f"{path.name} is not named like 0001_what_it_does.sql")
        found.append(Migration(int(match[1]), match[2], path.read_text()))
    numbers = [migration.number for migration in found]
    if numbers != list(range(1, len(found) + 1)):
        raise MigrationError(f"migrations in {folder.name} must be numbered 1, 2, …, not {numbers}")
    return found


def pending(migrations: list[Migration], applied: Mapping[int, str]) -> list[Migration]:
    """Those of the migrations whose numbers are not among the applied (number -> checksum).

    Numbers beyond the known ones are fine: newer code has been here.

    Raises:
        MigrationError: an applied migration has another text today.
    """
    for migration in migrations:
        if applied.get(migration.number, migration.checksum) != migration.checksum:
            raise MigrationError(
                f"migration {migration.number} ({migration.name}) was changed after it had been applied: "
                "put its text back and write a new migration"
            )
    return [migration for migration in migrations if migration.number not in applied]


def statements(text: str) -> list[str]:
    """The statements of a CQL file: separated by semicolons at line ends, comments taken out."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("--")]
    return [part.strip() for part in re.split(r";\s*(?:\n|$)", "\n".join(lines)) if part.strip()]


async def migrate(settings: Settings) -> None:
    """Bring both stores to this version. Any number of processes may call it at once: they take turns.

    Raises:
        ParleyError: store_unavailable.
        MigrationError: the files contradict what was applied.
    """
    async with _locked(settings.postgres) as connection:
        await _migrate_locked(connection)
        await migrate_messages(settings.messages)


async def migrate_postgres(settings: PostgresSettings) -> None:
    """Bring PostgreSQL to this version; raises as `migrate`."""
    async with _locked(settings) as connection:
        await _migrate_locked(connection)


@asynccontextmanager
async def _locked(settings: PostgresSettings) -> AsyncIterator[Connection]:
    """A transaction that only one process is in; the lock ends with it, however it ends."""
    async with connect(settings) as connection:
        with store_errors():
            async with connection.transaction():
                # Waiting for another process that migrates, and a migration itself, may take their time.
                await connection.execute("SET LOCAL statement_timeout = 0")
                await connection.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
                await connection.execute("SELECT pg_advisory_xact_lock(%s)", [LOCK])
                yield connection


async def _migrate_locked(connection: Connection) -> None:
    await connection.execute(
        "CREATE TABLE IF NOT EXISTS schema_migration (number int PRIMARY KEY, name text NOT NULL, "
        "checksum text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now())"
    )
    rows = await (await connection.execute("SELECT number, checksum FROM schema_migration")).fetchall()
    for migration in pending(load(MIGRATIONS / "postgres"), dict(rows)):
        await connection.execute(migration.text.encode())
        await connection.execute(
            "INSERT INTO schema_migration (number, name, checksum) VALUES (%s, %s, %s)",
            [migration.number, migration.name, migration.checksum],
        )


async def migrate_messages(settings: MessagesSettings) -> None:
    """Bring the message store to this version; raises as `migrate`.

    Every statement may run again, so two at once do no harm where the store orders changes of the schema (ScyllaDB,
    a single Cassandra node). `migrate` takes PostgreSQL's lock around it, which is right for any cluster.
    """
    client = await CqlClient.connect(settings)
    try:
        await _migrate_keyspace(client, settings)
    finally:
        await asyncio.shield(client.close())


async def _migrate_keyspace(client: CqlClient, settings: MessagesSettings) -> None:
    keyspace = settings.keyspace
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,47}", keyspace):
        raise MigrationError(f"{keyspace!r} can't name a keyspace: lower-case letters, digits and _, at most 48")
    datacenter = settings.datacenter.replace("'", "''")
    await client.execute(
        f"CREATE KEYSPACE IF NOT EXISTS {keyspace} WITH replication = "
        f"{{'class': 'NetworkTopologyStrategy', '{datacenter}': {settings.replication}}}"
    )
    await client.execute(
        f"CREATE TABLE IF NOT EXISTS {keyspace}.schema_migration "
        "(number int PRIMARY KEY, name text, checksum text, applied_at timestamp)"
    )
    rows = await client.execute(f"SELECT number, checksum FROM {keyspace}.schema_migration")
    for migration in pending(load(MIGRATIONS / "messages"), {row.number: row.checksum for row in rows}):
        for statement in statements(migration.text):
            await client.execute(statement.replace("{keyspace}", keyspace))
        await client.execute(
            f"INSERT INTO {keyspace}.schema_migration (number, name, checksum, applied_at) "
            "VALUES (%s, %s, %s, toTimestamp(now()))",
            (migration.number, migration.name, migration.checksum),
        )
