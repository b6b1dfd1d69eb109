"""A TCP proxy that can be told to misbehave: to reset, to go silent, to be slow."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from typing import Self

LOOPBACK = "127.0.0.1"
CHUNK = 1 << 16


class Proxy:
    """Between those who connect to `port` and a server on `target`; both are ports of loopback.

    `silence` stops the bytes of all connections, in both directions, without ending one: as a cable that was pulled.
    New connections are accepted and hear nothing. `reset` ends all connections at once, and lets new ones through.
    """

    def __init__(self, port: int, target: int) -> None:
        self.port = port
        self.target = target
        self.delay_s = 0.0
        """How much later every chunk arrives."""
        self._through = asyncio.Event()
        self._through.set()
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @property
    def connections(self) -> int:
        """How many are open now."""
        return len(self._connections)

    def silence(self) -> None:
        """Nothing passes from now on."""
        self._through.clear()

    def mend(self) -> None:
        """All passes again, what waited first; without delay."""
        self.delay_s = 0.0
        self._through.set()

    def reset(self) -> None:
        """End every connection; whoever comes again is let through, unless it is silent here."""
        for connection in self._connections:
            connection.cancel()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, LOOPBACK, self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        self.reset()
        while self._connections:
            await asyncio.wait(self._connections)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            with contextlib.suppress(asyncio.CancelledError, OSError):
                await self._relay(reader, writer)
        finally:
            writer.transport.abort()
            self._connections.discard(task)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._through.wait()
        far_reader, far_writer = await asyncio.open_connection(LOOPBACK, self.target)
        ways = [
            asyncio.create_task(self._pump(reader, far_writer)),
            asyncio.create_task(self._pump(far_reader, writer)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            far_writer.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(CHUNK):
            if self.delay_s:
                await asyncio.sleep(self.delay_s)
            await self._through.wait()
            writer.write(data)
            await writer.drain()
