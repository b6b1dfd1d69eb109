"""gRPC calls of one request and many responses, over one HTTP/2 connection that is made when it is needed.

Why not grpc.aio: it wakes a thread, and that one the event loop, for every message. 24 streams that say a token each
20 ms in phases of their own cost 240-270 µs of CPU a token with it, 190 with grpclib, 110 here; 64 streams 250, 195
and 70 (2 virtual cores, 2026-11-30). What is dear is being woken, so the connection is read every few milliseconds
and not for each token. HTTP/2 itself is the library h2, which is sans-I/O.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, cast
from urllib.parse import unquote

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    RemoteSettingsChanged,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
    WindowUpdated,
)
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes

CONNECT_TIMEOUT_S: Final = 5.0
GATHER_S: Final = 0.005
"""How long what arrives is gathered before it is read."""
LARGEST_MESSAGE: Final = 16 << 20
"""Bytes; a cumulative text grows."""
_WINDOW: Final = (1 << 31) - 1
_HEAD: Final = 5
"""Bytes before each message: a flag, and its length in four."""


class Code(IntEnum):
    """Status codes of gRPC that are told apart here."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


@dataclass(frozen=True, slots=True)
class Status:
    """How a call ended. ``code`` is gRPC's number, which may be one that `Code` doesn't name."""

    code: int
    message: str = ""


class CallFailed(Exception):
    """A call that did not end well."""

    def __init__(self, status: Status) -> None:
        super().__init__(f"{status.code}: {status.message}")
        self.status = status


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
            if self._link is None or self._link.closing:
                self._link = await self._connect()
            return self._link.open(path, metadata, message)

    @property
    def busy(self) -> bool:
        """Calls are open that the server has not ended, also such as nobody reads any more."""
        return self._link is not None and self._link.busy

    def close(self) -> None:
        """End the connection, and with it all calls."""
        if self._link is not None:
            self._link.close("closed")

    async def _connect(self) -> _Link:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, link = await loop.create_connection(lambda: _Link(self._address), self._host, self._port)
        except (OSError, TimeoutError) as error:
            message = f"no connection to {self._address}: {error or 'timeout'}"
            raise CallFailed(Status(Code.UNAVAILABLE, message)) from error
        return link


