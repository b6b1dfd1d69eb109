"""Connections to PostgreSQL: a pool that recovers by itself, and its errors in the words of the taxonomy."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import psycopg
from psycopg_pool import AsyncConnectionPool, PoolClosed, PoolTimeout, TooManyRequests

from parley.errors import ParleyError
from parley.settings import PostgresSettings

Connection = psycopg.AsyncConnection[tuple[Any, ...]]
Pool = AsyncConnectionPool[Connection]

WAIT_S = 3.0
"""How long a caller waits for a connection: longer means that the database is down or the pool is too small."""
_LIBPQ: dict[str, Any] = {
    "connect_timeout": 3,
    "application_name": "parley",
    "options": "-c statement_timeout=10s -c idle_in_transaction_session_timeout=10s",
    # A server that vanished without a goodbye is noticed within seconds, not by the system's two hours.
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}


@contextmanager
def store_errors() -> Iterator[None]:
    """Turns "can't be reached", "too busy" and "not there yet" into ParleyError(store_unavailable)."""
    try:
        yield
    except (PoolTimeout, PoolClosed, TooManyRequests) as error:
        raise ParleyError("store_unavailable", f"no connection to PostgreSQL: {error}") from error
    except psycopg.errors.UndefinedTable as error:
        raise ParleyError("store_unavailable", "PostgreSQL lacks Parley's tables: run `parley migrate`") from error
    except (psycopg.OperationalError, psycopg.InterfaceError) as error:
        raise ParleyError("store_unavailable", f"PostgreSQL: {error}") from error


@asynccontextmanager
async def connect(settings: PostgresSettings) -> AsyncIterator[Connection]:
    """One connection of its own, for what is done once.

    Raises:
        ParleyError: store_unavailable.
    """
    with store_errors():
        connection = await psycopg.AsyncConnection.connect(settings.dsn.get_secret_value(), **_LIBPQ)
    try:
        yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def open_pool(settings: PostgresSettings) -> AsyncIterator[Pool]:
    """A pool for the life of a process. It opens without waiting: the database may come up later, or come back.

    Connections are in autocommit: none is idle in a transaction, and none is held while something else is awaited.
    """
    pool: Pool = AsyncConnectionPool(
        settings.dsn.get_secret_value(),
        kwargs=_LIBPQ | {"autocommit": True},
        min_size=1,
        max_size=settings.pool_size,
        timeout=WAIT_S,
        # After a failure attempts double in distance up to this; the next caller begins anew.
        reconnect_timeout=5.0,
        check=AsyncConnectionPool.check_connection,
        name="parley",
        open=False,
    )
    await pool.open(wait=False)
    try:
        yield pool
    finally:
        await pool.close()


@asynccontextmanager
async def borrowed(pool: Pool) -> AsyncIterator[Connection]:
    """A connection for one piece of work.

    Raises:
        ParleyError: store_unavailable.
    """
    with store_errors():
        async with pool.connection() as connection:
            yield connection
