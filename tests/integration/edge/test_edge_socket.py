"""Responses over WebSocket: the rules of docs/api.md, on real sockets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
from edge_stage import Person, Roles, Running, answer, delta, running, terminal
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Subprotocol

from parley.settings import Settings
from parley.stores.accounts import Accounts
from producers.edge.service import LINGER_S
from schemas.prompts import PromptAccepted

pytestmark = pytest.mark.stack

CREATE: dict[str, Any] = {"type": "response.create", "model": "synthetic", "input": "Hello?"}
OURS = [Subprotocol("parley.v1")]


async def say(socket: ClientConnection, message: Any) -> None:
    await socket.send(orjson.dumps(message).decode())


async def hear(socket: ClientConnection) -> Any:
    return orjson.loads(await asyncio.wait_for(socket.recv(), 10))


async def whole(socket: ClientConnection) -> list[Any]:
    """The events up to the end of the running response."""
    events = [await hear(socket)]
    while events[-1]["type"] not in ("response.completed", "response.incomplete", "response.failed", "error"):
        events.append(await hear(socket))
    return events


async def closed(socket: ClientConnection) -> int:
    """The close code, after whatever still comes."""
    with contextlib.suppress(ConnectionClosed):
        while True:
            await asyncio.wait_for(socket.recv(), 10)
    assert socket.close_code is not None
    return socket.close_code


@pytest.fixture
async def socket(edge: Running, ada: Person) -> AsyncIterator[ClientConnection]:
    async with connect(edge.ws_url, additional_headers=ada.headers) as connection:
        yield connection


async def test_an_answer_is_the_same_events_as_over_sse(socket: ClientConnection, roles: Roles) -> None:
    roles.script = answer("Hel", "lo")
    await say(socket, CREATE)
    events = await whole(socket)
    assert [event["sequence_number"] for event in events] == list(range(10))
    assert events[0]["type"] == "response.created"
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == "Hello"


async def test_turns_follow_each_other_on_one_socket(socket: ClientConnection, roles: Roles) -> None:
    roles.script = answer("x")
    await say(socket, CREATE)
    first = (await whole(socket))[-1]["response"]["id"]
    await say(socket, CREATE | {"previous_response_id": first})
    assert (await whole(socket))[-1]["response"]["previous_response_id"] == first
    assert roles.prompts[-1].parent == first
    assert roles.prompts[-1].session == roles.prompts[-2].session


async def test_a_second_create_is_a_conflict_and_the_first_goes_on(socket: ClientConnection, roles: Roles) -> None:
    go = asyncio.Event()

    async def script(roles: Roles, prompt: PromptAccepted) -> None:
        await roles.begin(prompt)
        await go.wait()
        await roles.write(prompt, delta(0, "x"), terminal(1))

    roles.script = script
    await say(socket, CREATE)
    assert (await hear(socket))["type"] == "response.created"
    assert (await hear(socket))["type"] == "response.in_progress"
    await say(socket, CREATE)
    refused = await hear(socket)
    assert (refused["type"], refused["status"], refused["error"]["code"]) == ("error", 409, "response_in_progress")
    go.set()
    assert (await whole(socket))[-1]["type"] == "response.completed"
    assert len(roles.prompts) == 1


@pytest.mark.parametrize(
    ("message", "status", "code"),
    [
        ("{", 400, "invalid_json"),
        ("[1]", 400, "invalid_json"),
        ('{"input": "x"}', 400, "invalid_request"),
        ('{"type": "session.update"}', 400, "unsupported"),
        ('{"type": "parley:ping"}', 400, "unsupported"),  # this socket has not asked for our own messages
        ('{"type": "response.create", "model": "synthetic", "input": 5}', 400, "invalid_request"),
        ('{"type": "response.create", "model": "synthetic", "input": "x", "stream": true}', 400, "unsupported"),
        ('{"type": "response.create", "model": "synthetic", "input": "x", "background": false}', 400, "unsupported"),
        ('{"type": "response.create", "model": "gpt-9", "input": "x"}', 404, "model_not_found"),
        ('{"type": "response.create", "model": "synthetic", "input": "\\ud800"}', 400, "invalid_json"),
        (
            '{"type": "response.create", "model": "synthetic", "input": "x", "previous_response_id": "resp_x"}',
            404,
            "not_found",
        ),
        (b"\x00\x01", 400, "unsupported"),
    ],
)
async def test_a_bad_message_is_answered_and_the_next_good_one_works(
    socket: ClientConnection, roles: Roles, message: str | bytes, status: int, code: str
) -> None:
    roles.script = answer("fine")
    await socket.send(message)
    refused = await hear(socket)
    assert (refused["type"], refused["status"], refused["error"]["code"]) == ("error", status, code)
    assert refused["error"]["message"]
    await say(socket, CREATE)
    assert (await whole(socket))[-1]["type"] == "response.completed"


async def test_without_a_key_the_handshake_is_a_401(edge: Running, ada: Person, accounts: Accounts) -> None:
    with pytest.raises(InvalidStatus) as refused:
        async with connect(edge.ws_url):
            pass
    assert refused.value.response.status_code == 401
    assert orjson.loads(refused.value.response.body or b"")["error"]["code"] == "invalid_api_key"
    await accounts.revoke_key(ada.key_id)
    with pytest.raises(InvalidStatus):
        async with connect(edge.ws_url, additional_headers=ada.headers):
            pass


async def test_a_browser_gives_its_key_as_a_subprotocol(edge: Running, ada: Person) -> None:
    async with connect(edge.ws_url, subprotocols=[*OURS, Subprotocol(f"parley.key.{ada.key}")]) as socket:
        assert socket.subprotocol == "parley.v1"
        await say(socket, {"type": "parley:ping"})
        assert await hear(socket) == {"type": "parley:pong"}


async def test_pages_of_other_origins_may_not_connect(edge: Running, ada: Person) -> None:
    with pytest.raises(InvalidStatus) as refused:
        async with connect(edge.ws_url, additional_headers=ada.headers, origin="https://evil.example"):  # type: ignore[arg-type]
            pass
    assert refused.value.response.status_code == 403
    async with connect(edge.ws_url, additional_headers=ada.headers, origin=edge.url):  # type: ignore[arg-type]
        pass


async def test_f44_a_message_over_the_limit_closes_1009_and_one_at_the_limit_is_read(
    edge: Running, ada: Person, roles: Roles
) -> None:
    limit = edge.edge.settings.edge.max_message_bytes
    async with connect(edge.ws_url, additional_headers=ada.headers, max_size=None) as socket:
        empty = orjson.dumps(CREATE | {"input": ""}).decode()
        await socket.send(empty.replace('"input":""', '"input":"' + "x" * (limit - len(empty)) + '"'))
        assert (await hear(socket))["error"]["code"] == "context_length_exceeded"
        await socket.send("x" * (limit + 1))
        assert await closed(socket) == 1009


async def test_too_many_messages_close_1008(base_settings: Settings, ada: Person) -> None:
    async with (
        running(base_settings, route="lane", messages_per_second=1) as edge,
        connect(edge.ws_url, additional_headers=ada.headers) as socket,
    ):
        for _ in range(11):
            await socket.send("{")
        assert await closed(socket) == 1008


async def test_an_old_socket_is_closed_between_turns(base_settings: Settings, roles: Roles, ada: Person) -> None:
    roles.script = answer("a", "b", "c", gap=0.3)
    async with (
        running(base_settings, route="lane", socket_lifetime_s=0.5) as edge,
        connect(edge.ws_url, additional_headers=ada.headers) as socket,
    ):
        await say(socket, CREATE)
        assert (await whole(socket))[-1]["type"] == "response.completed"
        assert (await hear(socket))["error"]["code"] == "websocket_connection_limit_reached"
        assert await closed(socket) == 1000


async def test_a_lost_socket_is_resumed_on_another_without_gap(edge: Running, roles: Roles, ada: Person) -> None:
    roles.script = answer(*(f"w{n} " for n in range(40)), gap=0.02)
    async with connect(edge.ws_url, additional_headers=ada.headers) as socket:
        await say(socket, CREATE)
        seen = [await hear(socket) for _ in range(12)]
    async with connect(edge.ws_url, additional_headers=ada.headers, subprotocols=OURS) as socket:
        id_, last = seen[0]["response"]["id"], seen[-1]["sequence_number"]
        await say(socket, {"type": "parley:resume", "response_id": id_, "starting_after": last})
        seen += await whole(socket)
    assert [event["sequence_number"] for event in seen] == list(range(len(seen)))
    assert "".join(event["delta"] for event in seen if "delta" in event) == "".join(f"w{n} " for n in range(40))


async def test_cancel_over_the_socket_is_durable(edge: Running, roles: Roles, ada: Person, bob: Person) -> None:
    async def script(roles: Roles, prompt: PromptAccepted) -> None:
        await roles.begin(prompt)
        await roles.cancelled(prompt)
        await roles.write(prompt, terminal(0, "cancelled"))

    roles.script = script
    async with (
        connect(edge.ws_url, additional_headers=ada.headers, subprotocols=OURS) as socket,
        connect(edge.ws_url, additional_headers=bob.headers, subprotocols=OURS) as foreign,
    ):
        await say(socket, CREATE)
        id_ = (await hear(socket))["response"]["id"]
        await say(foreign, {"type": "parley:cancel", "response_id": id_})
        assert (await hear(foreign))["error"]["code"] == "not_found"
        await say(socket, {"type": "parley:cancel", "response_id": id_})
        ended = (await whole(socket))[-1]
    assert (ended["type"], ended["response"]["status"]) == ("response.incomplete", "cancelled")
    assert ended["response"]["output"] == []
    assert [cancel.user for cancel in roles.cancels] == [ada.user.user_id]


async def test_a_slow_reader_is_sent_to_resume_and_the_others_notice_nothing(
    base_settings: Settings, roles: Roles, ada: Person
) -> None:
    big = "x" * 20_000
    roles.script = answer(*(big for _ in range(400)), gap=0.002)
    async with (
        running(base_settings, route="lane", reader_queue=100) as edge,
        connect(edge.ws_url, additional_headers=ada.headers, max_queue=1) as slow,
        connect(edge.ws_url, additional_headers=ada.headers, subprotocols=OURS, max_size=None) as good,
    ):
        await say(slow, CREATE)
        id_ = (await hear(slow))["response"]["id"]
        await say(good, {"type": "parley:resume", "response_id": id_})
        assert (await whole(good))[-1]["type"] == "response.completed"
        assert await closed(slow) in (1013, 1006)


async def test_drain_sends_sockets_elsewhere_with_1012(base_settings: Settings, ada: Person) -> None:
    async with (
        running(base_settings, route="lane") as edge,
        connect(edge.ws_url, additional_headers=ada.headers) as one,
    ):
        edge.server.should_exit = True
        assert await closed(one) == 1012


async def test_f46_a_half_open_socket_is_noticed_and_its_state_freed(
    base_settings: Settings, roles: Roles, ada: Person
) -> None:
    """A proxy in the middle stops moving bytes both ways without closing; the field case's times divided by thirty."""
    roles.script = answer(*(f"w{n} " for n in range(200)), gap=0.02)
    async with (
        running(base_settings, route="lane", keepalive_s=0.5, dead_peer_s=1.5) as edge,
        silent_proxy(edge.port) as (port, silence),
    ):
        socket = await connect(
            f"ws://127.0.0.1:{port}/v1/responses", additional_headers=ada.headers, ping_interval=None
        )
        await say(socket, CREATE)
        assert (await hear(socket))["type"] == "response.created"
        silence.set()
        async with asyncio.timeout(3 + LINGER_S):
            while edge.server.server_state.connections or len(edge.edge.feeds):
                await asyncio.sleep(0.05)
        socket.transport.abort()


@contextlib.asynccontextmanager
async def silent_proxy(port: int, *, only_back: bool = False) -> AsyncIterator[tuple[int, asyncio.Event]]:
    """A TCP proxy that, while the event is set, reads both sides and passes nothing on, or nothing back."""
    silence = asyncio.Event()
    writers: list[asyncio.StreamWriter] = []

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, back: bool) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                if not silence.is_set() or (only_back and not back):
                    writer.write(data)

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
        writers.extend((writer, far_writer))
        await asyncio.gather(pump(reader, far_writer, False), pump(far_reader, writer, True))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], silence
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()
