"""The client's HTTP/2 against the frames of RFC 9113, fed by hand: no socket, no server."""

import pytest
from hpack import Decoder, Encoder

from inference_workers.engine.http2 import (
    DEFAULT_WINDOW,
    PREFACE,
    Code,
    Connection,
    Flag,
    Frame,
    ProtocolError,
    Setting,
    Status,
    Stream,
)

PATH = "/inference.GRPCInferenceService/ModelStreamInfer"


def frame(kind: Frame, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3) + bytes((kind, flags)) + stream_id.to_bytes(4) + payload


def message(payload: bytes) -> bytes:
    return b"\0" + len(payload).to_bytes(4) + payload


def frames(sent: bytes) -> list[tuple[int, int, int, bytes]]:
    sent, found = sent.removeprefix(PREFACE), []
    while sent:
        end = 9 + int.from_bytes(sent[:3])
        found.append((sent[3], sent[4], int.from_bytes(sent[5:9]), sent[9:end]))
        sent = sent[end:]
    return found


class Peer:
    """The other end: what it encodes has its own state of compression."""

    def __init__(self) -> None:
        self.encoder = Encoder()
        self.connection = Connection("127.0.0.1:8001")
        self.news = 0

    def open(self, payload: bytes = b"hi") -> Stream:
        return self.connection.open(PATH, [("triton_grpc_error", "true")], message=payload, changed=self.changed)

    def changed(self) -> None:
        self.news += 1

    def head(self, stream: Stream) -> bytes:
        return frame(Frame.HEADERS, Flag.END_HEADERS, stream.id, self.encoder.encode([(":status", "200")]))

    def trailers(self, stream: Stream, status: int, text: str = "") -> bytes:
        block = self.encoder.encode([("grpc-status", str(status)), ("grpc-message", text)])
        return frame(Frame.HEADERS, Flag.END_HEADERS | Flag.END_STREAM, stream.id, block)


@pytest.fixture
def peer() -> Peer:
    return Peer()


def test_a_connection_begins_with_the_preface_and_opens_its_windows(peer: Peer) -> None:
    sent = peer.connection.take()
    assert sent.startswith(PREFACE)
    assert [kind for kind, *_ in frames(sent)] == [Frame.SETTINGS, Frame.WINDOW_UPDATE]
    assert peer.connection.take() == b""


def test_a_call_sends_its_headers_and_its_one_message(peer: Peer) -> None:
    peer.connection.take()
    peer.open(b"hello")
    headers, data = frames(peer.connection.take())
    decoded = {str(name): str(value) for name, value in Decoder().decode(headers[3])}
    assert decoded[":path"] == PATH
    assert decoded["content-type"] == "application/grpc"
    assert decoded["te"] == "trailers"
    assert decoded["triton_grpc_error"] == "true"
    assert data == (Frame.DATA, Flag.END_STREAM, 1, message(b"hello"))


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_messages_arrive_however_the_bytes_are_cut(peer: Peer, size: int) -> None:
    stream = peer.open()
    body = message(b"one") + message(b"") + message(b"three" * 100)
    wire = peer.head(stream)
    wire += b"".join(frame(Frame.DATA, 0, stream.id, body[at : at + 50]) for at in range(0, len(body), 50))
    wire += peer.trailers(stream, 0)
    for at in range(0, len(wire), size):
        peer.connection.receive(wire[at : at + size])
    assert list(stream.messages) == [b"one", b"", b"three" * 100]
    assert stream.status == Status(Code.OK)


def test_a_failure_has_its_code_and_its_text(peer: Peer) -> None:
    stream = peer.open()
    peer.connection.receive(peer.trailers(stream, 3, "too long%3A 9 %25"))
    assert stream.status == Status(Code.INVALID_ARGUMENT, "too long: 9 %")
    assert peer.news == 1


def test_headers_may_come_in_several_frames_and_padded(peer: Peer) -> None:
    stream = peer.open()
    block = peer.encoder.encode([("grpc-status", "0")])
    padded = bytes((3,)) + block[:2] + b"\0\0\0"
    peer.connection.receive(frame(Frame.HEADERS, Flag.END_STREAM | Flag.PADDED, stream.id, padded))
    assert stream.status is None
    peer.connection.receive(frame(Frame.CONTINUATION, Flag.END_HEADERS, stream.id, block[2:]))
    assert stream.status == Status(Code.OK)


