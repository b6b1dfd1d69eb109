"""The bytes side of a WebSocket: uvicorn's sans-I/O protocol, with writes that need no task and no await.

All frames of a batch go out in one write, from whoever has them; backpressure shows as `writable`, and the listener is
told when it ends. A peer that answers no ping is dropped, not waited for: what is buffered for it would keep the
connection for as long as the kernel tries.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

EXTENSION = "parley.wire"
"""The ASGI extension under which an application finds its wire."""
FAREWELL_S = 5.0
"""How long a close frame may take to reach a peer that reads slowly."""


class Listener(Protocol):
    """The application's side of a wire."""

    def wake(self) -> None:
        """The peer reads again: there is room for more."""


class Wire(WebSocketsSansIOProtocol):
    """One WebSocket connection."""

    listener: Listener | None = None

    @property
    def open(self) -> bool:
        """Frames can still be sent."""
        return not (self.close_sent or self.disconnected or self.transport.is_closing())

    @property
    def has_room(self) -> bool:
        """The peer keeps up: less than the transport's high-water mark waits to be sent."""
        return self.writable.is_set()

    def send_texts(self, frames: Iterable[bytes]) -> None:
        """Send each as a text frame, all in one write."""
        if self.open:
            for frame in frames:
                self.conn.send_text(frame)
            self.transport.write(b"".join(self.conn.data_to_send()))

    def hang_up(self, code: int, reason: str) -> None:
        """Close, politely for a few seconds, then for certain."""
        if self.open:
            self.stop_keepalive()
            self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
            self.conn.send_close(code, reason)
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.close_sent = True
            if self.read_paused:
                self.read_paused = False
                self.transport.resume_reading()
            self.close_timer = self.loop.call_later(FAREWELL_S, self.transport.abort)

    def resume_writing(self) -> None:
        """Called by the transport."""
        super().resume_writing()
        if self.listener is not None:
            self.listener.wake()

    def keepalive_timeout(self) -> None:
        """Called when a ping has had no answer."""
        super().keepalive_timeout()
        self.transport.abort()

    async def run_asgi(self) -> None:
        """Called once the handshake has been read."""
        self.scope["extensions"] = {**(self.scope["extensions"] or {}), EXTENSION: self}  # type: ignore[dict-item]
        await super().run_asgi()
