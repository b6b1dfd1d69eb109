"""gRPC calls of one request and many responses, over one connection that is made when it is needed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, cast

from inference_workers.engine.http2 import Code, Connection, ProtocolError, Status, Stream

CONNECT_TIMEOUT_S: Final = 5.0


class CallFailed(Exception):
    """A call that did not end well."""

    def __init__(self, status: Status) -> None:
        super().__init__(f"{status.code}: {status.message}")
        self.status = status


class Call:
    """A running call. Cancel it when it is left: only so the server hears of it."""

    def __init__(self, link: _Link, path: str, metadata: Sequence[tuple[str, str]], message: bytes) -> None:
        self._link = link
        self._waiter: asyncio.Future[None] | None = None
        self._stream: Stream = link.connection.open(path, metadata, message, self._wake)
        link.flush()

    async def read(self) -> list[bytes]:
        """All messages that have come since the last time, at least one; none at the call's good end.

        :raises CallFailed: the call has failed, and all its messages were read.
        """
        stream = self._stream
        while not stream.messages:
            if stream.status is not None:
                if stream.status.code != Code.OK:
                    raise CallFailed(stream.status)
                return []
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        messages = list(stream.messages)
        stream.messages.clear()
        return messages

    def cancel(self, status: Status = Status(Code.CANCELLED, "left")) -> None:  # noqa: B008 - immutable
        """Leave the call, and end a `read` that waits with this status; nothing happens when it has ended."""
        self._link.connection.cancel(self._stream)
        self._link.flush()
        self._stream.end(status)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Channel:
    """Where a server is. Calls share one connection; when it has ended, the next call makes a new one."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._host, _, port = address.rpartition(":")
        self._port = int(port)
        self._link: _Link | None = None
        self._connecting = asyncio.Lock()

    async def call(self, path: str, metadata: Sequence[tuple[str, str]], message: bytes) -> Call:
        """Begin a call.

        :raises CallFailed: nobody can be reached there.
        """
        async with self._connecting:
            link = self._link
            if link is None or link.connection.closing:
                link = self._link = await self._connect()
        return Call(link, path, metadata, message)

    async def close(self) -> None:
        """End the connection, and with it all calls."""
        if self._link is not None:
            self._link.close()

    async def _connect(self) -> _Link:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, link = await loop.create_connection(lambda: _Link(self._address), self._host, self._port)
        except (OSError, TimeoutError) as error:
            message = f"no connection to {self._address}: {error or 'timeout'}"
            raise CallFailed(Status(Code.UNAVAILABLE, message)) from error
        return link


class _Link(asyncio.Protocol):
    """Carries a connection's bytes."""

    def __init__(self, address: str) -> None:
        self.connection = Connection(address)
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass
        self.flush()

    def data_received(self, data: bytes) -> None:
        try:
            self.connection.receive(data)
        except ProtocolError as error:
            self.connection.lost(str(error))
            self.close()
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self.connection.lost("the connection was lost")

    def flush(self) -> None:
        if (out := self.connection.take()) and self._transport is not None and not self._transport.is_closing():
            self._transport.write(out)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
