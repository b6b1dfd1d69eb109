"""The proxy of the chaos suite does to connections what it says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.chaos.proxy import LOOPBACK, Proxy


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1024):
        writer.write(data)
    writer.close()


@asynccontextmanager
async def proxied() -> AsyncIterator[Proxy]:
    server = await asyncio.start_server(echo, LOOPBACK, 0)
    async with server, Proxy(0, server.sockets[0].getsockname()[1]) as proxy:
        yield proxy


@asynccontextmanager
async def connected(proxy: Proxy) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(LOOPBACK, proxy.port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def test_bytes_pass_in_both_directions() -> None:
    async with proxied() as proxy, connected(proxy) as (reader, writer):
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"


async def test_silence_ends_nothing_and_what_waited_comes_when_it_is_mended() -> None:
    async with proxied() as proxy, connected(proxy) as (reader, writer):
        writer.write(b"a")
        assert await reader.readexactly(1) == b"a"
        proxy.silence()
        writer.write(b"b")
        async with connected(proxy) as (other, other_writer):
            other_writer.write(b"c")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.gather(reader.read(1), other.read(1)), 0.1)
            proxy.mend()
            assert (await reader.readexactly(1), await other.readexactly(1)) == (b"b", b"c")


async def test_a_reset_ends_every_connection_and_lets_new_ones_through() -> None:
    async with proxied() as proxy, connected(proxy) as (reader, writer):
        writer.write(b"a")
        await reader.readexactly(1)
        proxy.reset()
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await reader.readexactly(1)
        async with connected(proxy) as (again, again_writer):
            again_writer.write(b"b")
            assert await again.readexactly(1) == b"b"


async def test_a_delay_comes_to_every_piece() -> None:
    async with proxied() as proxy, connected(proxy) as (reader, writer):
        proxy.delay_s = 0.05
        loop = asyncio.get_running_loop()
        began = loop.time()
        writer.write(b"a")
        assert await reader.readexactly(1) == b"a"
        assert loop.time() - began >= 0.1  # there and back
