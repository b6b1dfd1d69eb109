"""The edge's process: binds its port, serves, and drains on SIGTERM."""

from __future__ import annotations

import contextlib
import logging
import math
import socket
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp

from parley.process import until_stopped
from parley.settings import EdgeSettings, Settings
from producers.edge.app import build_app
from producers.edge.service import FAREWELL, Edge, open_edge
from producers.edge.wire import Wire

log = logging.getLogger(__name__)

BACKLOG = 2048
SEND_BUFFER = 131_072
"""Bytes that the kernel takes for a connection (it doubles them): left alone it takes 4 MB for a client that does not
read, and hides for as long that it does not."""
CLEANUP_S = 2
"""After the drain: how long connections that are told to close may take."""


class Server(uvicorn.Server):
    """uvicorn's server, that leaves signals to `run` and drains the edge before its connections."""

    def __init__(self, config: uvicorn.Config, edge: Edge) -> None:
        super().__init__(config)
        self._edge = edge

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Whoever runs the server installs handlers."""
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting; send sockets elsewhere one after the other, give event streams some time; then the rest."""
        for server in self.servers:
            server.close()
        if not self.force_exit:
            await self._edge.drain()
        await super().shutdown(sockets)


def listen(settings: EdgeSettings) -> socket.socket:
    """The listening socket.

    Connections inherit that a peer which acknowledges nothing for the dead-peer time is gone: without it, what is
    written to a vanished peer keeps its connection for a quarter of an hour. They inherit the send buffer too.

    Raises:
        OSError: the address is taken.
    """
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(settings.dead_peer_s * 1000))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        listener.bind((settings.host, settings.port))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    listener.setblocking(False)
    return listener


def configure(app: ASGIApp, settings: EdgeSettings) -> uvicorn.Config:
    """uvicorn's configuration. A ping goes out every keep-alive time; its answer has what is left of the dead-peer
    time. Messages are limited uncompressed: compression is off, for tokens it costs more than it saves."""
    return uvicorn.Config(
        app,
        ws=Wire,
        ws_max_size=settings.max_message_bytes,
        ws_ping_interval=settings.keepalive_s,
        ws_ping_timeout=max(settings.dead_peer_s - settings.keepalive_s, 0.1),
        ws_per_message_deflate=False,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=math.ceil(settings.drain_s * (1 - FAREWELL)) + CLEANUP_S,
    )


async def run(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT, then drain.

    Raises:
        ParleyError: log_unavailable: Kafka does not answer, or lacks the topics.
        OSError: the port is taken.
    """
    listener = listen(settings.edge)
    try:
        async with open_edge(settings) as edge:
            server = Server(configure(build_app(edge), settings.edge), edge)
            log.info("the edge listens on http://%s:%d", *listener.getsockname()[:2])
            await until_stopped(server.serve(sockets=[listener]), lambda: setattr(server, "should_exit", True))
    finally:
        listener.close()
