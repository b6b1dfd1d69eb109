"""The connection to an engine: what happens to one call must not end the others."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import DataReceived, RequestReceived, StreamReset

from inference_workers.engine.channel import Call, CallFailed, Code, _Link


class Wire(asyncio.Transport):
    """The bytes that the client has written, until the server takes them."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.closed = False

    def write(self, data: Any) -> None:
        self.written += data

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        """Tests hand over what the server has said when they want to."""

    def resume_reading(self) -> None:
        """As above."""


class Server:
    """The other end: HTTP/2 by the same library, said in pieces that a test chooses."""

    def __init__(self) -> None:
        self.h2 = H2Connection(H2Configuration(client_side=False))
        self.wire = Wire()
        self.link = _Link("engine:1")
        self.link.connection_made(self.wire)
        self.h2.initiate_connection()
        self.answer()

    def answer(self) -> list[Any]:
        """Read what the client has said, and say all that is to be said in one piece; what was read."""
        read = self.h2.receive_data(bytes(self.wire.written))
        self.wire.written.clear()
        if said := self.h2.data_to_send():
            self.link.data_received(said)
        return read

    def call(self, size: int = 10) -> Call:
        """A call of the client's, with a message of so many bytes."""
        return self.link.open("/a/b", (), bytes(size))

    def say(self, call: Call, message: bytes, status: int | None = None) -> None:
        """A message of an answer, and the end if there is a status."""
        self.h2.send_headers(call.stream, [(":status", "200"), ("content-type", "application/grpc")])
        self.h2.send_data(call.stream, b"\0" + len(message).to_bytes(4) + message)
        if status is not None:
            self.h2.send_headers(call.stream, [("grpc-status", str(status))], end_stream=True)


@pytest.fixture
async def server() -> Server:
    return Server()


LARGE = 200_000
"""More than the first window lets through."""


def body(events: list[Any]) -> int:
    return sum(len(event.data) for event in events if isinstance(event, DataReceived))


async def test_a_long_prompt_goes_out_as_the_windows_open(server: Server) -> None:
    call = server.call(LARGE)
    sent = body(server.answer())
    assert 0 < sent < LARGE
    while sent < LARGE:
        server.h2.increment_flow_control_window(50_000)
        server.h2.increment_flow_control_window(50_000, call.stream)
        server.answer()
        sent += body(server.answer())
    server.say(call, b"well", status=0)
    server.answer()
    assert await call.read() == [b"well"]
    assert await call.read() == []


async def test_a_call_that_is_reset_while_its_prompt_waits_for_a_window_ends_alone(server: Server) -> None:
    """The window opens in the same piece: nothing more may be sent on the stream, and the connection lives."""
    other = server.call()
    long = server.call(LARGE)
    server.answer()
    server.h2.increment_flow_control_window(50_000)
    server.h2.reset_stream(long.stream, ErrorCodes.REFUSED_STREAM)
    server.say(other, b"well", status=0)
    server.answer()
    with pytest.raises(CallFailed) as failed:
        await long.read()
    assert failed.value.status.code == Code.UNAVAILABLE
    assert await other.read() == [b"well"]
    assert not server.wire.closed


async def test_an_answer_before_the_whole_prompt_was_sent_leaves_no_stream_open(server: Server) -> None:
    """The server refuses a prompt that it has not read to the end; what is left of it is not sent."""
    long = server.call(LARGE)
    server.answer()
    server.h2.increment_flow_control_window(50_000)
    server.h2.send_headers(long.stream, [(":status", "200"), ("grpc-status", "3")], end_stream=True)
    server.answer()
    with pytest.raises(CallFailed) as failed:
        await long.read()
    assert failed.value.status.code == Code.INVALID_ARGUMENT
    assert [event.stream_id for event in server.answer() if isinstance(event, StreamReset)] == [long.stream]
    assert not server.wire.closed


@pytest.mark.parametrize("more", ["reset", "going away"])
async def test_an_early_answer_counts_whatever_the_server_says_after_it(server: Server, more: str) -> None:
    long = server.call(LARGE)
    server.answer()
    server.h2.send_headers(long.stream, [(":status", "200"), ("grpc-status", "3")], end_stream=True)
    if more == "reset":
        server.h2.reset_stream(long.stream, ErrorCodes.NO_ERROR)
    else:
        server.h2.close_connection(last_stream_id=long.stream)
    server.answer()
    with pytest.raises(CallFailed) as failed:
        await long.read()
    assert failed.value.status.code == Code.INVALID_ARGUMENT
    assert not server.link.busy
    assert not server.wire.closed


async def test_calls_end_when_the_server_goes_away_and_the_window_opens_in_one_piece(server: Server) -> None:
    long = server.call(LARGE)
    server.answer()
    server.h2.increment_flow_control_window(50_000)
    server.h2.close_connection(last_stream_id=0)
    server.answer()
    with pytest.raises(CallFailed) as failed:
        await long.read()
    assert failed.value.status.code == Code.UNAVAILABLE


async def test_a_call_that_is_left_is_told_to_the_server(server: Server) -> None:
    call = server.call()
    assert any(isinstance(event, RequestReceived) for event in server.answer())
    call.cancel()
    assert any(isinstance(event, StreamReset) for event in server.answer())
    assert not server.link.busy
