"""scylla-driver for asyncio: requests from the loop, answers from the driver's own thread, never blocking either."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from cassandra import (
    ConsistencyLevel,
    CoordinationFailure,
    InvalidRequest,
    OperationTimedOut,
    Timeout,
    Unavailable,
    UnresolvableContactPoints,
)
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import (
    EXEC_PROFILE_DEFAULT,
    Cluster,
    ExecutionProfile,
    NoHostAvailable,
    ResponseFuture,
    ResultSet,
    Session,
)
from cassandra.connection import ConnectionException
from cassandra.io.libevreactor import LibevConnection
from cassandra.policies import DCAwareRoundRobinPolicy, ExponentialReconnectionPolicy, TokenAwarePolicy
from cassandra.protocol import (
    IsBootstrappingErrorMessage,
    OverloadedErrorMessage,
    ServerError,
    TruncateError,
    UnavailableErrorMessage,
)
from cassandra.query import BatchStatement, BatchType, PreparedStatement

from parley.errors import ParleyError
from parley.settings import MessagesSettings

Row = Any
"""A named tuple of the columns asked for."""
Page = tuple[list[Row], bytes | None]
"""Rows, and where the next page begins; None: there is none."""

CONNECT_TIMEOUT_S = 5.0
REQUEST_TIMEOUT_S = 5.0
SUBMITTERS = 4
"""Threads that hand requests to the driver."""

_UNAVAILABLE = (
    NoHostAvailable,
    OperationTimedOut,
    Timeout,
    Unavailable,
    CoordinationFailure,
    ConnectionException,
    UnavailableErrorMessage,
    OverloadedErrorMessage,
    IsBootstrappingErrorMessage,
    TruncateError,
    ServerError,
    OSError,
)
"""What may be better in a moment. A write among these may have been applied all the same: write again."""

_NO_TABLE = re.compile(r"unconfigured table|(table|keyspace) \S+ (does not|doesn't) exist", re.IGNORECASE)
"""What a store says that has lost its data, or another one in its place."""


class CqlClient:
    """A connection to the cluster, with at most `in_flight` requests at once."""

    def __init__(self, cluster: Cluster, session: Session, where: str, in_flight: int) -> None:
        self._cluster = cluster
        self._session = session
        self._where = where
        self._slots = asyncio.Semaphore(in_flight)
        # Handing a request over waits up to 2 s for a connection while a host is going down: not on the loop.
        self._submitters = ThreadPoolExecutor(SUBMITTERS, thread_name_prefix="cql")

    @classmethod
    async def connect(cls, settings: MessagesSettings) -> CqlClient:
        """Connect, off the loop: the driver blocks while it does.

        Raises:
            ParleyError: store_unavailable, with what to look at.
        """
        where = ", ".join(f"{host}:{settings.port}" for host in settings.hosts)
        try:
            cluster = await asyncio.to_thread(_cluster, settings)  # looks up the names of the hosts
        except UnresolvableContactPoints as error:  # a container that is stopped has none
            raise ParleyError("store_unavailable", f"no message store at {where}: nobody knows that name") from error
        try:
            session = await asyncio.to_thread(cluster.connect)
        except BaseException as error:
            await asyncio.shield(asyncio.to_thread(cluster.shutdown))
            if isinstance(error, _UNAVAILABLE):
                raise ParleyError(
                    "store_unavailable",
                    f"no message store answers at {where}: is it running, and is "
                    f"{settings.datacenter!r} the name of its data centre?",
                ) from error
            raise
        return cls(cluster, session, where, settings.in_flight)

    async def close(self) -> None:
        """Disconnect."""
        await asyncio.to_thread(self._cluster.shutdown)
        self._submitters.shutdown(wait=False, cancel_futures=True)

    async def prepare(self, statement: str, *, idempotent: bool = True) -> PreparedStatement:
        """A statement for `execute`. Idempotent ones may be sent again by the driver.

        Raises:
            ParleyError: store_unavailable, also when the tables are not there yet.
        """
        try:
            prepared = await asyncio.to_thread(self._session.prepare, statement)
        except InvalidRequest as error:
            raise _no_tables(error) from error
        except _UNAVAILABLE as error:
            raise self._unavailable(error) from error
        prepared.is_idempotent = idempotent
        return prepared

    async def execute(self, statement: PreparedStatement | str, values: Sequence[object] = ()) -> list[Row]:
        """Run a statement whose rows fit one page; use `rows` for everything else.

        Raises:
            ParleyError: store_unavailable.
        """
        found, _ = await self._page(statement, values, None)
        return found

    async def write(self, *bound: tuple[PreparedStatement, Sequence[object]]) -> None:
        """Write in one request. What has one partition key is seen together or not at all, also over several tables.
        What has others may come apart: after a failure, write it again.

        Raises:
            ParleyError: store_unavailable.
        """
        batch = BatchStatement(BatchType.UNLOGGED)
        for statement, values in bound:
            batch.add(statement, values)
        batch.is_idempotent = all(statement.is_idempotent for statement, _ in bound)
        await self._page(batch, (), None)

    async def rows(self, statement: PreparedStatement, values: Sequence[object]) -> AsyncGenerator[Row]:
        """All rows, page after page. A page may be empty in the middle (rows that were deleted): only the server's
        word that there are no more ends the iteration.

        Raises:
            ParleyError: store_unavailable.
        """
        state: bytes | None = None
        while True:
            found, state = await self._page(statement, values, state)
            for row in found:
                yield row
            if state is None:
                return

    async def _page(
        self, statement: PreparedStatement | BatchStatement | str, values: Sequence[object], state: bytes | None
    ) -> Page:
        loop = asyncio.get_running_loop()
        async with self._slots:
            answer: asyncio.Future[Page] = loop.create_future()

            # Both run on the driver's thread.
            def received(rows: list[Row] | None, request: ResponseFuture) -> None:
                pages = ResultSet(request, rows)
                more = pages.paging_state if pages.has_more_pages else None
                _call(loop, _settle, answer, (rows or [], more))

            def failed(error: Exception) -> None:
                _call(loop, _settle, answer, error)

            def submit() -> None:
                request = self._session.execute_async(statement, values or None, paging_state=state)
                request.add_callbacks(received, failed, callback_args=(request,))

            try:
                await loop.run_in_executor(self._submitters, submit)
                return await answer
            except InvalidRequest as error:
                if _NO_TABLE.search(str(error)):
                    raise _no_tables(error) from error
                raise
            except _UNAVAILABLE as error:
                raise self._unavailable(error) from error

    def _unavailable(self, error: BaseException) -> ParleyError:
        return ParleyError("store_unavailable", f"the message store at {self._where}: {type(error).__name__}")


def _call(loop: asyncio.AbstractEventLoop, what: Callable[..., None], *values: object) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(what, *values)


def _settle(answer: asyncio.Future[Page], outcome: Page | Exception) -> None:
    """On the loop, where alone it is sure whether whoever waited has been cancelled meanwhile."""
    if answer.done():
        return
    if isinstance(outcome, Exception):
        answer.set_exception(outcome)
    else:
        answer.set_result(outcome)


def _no_tables(error: Exception) -> ParleyError:
    return ParleyError("store_unavailable", f"the message store lacks Parley's tables: run `parley migrate` ({error})")


def _cluster(settings: MessagesSettings) -> Cluster:
    login = None
    if settings.username is not None and settings.password is not None:
        login = PlainTextAuthProvider(settings.username, settings.password.get_secret_value())
    profile = ExecutionProfile(
        load_balancing_policy=TokenAwarePolicy(DCAwareRoundRobinPolicy(local_dc=settings.datacenter)),
        consistency_level=ConsistencyLevel.LOCAL_QUORUM,
        request_timeout=REQUEST_TIMEOUT_S,
    )
    return Cluster(
        list(settings.hosts),
        port=settings.port,
        auth_provider=login,
        connection_class=LibevConnection,
        connect_timeout=CONNECT_TIMEOUT_S,
        control_connection_timeout=CONNECT_TIMEOUT_S,
        execution_profiles={EXEC_PROFILE_DEFAULT: profile},
        # The default waits up to ten minutes between attempts: a store that is back would stay unused for that long.
        reconnection_policy=ExponentialReconnectionPolicy(0.5, 5.0, max_attempts=None),
        # A filtered shard-aware port (19042) costs long hangs; the driver finds all shards through the plain one.
        shard_aware_options={"disable_shardaware_port": True},
        idle_heartbeat_interval=10,
        idle_heartbeat_timeout=5,
    )
