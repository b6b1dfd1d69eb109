"""As much of HTTP/2 (RFC 9113) as a gRPC client of long streams needs. Sans-I/O: bytes in, bytes out.

Why not grpcio: its asyncio side wakes a thread and then the event loop for every message, about twice the CPU of
what is here (figures in infra/triton/README.md), and a worker reads thousands of messages a second.

A `Connection` multiplexes `Stream`s. Each stream sends one message and receives many. States of a stream: open,
then ended with a `Status` (of the server, or made here when the stream is reset or the connection is lost); a
cancelled stream is forgotten at once, and what still arrives for it is dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import Final
from urllib.parse import unquote

from hpack import Decoder, Encoder, HPACKError

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
MAX_WINDOW: Final = (1 << 31) - 1
DEFAULT_WINDOW: Final = 65_535
REPLENISH: Final = 1 << 30
"""Bytes received after which the connection's window is opened again; a stream never needs to be."""
LARGEST_MESSAGE: Final = 16 << 20
_FRAME_HEAD: Final = 9
_MESSAGE_HEAD: Final = 5
_CANCEL: Final = 8


class Frame(IntEnum):
    """Types of frames, RFC 9113 section 6."""

    DATA = 0
    HEADERS = 1
    RST_STREAM = 3
    SETTINGS = 4
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


class Flag(IntFlag):
    """Flags of frames; ACK is that of SETTINGS and PING."""

    NONE = 0
    ACK = 0x1
    END_STREAM = 0x1
    END_HEADERS = 0x4
    PADDED = 0x8
    PRIORITY = 0x20


class Setting(IntEnum):
    """Settings, RFC 9113 section 6.5.2."""

    ENABLE_PUSH = 2
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5


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


class ProtocolError(Exception):
    """The peer does not speak HTTP/2, or not as it must; the connection is of no more use."""


class Stream:
    """One call: its unread messages, and its end."""

    __slots__ = ("_body", "_changed", "id", "messages", "send_window", "status", "unsent")

    def __init__(self, stream_id: int, unsent: bytes, send_window: int, changed: Callable[[], None]) -> None:
        self.id = stream_id
        self.messages: deque[bytes] = deque()
        self.status: Status | None = None
        self.unsent = unsent
        self.send_window = send_window
        self._body = b""
        self._changed = changed

    def feed(self, data: bytes) -> None:
        """Take bytes of the body: messages, each after a flag and its length in four bytes."""
        body = self._body + data if self._body else data
        at = 0
        while len(body) - at >= _MESSAGE_HEAD:
            length = int.from_bytes(body[at + 1 : at + _MESSAGE_HEAD])
            if body[at] != 0 or length > LARGEST_MESSAGE:
                raise ProtocolError("a message is compressed, or longer than any answer")
            end = at + _MESSAGE_HEAD + length
            if end > len(body):
                break
            self.messages.append(body[at + _MESSAGE_HEAD : end])
            at = end
        self._body = body[at:]
        if at:
            self._changed()

    def end(self, status: Status) -> None:
        """The first status counts."""
        if self.status is None:
            self.status = status
            self._changed()


