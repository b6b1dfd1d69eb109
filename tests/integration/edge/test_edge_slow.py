"""A client that stops reading: what it costs the edge, what the others notice, and how it gets the rest."""

from __future__ import annotations

import asyncio
import contextlib
import socket as sockets
import time
from typing import Any

import orjson
import pytest
from edge_stage import Apart, Person, Roles, apart, delta, terminal
from test_edge_socket import CREATE, OURS, hear, say, whole
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from parley.settings import Settings
from schemas.prompts import PromptAccepted

pytestmark = pytest.mark.stack

HEALTHY = 50
PIECE, PIECES = "x" * 16_000, 400
MEMORY_MIB = 8.0
NOTICEABLE_S = 0.05


async def big(roles: Roles, prompt: PromptAccepted) -> None:
    """An answer of more than six megabytes, at 100 pieces a second: more than the kernel keeps for a connection."""
    await roles.begin(prompt)
    for seq in range(PIECES):
        await roles.write(prompt, delta(seq, PIECE))
        await asyncio.sleep(0.01)
    await roles.write(prompt, terminal(PIECES))


async def clock(roles: Roles, prompt: PromptAccepted) -> None:
    """Tokens that say when they were written, 20 a second."""
    await roles.begin(prompt)
    for seq in range(100):
        await roles.write(prompt, delta(seq, repr(time.time())))
        await asyncio.sleep(0.05)
    await roles.write(prompt, terminal(100))


async def delays(socket: ClientConnection) -> list[float]:
    """How long each token took from its writer to this client."""
    found = []
    async for frame in socket:
        event = orjson.loads(frame)
        if "delta" in event:
            found.append(time.time() - float(event["delta"]))
        if event["type"] == "response.completed":
            return found
    raise AssertionError("the stream broke off")


def p95(values: list[float]) -> float:
    return sorted(values)[int(len(values) * 0.95)]


async def asked(socket: ClientConnection, roles: Roles, lane: int | None = None) -> PromptAccepted:
    """A prompt that nobody has answered yet, on this lane if one is given: the edge takes its lanes in turn."""
    roles.script = None
    while True:
        await say(socket, CREATE)
        response = (await hear(socket))["response"]["id"]
        async with asyncio.timeout(10):
            while not (found := [one for one in roles.prompts if one.response == response]):
                await asyncio.sleep(0.01)
        if lane in (None, found[0].route.partition):
            return found[0]
        await roles.begin(found[0])
        await roles.write(found[0], terminal(0))
        await whole(socket)


async def healthy_p95(edge: Apart, who: Person, roles: Roles, lane: int | None = None) -> tuple[float, int]:
    """The 95th percentile of delays over fifty clients that watch one answer, and the lane that it is on."""
    async with contextlib.AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(connect(edge.ws_url, additional_headers=who.headers, subprotocols=OURS))
            for _ in range(HEALTHY)
        ]
        prompt = await asked(clients[0], roles, lane)
        for client in clients[1:]:
            await say(client, {"type": "parley:resume", "response_id": prompt.response})
        roles.tasks.add(asyncio.create_task(clock(roles, prompt)))
        seen = await asyncio.gather(*map(delays, clients))
    return p95([delay for one in seen for delay in one]), prompt.route.partition


def narrow(port: int) -> sockets.socket:
    """A connection that takes in 4 kB and no more until it is read."""
    raw = sockets.socket()
    raw.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, 4096)
    raw.connect(("127.0.0.1", port))
    raw.setblocking(False)
    return raw


async def peak_of(edge: Apart, until: asyncio.Event) -> float:
    """The most memory that the edge has had, in MiB."""
    peak = edge.rss_mib()
    while not until.is_set():
        peak = max(peak, edge.rss_mib())
        await asyncio.sleep(0.05)
    return peak


async def rest_of(socket: ClientConnection) -> list[Any]:
    """What had been on its way when the edge closed."""
    found = []
    with contextlib.suppress(ConnectionClosed):
        while True:
            found.append(orjson.loads(await asyncio.wait_for(socket.recv(), 20)))
    return found


async def test_f42_one_that_stops_reading_costs_little_hinders_nobody_and_gets_the_rest_later(
    base_settings: Settings, roles: Roles, ada: Person
) -> None:
    """Field case F42: a stream of 5 MB to a client with a receive buffer of 4 kB, beside fifty healthy clients on the
    same edge and lane."""
    async with (
        apart(base_settings, route="lane", reader_queue=100) as edge,
        connect(
            edge.ws_url,
            sock=(raw := narrow(edge.port)),
            additional_headers=ada.headers,
            max_queue=1,
            max_size=None,
            ping_interval=None,
        ) as slow,
    ):
        before, lane = await healthy_p95(edge, ada, roles)
        async with connect(edge.ws_url, additional_headers=ada.headers) as gone:
            unwatched = await asked(gone, roles, lane)
        await big(roles, unwatched)  # what reading such a lane takes is no client's memory
        prompt = await asked(slow, roles, lane)
        done = asyncio.Event()
        peak = asyncio.create_task(peak_of(edge, done))
        rss = edge.rss_mib()
        writing = asyncio.create_task(big(roles, prompt))
        during, _ = await healthy_p95(edge, ada, roles, lane)
        await writing
        done.set()
        grown = await peak - rss
        raw.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, 1 << 20)
        seen = await rest_of(slow)
        assert slow.close_code in (1013, 1006)  # 1006: it had not taken in the close frame in time
        assert len(seen) < PIECES
        async with connect(edge.ws_url, additional_headers=ada.headers, subprotocols=OURS, max_size=None) as again:
            last = seen[-1]["sequence_number"]
            await say(again, {"type": "parley:resume", "response_id": prompt.response, "starting_after": last})
            seen += await whole(again)
    assert [event["sequence_number"] for event in seen] == list(range(1, len(seen) + 1))
    assert "".join(event["delta"] for event in seen if "delta" in event) == PIECE * PIECES
    assert grown < MEMORY_MIB, f"{grown:.1f} MiB"
    assert during < before + NOTICEABLE_S, f"{before * 1e3:.0f} ms alone, {during * 1e3:.0f} ms beside it"