def test_a_long_message_waits_for_the_peers_windows(peer: Peer) -> None:
    peer.connection.take()
    prompt = b"x" * (3 * DEFAULT_WINDOW)
    stream = peer.open(prompt)
    sent = frames(peer.connection.take())[1:]
    assert sum(len(payload) for *_, payload in sent) == DEFAULT_WINDOW
    more = (2 * DEFAULT_WINDOW + 5).to_bytes(4)
    peer.connection.receive(frame(Frame.WINDOW_UPDATE, 0, 0, more))
    assert peer.connection.take() == b""
    peer.connection.receive(frame(Frame.WINDOW_UPDATE, 0, stream.id, more))
    sent += frames(peer.connection.take())
    assert b"".join(payload for *_, payload in sent) == message(prompt)
    assert [flags for _, flags, *_ in sent] == [0] * (len(sent) - 1) + [Flag.END_STREAM]
    assert max(len(payload) for *_, payload in sent) <= 16_384


def test_the_peers_settings_are_acknowledged_and_change_open_streams(peer: Peer) -> None:
    prompt = b"x" * DEFAULT_WINDOW
    peer.open(prompt)
    peer.connection.take()
    window = Setting.INITIAL_WINDOW_SIZE.to_bytes(2) + (2 * DEFAULT_WINDOW).to_bytes(4)
    peer.connection.receive(frame(Frame.SETTINGS, 0, 0, window) + frame(Frame.WINDOW_UPDATE, 0, 0, b"\0\0\0\5"))
    sent = frames(peer.connection.take())
    assert sent[0][:2] == (Frame.SETTINGS, Flag.ACK)
    assert len(sent[1][3]) == 5


def test_a_ping_is_answered_with_its_own_bytes(peer: Peer) -> None:
    peer.connection.take()
    peer.connection.receive(frame(Frame.PING, 0, 0, b"12345678"))
    assert frames(peer.connection.take()) == [(Frame.PING, Flag.ACK, 0, b"12345678")]


def test_a_cancelled_stream_is_reset_once_and_forgotten(peer: Peer) -> None:
    stream, other = peer.open(), peer.open()
    peer.connection.take()
    peer.connection.cancel(stream)
    peer.connection.cancel(stream)
    assert frames(peer.connection.take()) == [(Frame.RST_STREAM, 0, stream.id, b"\0\0\0\x08")]
    late = peer.head(stream) + frame(Frame.DATA, 0, stream.id, message(b"late")) + peer.trailers(stream, 0)
    peer.connection.receive(late + peer.head(other) + frame(Frame.DATA, 0, other.id, message(b"on")))
    assert not stream.messages
    assert list(other.messages) == [b"on"]


def test_an_ended_stream_is_not_reset(peer: Peer) -> None:
    stream = peer.open()
    peer.connection.take()
    peer.connection.receive(peer.trailers(stream, 0))
    peer.connection.cancel(stream)
    assert peer.connection.take() == b""


def test_a_reset_is_a_failure(peer: Peer) -> None:
    stream = peer.open()
    peer.connection.receive(frame(Frame.RST_STREAM, 0, stream.id, b"\0\0\0\2"))
    assert stream.status is not None
    assert stream.status.code == Code.UNAVAILABLE


def test_a_server_that_goes_away_ends_what_it_will_not_serve(peer: Peer) -> None:
    served, refused = peer.open(), peer.open()
    peer.connection.receive(frame(Frame.GOAWAY, 0, 0, served.id.to_bytes(4) + bytes(4)))
    assert served.status is None
    assert refused.status is not None
    assert peer.connection.closing


def test_a_lost_connection_ends_every_stream(peer: Peer) -> None:
    streams = [peer.open() for _ in range(3)]
    peer.connection.lost("gone")
    assert [stream.status for stream in streams] == [Status(Code.UNAVAILABLE, "gone")] * 3
    assert peer.connection.closing


@pytest.mark.parametrize("body", [b"\1\0\0\0\1x", b"\0\xff\xff\xff\xff"])
def test_a_message_that_no_answer_has_is_an_error(peer: Peer, body: bytes) -> None:
    stream = peer.open()
    with pytest.raises(ProtocolError):
        peer.connection.receive(frame(Frame.DATA, 0, stream.id, body))


def test_a_body_that_ends_without_a_status_is_a_failure(peer: Peer) -> None:
    stream = peer.open()
    peer.connection.receive(frame(Frame.DATA, Flag.END_STREAM, stream.id, message(b"x")))
    assert stream.status is not None
    assert stream.status.code == Code.UNKNOWN
