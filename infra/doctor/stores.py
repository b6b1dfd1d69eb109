"""PostgreSQL and the message store: they answer, have this version's tables, and their clocks are right."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from infra.doctor.findings import Finding, fail, ok
from infra.doctor.log import compared_clocks
from parley.clock import now_ms
from parley.settings import Settings
from parley.stores.cql import CqlClient
from parley.stores.migrate import MIGRATIONS, MigrationError, load, pending
from parley.stores.postgres import connect, store_errors

MIGRATE = "`parley migrate`"


async def postgres(settings: Settings) -> list[Finding]:
    """Accounts and sessions."""
    async with connect(settings.postgres) as connection:
        with store_errors():
            before = now_ms()
            answer = await connection.execute("SELECT current_setting('server_version'), clock_timestamp()")
            row = await answer.fetchone()
            between = (before + now_ms()) // 2
            made = await (await connection.execute("SELECT to_regclass('schema_migration')")).fetchone()
            applied: dict[int, str] = {}
            if made is not None and made[0] is not None:
                rows = await (await connection.execute("SELECT number, checksum FROM schema_migration")).fetchall()
                applied = dict(rows)
    assert row is not None
    return [
        migrated("postgresql", f"PostgreSQL {row[0].split()[0]}", "postgres", applied),
        compared_clocks("PostgreSQL", _ms(row[1]), between),
    ]


async def messages(settings: Settings) -> list[Finding]:
    """What was said."""
    client = await CqlClient.connect(settings.messages)
    try:
        before = now_ms()
        [row] = await client.execute("SELECT release_version, toTimestamp(now()) AS at FROM system.local")
        between = (before + now_ms()) // 2
        tables = await client.execute(
            "SELECT table_name FROM system_schema.tables WHERE keyspace_name = %s AND table_name = 'schema_migration'",
            (settings.messages.keyspace,),
        )
        applied: dict[int, str] = {}
        if tables:
            rows = await client.execute(f"SELECT number, checksum FROM {settings.messages.keyspace}.schema_migration")
            applied = {found.number: found.checksum for found in rows}
    finally:
        await client.close()
    at = (
        int(row.at.timestamp() * 1000) if row.at.tzinfo else int((row.at - datetime(1970, 1, 1)).total_seconds() * 1000)
    )
    return [
        migrated("message store", f"version {row.release_version}", "messages", applied),
        compared_clocks("the message store", at, between),
    ]


def migrated(check: str, what: str, folder: str, applied: Mapping[int, str]) -> Finding:
    """The tables against the migrations of this version."""
    known = load(MIGRATIONS / folder)
    try:
        lacking = pending(known, applied)
    except MigrationError as error:
        return fail(check, f"{what}: {error}", "deploy the version that made the tables")
    if lacking:
        found = f"{what} lacks {len(lacking)} of {len(known)} migrations, the first is {lacking[0].name}"
        return fail(check, found, MIGRATE)
    newer = len(applied.keys() - {migration.number for migration in known})
    return ok(check, f"{what}, {len(known)} migrations" + (f" and {newer} of a newer version" if newer else ""))


def _ms(at: datetime) -> int:
    return int(at.timestamp() * 1000)
