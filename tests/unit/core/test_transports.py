"""A broker's connection that is gone under uvloop is told as aiokafka tells all of them."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
import uvloop
from aiokafka.conn import AIOKafkaConnection
from aiokafka.errors import KafkaConnectionError
from aiokafka.protocol.admin import ApiVersionRequest

from parley.log.transports import mend_transports

HEARD = asyncio.Event()
"""The server's side of the connection is closed."""


async def hear_all(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        await reader.read()
    writer.close()
    HEARD.set()


async def send_on_a_closed_transport() -> None:
    """What follows when a transport has closed, and the connection has not been told yet."""
    server = await asyncio.start_server(hear_all, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        connection = AIOKafkaConnection("127.0.0.1", port)
        connection._reader, connection._writer = await asyncio.open_connection("127.0.0.1", port)
        connection._read_task = asyncio.create_task(asyncio.sleep(0))
        connection._writer.transport.abort()
        await asyncio.sleep(0.05)
        try:
            await connection.send(ApiVersionRequest())
        finally:
            await HEARD.wait()
            await asyncio.sleep(0)  # what was closed is gone one round later


def test_a_connection_that_is_found_closed_is_a_connection_that_broke() -> None:
    mend_transports()
    mend_transports()  # once is enough, twice does no harm
    with pytest.raises(KafkaConnectionError, match="closed"):
        uvloop.run(send_on_a_closed_transport())
