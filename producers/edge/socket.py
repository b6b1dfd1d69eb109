"""/v1/responses over WebSocket: one response in flight a socket, events as text frames, everything else our own rules.

An idle socket is one object and the connection beneath it: no task of ours, no queue. While a response runs, its feed
wakes the socket, which writes all new events in one go; a peer that does not read leaves them in the feed until it
reads again or is too far behind and is sent to resume.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Iterable

import orjson
from starlette.types import Message, Receive, Scope, Send

from parley.errors import ParleyError
from producers.edge import metrics
from producers.edge.acceptance import Author, check_key, own_response, own_session
from producers.edge.feeds import Feed, Place
from producers.edge.following import Following
from producers.edge.handshake import admit, refuse
from producers.edge.problems import parse, parse_json, socket_error
from producers.edge.resource import Json
from producers.edge.service import Edge
from producers.edge.wire import EXTENSION, Wire
from schemas.api import CreateResponse, unsupported
from schemas.routes import Opened

log = logging.getLogger(__name__)

RATE_WINDOW_S = 10.0
"""The rate of messages is averaged over this."""
CLOSE_AND_RESUME = 1013
"""The close code where a feed can't go on: clients reconnect, elsewhere if need be."""
CLOSE_INTERNAL = 1011
"""The close code of a defect."""
CLOSE_POLICY = 1008
"""The close code for who must not go on like this."""
CLOSE_RESTART = 1012
"""The close code of a server that ends."""
SHOWN = 64
"""Responses that a socket remembers having shown."""
HTTP_ONLY = ("stream", "stream_options", "background")
"""Fields that the specification forbids in a WebSocket's response.create."""

_SOCKETS = metrics.STREAMS.labels("websocket")
_EVENTS = metrics.EVENTS.labels("websocket")
_SLOW = metrics.SLOW_READERS.labels("websocket")


async def serve(edge: Edge, scope: Scope, receive: Receive, send: Send) -> None:
    """One WebSocket, from its handshake to its end."""
    await receive()  # websocket.connect
    try:
        author, ours = await admit(edge, scope)
    except ParleyError as error:
        if error.kind.http >= 500:
            log.warning("a WebSocket's handshake: %s: %s", error.kind.code, error.message)
        await refuse(send, error)
        return
    await send({"type": "websocket.accept", "subprotocol": ours})
    wire: Wire = scope["extensions"][EXTENSION]
    socket = Socket(edge, author, wire, extended=ours is not None)
    del scope, send
    wire.listener = socket
    _SOCKETS.inc()
    edge.sockets.add(socket)
    try:
        while not socket.flooding and (message := await receive())["type"] != "websocket.disconnect":
            await socket.hear(message)
    except Exception:
        wire.hang_up(CLOSE_INTERNAL, "internal")
        raise  # into the log
    finally:
        _SOCKETS.dec()
        edge.sockets.discard(socket)
        wire.listener = None
        socket.leave()


