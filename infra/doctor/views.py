"""The stores against the groups that feed them: an empty one has lost what its group has long been done with.

Nothing else tells: the tables are there, the group is at the log's end, and what was said is not to be found.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from consumers.history.main import group_of
from infra.doctor.findings import Finding, fail, ok
from parley.log.watermark import Watermark
from parley.settings import Settings
from parley.stores.cql import CqlClient
from parley.stores.postgres import connect, store_errors
from parley.topics import TURNS


async def views(settings: Settings) -> list[Finding]:
    """Both stores."""
    return [
        await _view(settings, group_of("messages"), _any_message, "docs/runbooks/recover-messages.md"),
        await _view(settings, group_of("sessions"), _any_session, "docs/runbooks/recover-postgresql.md"),
    ]


async def _view(settings: Settings, group: str, holds: Callable[[Settings], Awaitable[bool]], page: str) -> Finding:
    watermark = Watermark(settings.kafka, group, TURNS, "doctor")
    await watermark.start()
    try:
        done = sum((await watermark.read(range(settings.topics.session_partitions))).values())
    finally:
        await watermark.stop()
    if done and not await holds(settings):
        return fail("views", f"{group} has come to {done} records in all, and its store is empty", f"see {page}")
    return ok("views", f"{group} has come to {done} records in all")


async def _any_message(settings: Settings) -> bool:
    client = await CqlClient.connect(settings.messages)
    try:
        return bool(await client.execute(f"SELECT session_id FROM {settings.messages.keyspace}.session_header LIMIT 1"))
    finally:
        await client.close()


async def _any_session(settings: Settings) -> bool:
    async with connect(settings.postgres) as connection:
        with store_errors():
            return await (await connection.execute("SELECT 1 FROM chat_session LIMIT 1")).fetchone() is not None