class Call:
    """A running call. Whoever leaves it says so, by `cancel` or `abandon`; after its end both do nothing."""

    def __init__(self, link: _Link, stream: int, message: bytes) -> None:
        self._link = link
        self._messages: deque[bytes] = deque()
        self._partial = b""
        self._status: Status | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._abandoned = False
        self.stream = stream
        self.unsent = b"\0" + len(message).to_bytes(4) + message
        self.grpc_status: Status | None = None
        """Of the headers or trailers: it counts when the stream ends."""

    async def read(self) -> list[bytes]:
        """All messages that have come since the last time, at least one; none at the call's good end.

        :raises CallFailed: the call has failed, and all its messages were read.
        """
        while not self._messages:
            if self._status is not None:
                if self._status.code != Code.OK:
                    raise CallFailed(self._status)
                return []
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        messages = list(self._messages)
        self._messages.clear()
        return messages

    @property
    def open(self) -> bool:
        """The server has not ended it."""
        return self._link.holds(self)

    @property
    def unread(self) -> bool:
        """Messages have come that nobody has read yet."""
        return bool(self._messages)

    def cancel(self) -> None:
        """Leave the call and tell the server, which then breaks it off."""
        self._link.leave(self)

    def abandon(self, within_s: float) -> None:
        """Read no more, and let the server end the call in its own time; cancel it if that takes longer."""
        self._abandoned = True
        self._messages.clear()
        if self.open:
            asyncio.get_running_loop().call_later(within_s, self.cancel)

    def feed(self, data: bytes) -> None:
        """Take bytes of the body.

        :raises ProtocolError: no messages of ours.
        """
        body = self._partial + data
        while len(body) >= _HEAD:
            end = _HEAD + int.from_bytes(body[1:_HEAD])
            if body[0] != 0 or end > LARGEST_MESSAGE:
                raise ProtocolError("a message is compressed, or longer than any answer")
            if end > len(body):
                break
            if not self._abandoned:
                self._messages.append(body[_HEAD:end])
            body = body[end:]
        self._partial = body
        self._wake()

    def end(self, status: Status) -> None:
        """A `read` that waits ends with the status. The first one counts."""
        if self._status is None:
            self._status = status
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class _Link(asyncio.Protocol):
    """A connection and its calls."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._h2 = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self._calls: dict[int, Call] = {}
        self._transport: asyncio.Transport | None = None
        self._room = False
        """The server takes more of what is still to be sent."""
        self._half_open: set[int] = set()
        """Streams that the server has ended before all of the message was sent."""
        self.closing = False
        """No more calls may begin."""

    def open(self, path: str, metadata: Sequence[tuple[str, str]], message: bytes) -> Call:
        """Begin a call.

        :raises CallFailed: the server takes no more.
        """
        headers = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", path),
            (":authority", self._address),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
            *metadata,
        ]
        try:
            stream = self._h2.get_next_available_stream_id()
            self._h2.send_headers(stream, headers)
        except ProtocolError as error:
            raise CallFailed(Status(Code.UNAVAILABLE, f"{self._address} takes no more calls: {error}")) from error
        call = self._calls[stream] = Call(self, stream, message)
        self._send(call)
        self._flush()
        return call

    @property
    def busy(self) -> bool:
        """Calls are open."""
        return bool(self._calls)

    def holds(self, call: Call) -> bool:
        """The call is open."""
        return call.stream in self._calls

    def leave(self, call: Call) -> None:
        """The caller has lost interest."""
        if self._calls.pop(call.stream, None) is not None and not self.closing:
            self._h2.reset_stream(call.stream, ErrorCodes.CANCEL)
            self._flush()

    def close(self, why: str) -> None:
        """End the connection and all calls."""
        self.closing = True
        calls, self._calls = self._calls, {}
        for call in calls.values():
            call.end(Status(Code.UNAVAILABLE, why))
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._h2.initiate_connection()
        self._h2.update_settings({SettingCodes.ENABLE_PUSH: 0, SettingCodes.INITIAL_WINDOW_SIZE: _WINDOW})
        self._h2.increment_flow_control_window(_WINDOW - self._h2.inbound_flow_control_window)
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self.close("the connection was lost")

    def data_received(self, data: bytes) -> None:
        transport = self._transport
        assert transport is not None
        try:
            for event in self._h2.receive_data(data):
                self._on_event(event)
            self._send_on()
        except ProtocolError as error:
            self._flush()
            self.close(f"not gRPC: {error}")
            return
        self._flush()
        if not transport.is_closing():
            transport.pause_reading()
            asyncio.get_running_loop().call_later(GATHER_S, self._read_on)

    def _read_on(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _on_event(self, event: Event) -> None:
        match event:
            case DataReceived():
                self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                if (call := self._calls.get(event.stream_id)) is not None:
                    call.feed(event.data)
            case ResponseReceived() | TrailersReceived():
                if (call := self._calls.get(event.stream_id)) is not None:
                    headers = {str(name): str(value) for name, value in event.headers or ()}
                    call.grpc_status = _status(headers) or call.grpc_status
            case StreamEnded():
                if (call := self._calls.get(event.stream_id)) is not None and call.unsent:
                    self._half_open.add(event.stream_id)
                self._end(event.stream_id, None)
            case StreamReset():
                self._half_open.discard(event.stream_id)
                code = Code.CANCELLED if event.error_code == ErrorCodes.CANCEL else Code.UNAVAILABLE
                self._end(event.stream_id, Status(code, "the server reset the stream"))
            case WindowUpdated() | RemoteSettingsChanged():
                self._room = True
            case ConnectionTerminated():
                self.closing = True
                for stream in [stream for stream in self._calls if stream > (event.last_stream_id or 0)]:
                    self._end(stream, Status(Code.UNAVAILABLE, "the server is going away"))

    def _send_on(self) -> None:
        """After all events of a piece of data: the windows may have opened beside the end of a call, or of all."""
        if self.closing:
            return
        for stream in self._half_open:
            self._h2.reset_stream(stream, ErrorCodes.NO_ERROR)
        self._half_open.clear()
        if self._room:
            for call in list(self._calls.values()):
                self._send(call)
        self._room = False

    def _send(self, call: Call) -> None:
        """Send of a call's message what the windows let through."""
        while call.unsent:
            room = min(self._h2.local_flow_control_window(call.stream), self._h2.max_outbound_frame_size)
            if room <= 0:
                return
            part, call.unsent = call.unsent[:room], call.unsent[room:]
            self._h2.send_data(call.stream, part, end_stream=not call.unsent)

    def _end(self, stream: int, status: Status | None) -> None:
        if (call := self._calls.pop(stream, None)) is not None:
            call.end(status or call.grpc_status or Status(Code.UNKNOWN, "the stream ended without a status"))

    def _flush(self) -> None:
        if (out := self._h2.data_to_send()) and self._transport is not None and not self._transport.is_closing():
            self._transport.write(out)


def _status(headers: dict[str, str]) -> Status | None:
    if (code := headers.get("grpc-status", "")).isdecimal():
        return Status(int(code), unquote(headers.get("grpc-message", "")))
    if headers.get(":status", "200") != "200":
        return Status(Code.UNKNOWN, f"HTTP status {headers[':status']}")
    return None