class Connection:
    """One connection's frames. `take` what it wants to send after every other call.

    :raises ProtocolError: from `receive`, when nothing more can be understood.
    """

    def __init__(self, authority: str) -> None:
        self._authority = authority
        self._encoder = Encoder()
        self._decoder = Decoder()
        self._streams: dict[int, Stream] = {}
        self._next_id = 1
        self._partial = b""
        self._headers: tuple[int, int, bytes] | None = None
        self._received = 0
        self._send_window = DEFAULT_WINDOW
        self._initial_window = DEFAULT_WINDOW
        self._max_frame = 16_384
        self.closing = False
        """The peer takes no more calls, or the connection has ended."""
        settings = _setting(Setting.ENABLE_PUSH, 0) + _setting(Setting.INITIAL_WINDOW_SIZE, MAX_WINDOW)
        self._out = [PREFACE, _frame(Frame.SETTINGS, Flag.NONE, 0, settings), _window(0, MAX_WINDOW - DEFAULT_WINDOW)]

    def take(self) -> bytes:
        """What is to be sent now."""
        out = b"".join(self._out)
        self._out.clear()
        return out

    def open(
        self, path: str, metadata: Sequence[tuple[str, str]], message: bytes, changed: Callable[[], None]
    ) -> Stream:
        """Begin a call with its one message; ``changed`` is called when the stream has news."""
        headers = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", path),
            (":authority", self._authority),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
            *metadata,
        ]
        body = b"\0" + len(message).to_bytes(4) + message
        stream = Stream(self._next_id, body, self._initial_window, changed)
        self._next_id += 2
        self._streams[stream.id] = stream
        self._out.append(_frame(Frame.HEADERS, Flag.END_HEADERS, stream.id, self._encoder.encode(headers)))
        self._send(stream)
        return stream

    def cancel(self, stream: Stream) -> None:
        """Forget a stream; the peer is told when it has not ended."""
        if self._streams.pop(stream.id, None) is not None:
            self._out.append(_frame(Frame.RST_STREAM, Flag.NONE, stream.id, _CANCEL.to_bytes(4)))

    def lost(self, why: str) -> None:
        """The connection has ended: so have its streams."""
        self.closing = True
        for stream in list(self._streams.values()):
            self._end(stream, Status(Code.UNAVAILABLE, why))

    def receive(self, data: bytes) -> None:
        """Take bytes from the peer."""
        buffer = self._partial + data if self._partial else data
        at, size = 0, len(buffer)
        while size - at >= _FRAME_HEAD:
            end = at + _FRAME_HEAD + int.from_bytes(buffer[at : at + 3])
            if end > size:
                break
            stream_id = int.from_bytes(buffer[at + 5 : at + 9]) & MAX_WINDOW
            self._frame(buffer[at + 3], buffer[at + 4], stream_id, buffer[at + _FRAME_HEAD : end])
            at = end
        self._partial = buffer[at:]

    def _frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if kind == Frame.DATA:
            self._data(flags, stream_id, payload)
        elif kind == Frame.HEADERS:
            block = _unpadded(flags, payload)
            block = block[5:] if flags & Flag.PRIORITY else block
            self._header_block(stream_id, flags, flags, block)
        elif kind == Frame.CONTINUATION and self._headers is not None:
            of_stream, first_flags, block = self._headers
            self._header_block(of_stream, first_flags, flags, block + payload)
        elif kind == Frame.SETTINGS and not flags & Flag.ACK:
            self._settings(payload)
        elif kind == Frame.PING and not flags & Flag.ACK:
            self._out.append(_frame(Frame.PING, Flag.ACK, 0, payload))
        elif kind == Frame.WINDOW_UPDATE:
            self._window_update(stream_id, int.from_bytes(payload[:4]) & MAX_WINDOW)
        elif kind == Frame.RST_STREAM and (stream := self._streams.get(stream_id)):
            code = Code.CANCELLED if int.from_bytes(payload[:4]) == _CANCEL else Code.UNAVAILABLE
            self._end(stream, Status(code, "the server reset the stream"))
        elif kind == Frame.GOAWAY:
            self._go_away(int.from_bytes(payload[:4]) & MAX_WINDOW)

    def _data(self, flags: int, stream_id: int, payload: bytes) -> None:
        self._received += len(payload)
        if self._received > REPLENISH:
            self._out.append(_window(0, self._received))
            self._received = 0
        if stream := self._streams.get(stream_id):
            stream.feed(_unpadded(flags, payload))
            if flags & Flag.END_STREAM:
                self._end(stream, Status(Code.UNKNOWN, "the stream ended without a status"))

    def _header_block(self, stream_id: int, first_flags: int, flags: int, block: bytes) -> None:
        """Headers are decoded even for a forgotten stream: the compression's state is the connection's."""
        if not flags & Flag.END_HEADERS:
            self._headers = (stream_id, first_flags, block)
            return
        self._headers = None
        try:
            headers = {str(name): str(value) for name, value in self._decoder.decode(block)}
        except HPACKError as error:
            raise ProtocolError("headers can't be decompressed") from error
        if (stream := self._streams.get(stream_id)) and first_flags & Flag.END_STREAM:
            self._end(stream, _status(headers))

    def _settings(self, payload: bytes) -> None:
        for at in range(0, len(payload) - 5, 6):
            name, value = int.from_bytes(payload[at : at + 2]), int.from_bytes(payload[at + 2 : at + 6])
            if name == Setting.INITIAL_WINDOW_SIZE:
                for stream in self._streams.values():
                    stream.send_window += value - self._initial_window
                self._initial_window = value
            elif name == Setting.MAX_FRAME_SIZE:
                self._max_frame = value
        self._out.append(_frame(Frame.SETTINGS, Flag.ACK, 0, b""))
        self._send_waiting()

    def _window_update(self, stream_id: int, more: int) -> None:
        if stream_id == 0:
            self._send_window += more
        elif stream := self._streams.get(stream_id):
            stream.send_window += more
        self._send_waiting()

    def _go_away(self, last_id: int) -> None:
        self.closing = True
        for stream in [x for x in self._streams.values() if x.id > last_id]:
            self._end(stream, Status(Code.UNAVAILABLE, "the server is going away"))

    def _send_waiting(self) -> None:
        for stream in self._streams.values():
            if stream.unsent:
                self._send(stream)

    def _send(self, stream: Stream) -> None:
        """Send of a stream's message what both windows let through."""
        while stream.unsent and (room := min(self._send_window, stream.send_window, self._max_frame)) > 0:
            part, stream.unsent = stream.unsent[:room], stream.unsent[room:]
            self._send_window -= len(part)
            stream.send_window -= len(part)
            self._out.append(_frame(Frame.DATA, Flag.NONE if stream.unsent else Flag.END_STREAM, stream.id, part))

    def _end(self, stream: Stream, status: Status) -> None:
        del self._streams[stream.id]
        stream.end(status)


def _frame(kind: Frame, flags: Flag, stream_id: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3) + bytes((kind, flags)) + stream_id.to_bytes(4) + payload


def _setting(name: Setting, value: int) -> bytes:
    return name.to_bytes(2) + value.to_bytes(4)


def _window(stream_id: int, more: int) -> bytes:
    return _frame(Frame.WINDOW_UPDATE, Flag.NONE, stream_id, more.to_bytes(4))


def _unpadded(flags: int, payload: bytes) -> bytes:
    return payload[1 : len(payload) - payload[0]] if flags & Flag.PADDED else payload


def _status(headers: dict[str, str]) -> Status:
    code = headers.get("grpc-status", "")
    if not code.isdecimal():
        return Status(Code.UNKNOWN, f"no gRPC status; HTTP status {headers.get(':status', 'missing')}")
    return Status(int(code), unquote(headers.get("grpc-message", "")))