class Socket:
    """The state of one connection."""

    __slots__ = (
        "_accepting",
        "_allowance",
        "_author",
        "_checked_at",
        "_checking_key",
        "_edge",
        "_expired",
        "_extended",
        "_following",
        "_place",
        "_shown",
        "_timer",
        "_wire",
        "flooding",
    )

    def __init__(self, edge: Edge, author: Author, wire: Wire, *, extended: bool) -> None:
        loop = asyncio.get_running_loop()
        self._edge = edge
        self._author = author
        self._wire = wire
        self._extended = extended
        self._place: Place | None = None
        self._following: Following | None = None
        self._checking_key: asyncio.Task[None] | None = None
        self._accepting = False
        self._shown: deque[str] = deque(maxlen=SHOWN)
        self._allowance = edge.settings.edge.messages_per_second * RATE_WINDOW_S
        self._checked_at = loop.time()
        self._expired = False
        self.flooding = False
        """Too many messages came: the rest of them is not even looked at."""
        self._timer = loop.call_later(edge.settings.edge.socket_lifetime_s, self._expire)

    async def hear(self, message: Message) -> None:
        """Act on one message. What is wrong with it is answered; the socket lives."""
        if not self._may_speak():
            self.flooding = True
            self._say_error(ParleyError("rate_limit_exceeded", "Too many messages on this socket; slow down."))
            self._wire.hang_up(CLOSE_POLICY, "rate_limit_exceeded")
            return
        try:
            text = message.get("text")
            if text is None:
                raise ParleyError("unsupported", "Messages must be text frames with JSON.")
            body = parse_json(text)
            del message, text
            if body.get("type") != "parley:ping" and self._checking_key is None:
                self._checking_key = asyncio.create_task(self._leave_if_revoked())
            await self._act(body)
        except ParleyError as error:
            if error.kind.http >= 500:
                log.warning("a message on a WebSocket: %s: %s", error.kind.code, error.message)
            self._say_error(error)

    def wake(self) -> None:
        """Called by the feed when it has more, and by the wire when the peer reads again."""
        place = self._place
        if place is None:
            return
        if self._wire.has_room:
            if events := place.new():
                _EVENTS.inc(len(events))
                if self._extended and place.must_tell_recovery():
                    self._say([_message("parley:recovered", response_id=place.feed.projection.id)])
                self._say(event.data for event in events)
            if not place.is_at_end:  # the rest when others have had their turn, and the peer has read this
                asyncio.get_running_loop().call_soon(self.wake)
            elif place.feed.over:
                self._finish(place.feed)
        elif place.is_too_far_behind(self._edge.patience):
            _SLOW.inc()
            self._unwatch(for_long=True)
            self._wire.hang_up(CLOSE_AND_RESUME, "slow_reader")

    def leave(self) -> None:
        """The connection is gone; the turn goes on."""
        self._timer.cancel()
        self._unwatch()
        self._unfollow()

    def send_elsewhere(self, within_s: float) -> None:
        """The edge ends: close, and say when to come back, each socket at another moment."""
        wait_ms = int(random.uniform(0, 1 if self._place is not None else within_s) * 1000)
        self._wire.hang_up(CLOSE_RESTART, f"shutting_down retry_after_ms={wait_ms}")

    async def _leave_if_revoked(self) -> None:
        """Close the socket when its key was revoked since the handshake.

        Asked beside each message, not before it: chats go on without PostgreSQL, and nothing waits for its word.
        """
        try:
            if self._author.key is not None:
                await self._edge.author(self._author.key)
        except ParleyError as error:
            if error.kind.code == "invalid_api_key":
                self._wire.hang_up(CLOSE_POLICY, error.kind.code)
        finally:
            self._checking_key = None

    async def _act(self, body: Json) -> None:
        match body.get("type"):
            case "response.create":
                await self._create(body)
            case "parley:ping" if self._extended:
                self._say([_message("parley:pong")])
            case "parley:resume" if self._extended:
                self._resume(body)
            case "parley:follow" if self._extended:
                await self._follow(body)
            case "parley:cancel" if self._extended:
                await self._cancel(body)
            case str(name):
                raise ParleyError("unsupported", f"Messages of type {name[:64]!r} are not supported here.")
            case _:
                raise ParleyError("invalid_request", "A message needs a type: response.create.", param="type")

    async def _create(self, body: Json) -> None:
        if given := next((name for name in HTTP_ONLY if name in body), None):
            raise unsupported(given, "it belongs to HTTP; over WebSocket a response is always streamed")
        try:
            self._require_idle()
            if self._edge.draining:
                raise ParleyError("shutting_down", "This server is shutting down; connect again.")
            asked = parse(CreateResponse, {name: value for name, value in body.items() if name != "type"})
            self._accepting = True
            key = check_key(asked.idempotency_key) if asked.idempotency_key is not None else None
            feed = await self._edge.turns.accept(asked, self._author, key, body)
        except ParleyError as error:
            metrics.PROMPTS.labels(error.kind.code).inc()
            self._accepting = False
            if self._expired:
                self._expire()
            self._show_next()
            raise
        self._accepting = False
        metrics.PROMPTS.labels("accepted").inc()
        self._watch(feed, 0)

    def _resume(self, body: Json) -> None:
        self._require_idle()
        after = body.get("starting_after", -1)
        if not isinstance(after, int) or isinstance(after, bool) or after < -1:
            raise ParleyError("invalid_request", "starting_after must be a sequence number.", param="starting_after")
        self._watch(self._edge.turns.watch(self._author, _named(body)), after + 1)

    async def _cancel(self, body: Json) -> None:
        response = _named(body)
        address = own_response(self._edge.settings.keys, self._author, response, "response_id")
        await self._edge.turns.request_cancel(self._author, response, address.session)

    async def _follow(self, body: Json) -> None:
        """Show the turns of a conversation from now on; null: of none any more."""
        named = body.get("conversation")
        if named is not None and not isinstance(named, str):
            raise ParleyError("invalid_request", "conversation must name a conversation.", param="conversation")
        session = own_session(self._edge.settings.keys, self._author, named, "conversation") if named else None
        self._unfollow()
        if named is not None and session is not None:
            self._following = Following(named, session, self._author.user, self._show_next, self._deleted)
            running = await self._edge.live.follow(session, self._following)
            self._say([_message("parley:following", conversation=named)])
            for turn in running:
                self._following.began(turn)
        else:
            self._say([_message("parley:following", conversation=None)])

    def _unfollow(self) -> None:
        following, self._following = self._following, None
        if following is not None:
            self._edge.live.unfollow(following.session, following)

    def _deleted(self) -> None:
        if self._following is not None:
            self._say([_message("parley:deleted", conversation=self._following.conversation)])

    def _show_next(self) -> None:
        """Show the next turn of what is followed, if nothing is shown now."""
        following = self._following
        while following is not None and self._place is None and not self._accepting:
            if following.overrun:
                self._wire.hang_up(CLOSE_AND_RESUME, "slow_reader")
                return
            turn = following.next()
            if turn is None:
                return
            if turn.response not in self._shown:
                try:
                    feed = self._edge.turns.watch(self._author, turn.response)
                except ParleyError:  # its id was made with keys that have been given up
                    continue
                self._say([following.announcement(turn)])
                self._watch(feed, 0)

    def _watch(self, feed: Feed, next_event: int) -> None:
        self._shown.append(feed.projection.id)
        self._place = Place(feed, next_event)
        feed.join(self)
        self.wake()

    def _unwatch(self, *, for_long: bool = False) -> None:
        place, self._place = self._place, None
        if place is not None:
            place.feed.leave(self, for_long=for_long)

    def _finish(self, feed: Feed) -> None:
        self._unwatch()
        opened = feed.transcript.opened
        if feed.error is not None:
            self._give_up(feed, feed.error)
        elif feed.redirected and opened is not None:
            self._answer_again(opened)
        if self._expired:
            self._expire()
        self._show_next()

    def _answer_again(self, opened: Opened) -> None:
        """A key that came before: go on with the response that it made then."""
        try:
            self._watch(self._edge.turns.answering(self._author, opened), 0)
        except ParleyError as error:
            self._say_error(error)

    def _give_up(self, feed: Feed, error: ParleyError) -> None:
        """Within an accepted turn an error event would look like its end: close, and the client resumes."""
        if feed.events:
            self._wire.hang_up(error.kind.close or CLOSE_AND_RESUME, error.kind.code)
        else:
            self._say_error(error)

    def _expire(self) -> None:
        """The socket is old: it is closed between turns; a running turn goes on to its end."""
        self._expired = True
        if self._place is None and not self._accepting:
            self._say_error(
                ParleyError(
                    "websocket_connection_limit_reached", "This socket has reached its lifetime; connect again."
                )
            )
            self._wire.hang_up(1000, "websocket_connection_limit_reached")

    def _require_idle(self) -> None:
        if self._place is not None:
            raise ParleyError(
                "response_in_progress", "A response is in progress on this socket; wait for its end, or open another."
            )

    def _may_speak(self) -> bool:
        """A bucket of messages that refills at the allowed rate."""
        now, rate = asyncio.get_running_loop().time(), self._edge.settings.edge.messages_per_second
        full = rate * RATE_WINDOW_S
        self._allowance = min(full, self._allowance + (now - self._checked_at) * rate) - 1
        self._checked_at = now
        return self._allowance >= 0

    def _say(self, frames: Iterable[bytes]) -> None:
        self._wire.send_texts(frames)

    def _say_error(self, error: ParleyError) -> None:
        self._say([socket_error(error)])


def _message(type_: str, **fields: str | None) -> bytes:
    """One of our own messages."""
    return orjson.dumps({"type": type_, **fields})


def _named(body: Json) -> str:
    response = body.get("response_id")
    if not isinstance(response, str):
        raise ParleyError("invalid_request", "response_id must name a response.", param="response_id")
    return response
