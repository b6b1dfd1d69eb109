"""Running responses on this edge: one fold for each, shared by all who watch it.

A feed folds its route into public events and keeps them; an event's index is its number, so whoever watches holds
nothing but the number of the next event, and joining late is the same as joining early. Watchers are woken, never
waited for: a slow one falls behind in the list and is sent away to resume, the others notice nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from pydantic import ValidationError

from parley.errors import ParleyError, failure
from parley.ids import response_address
from parley.transcript import Transcript
from producers.edge import metrics
from producers.edge.pace import Pace
from producers.edge.projection import Projection, PublicEvent
from producers.edge.replayed import route_events
from schemas.base import JsonObject
from schemas.routes import Delta, Opened, decode_route_record
from schemas.turns import TurnEnded

log = logging.getLogger(__name__)

SLICE_BYTES = 65_536
"""What is handed to a connection at once: one that does not read holds little more than this in memory."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How far a reader may fall behind a running response before it is sent away to resume."""

    events: int
    bytes: int
    stall_s: float = 0.0
    """One that has read something within this time keeps up: a burst, or the closing events of a long text, is no fault
    of its own."""


class Watcher(Protocol):
    """Somebody who watches a feed."""

    def wake(self) -> None:
        """There are more events, or the feed has come to an end. Must return at once."""


class Feed:
    """One response: its route on one side, whoever watches on the other."""

    __slots__ = (
        "_linger_s",
        "_on_idle",
        "_watchers",
        "backlog",
        "error",
        "key",
        "pace",
        "projection",
        "recovered",
        "user",
    )

    def __init__(
        self, response: str, user: UUID, on_idle: Callable[[Feed], None] | None = None, linger_s: float = 0.0
    ) -> None:
        """`on_idle` is called once, when the feed is over or has had no watcher for `linger_s` seconds."""
        self.key = response.encode()
        self.user = user
        self.projection = Projection(response)
        self.error: ParleyError | None = None
        """Why this feed can't go on; the turn itself may."""
        self.backlog = 0
        """Events that were on the route before this feed began to read it."""
        self.recovered = False
        """The events come from the store: the route was gone."""
        self.pace: Pace | None = None
        """Of a turn that this edge has accepted."""
        self._watchers: list[Watcher] = []
        self._on_idle = on_idle
        self._linger_s = linger_s

    @property
    def events(self) -> list[PublicEvent]:
        """All public events so far."""
        return self.projection.events

    @property
    def transcript(self) -> Transcript:
        """The fold."""
        return self.projection.transcript

    @property
    def over(self) -> bool:
        """No more events will come."""
        return self.error is not None or self.projection.ended or self.redirected

    @property
    def redirected(self) -> bool:
        """The turn never runs: its key came before."""
        opened = self.transcript.opened
        return opened is not None and (opened.conflict or opened.duplicate_of is not None)

    def absorb(self, value: bytes | None, appended: int = 0) -> None:
        """Fold one record of the route, appended at `appended` (ms). What can't be read is skipped, as everywhere."""
        try:
            events = decode_route_record(value or b"")
        except ValidationError:
            metrics.UNREADABLE.inc()
            log.warning("an unreadable record on the route of %s is skipped", self.projection.id)
            return
        for event in events:
            if isinstance(event, Opened) and event.user != self.user:
                self.fail(ParleyError("not_found", "There is no such response."))
                return
            void = self.projection.apply(event)
            if void is None and self.pace is not None and isinstance(event, Delta):
                self.pace.text(appended)

    def announce(self, echo: dict[str, object]) -> None:
        """Say response.created: the prompt is in the log."""
        self.projection.announce(echo)
        self.notify()

    def fail(self, error: ParleyError) -> None:
        """End the feed, not the turn."""
        if self.error is None:
            self.error = error
            self.notify()

    def take_over(self, past: Feed) -> None:
        """Go on with what another feed of the same response has read."""
        self.projection = past.projection
        self.backlog = len(self.events)
        self.notify()

    def recover(self, projection: Projection) -> None:
        """Take a complete projection, from the store or the state log, instead of the route's; not if the feed is over.

        What has been shown stands: if the projection does not begin with it, the answer fails where it stood.
        """
        if self.over:
            return
        if projection.events[: len(self.events)] == self.events:
            self.projection = projection
        else:
            self._break_off(projection.transcript)
        self.recovered = True
        self.backlog = len(self.events)
        self.notify()

    def _break_off(self, end: Transcript) -> None:
        fold, terminal = self.transcript, end.terminal
        assert terminal is not None
        for event in (end.opened, end.fence):  # void, if the route has told them
            if event is not None:
                self.projection.apply(event)
        assert fold.fence is not None
        why = terminal.failure or failure("log_unavailable", "the rest of the answer was lost: ask again")
        broken = {"writer": fold.fence.writer, "seq": fold.seq, "kind": "failed", "failure": why, "refusal": None}
        self.projection.apply(terminal.model_copy(update=broken))

    def expire(self, end: TurnEnded, echo: JsonObject) -> None:
        """The turn ended without a word on its route: it was too old to be run."""
        for event in route_events(end, end.session, echo):
            self.projection.apply(event)
        self.notify()

    def notify(self) -> None:
        """Wake whoever watches. Called once after a batch of records."""
        for watcher in tuple(self._watchers):
            watcher.wake()
        if self.over:
            self._idle()

    def join(self, watcher: Watcher) -> None:
        """Watch."""
        self._watchers.append(watcher)

    def leave(self, watcher: Watcher, *, for_long: bool = False) -> None:
        """Watch no longer. A feed that nobody watches ends, a little later if the watcher may come back at once."""
        if watcher in self._watchers:
            self._watchers.remove(watcher)
        if self._watchers:
            return
        if for_long or self.over or not self._linger_s:
            self._idle()
        else:
            asyncio.get_running_loop().call_later(self._linger_s, self._idle_unless_watched)

    def _idle_unless_watched(self) -> None:
        if not self._watchers:
            self._idle()

    def _idle(self) -> None:
        if self._on_idle is not None:
            release, self._on_idle = self._on_idle, None
            release(self)


class Place:
    """How far somebody has read in a feed."""

    __slots__ = ("_counted", "_read_at", "_recovery_told", "_waiting_bytes", "feed", "live", "next")

    def __init__(self, feed: Feed, next_event: int) -> None:
        self.feed = feed
        self.next = next_event
        self.live = len(feed.events)
        """Events before this one were there already: having them to read makes nobody slow."""
        self._read_at = time.monotonic()
        self._counted = 0
        self._waiting_bytes = 0
        self._recovery_told = False

    @property
    def is_at_end(self) -> bool:
        """All events that there are have been taken."""
        shown = len(self.feed.events)
        return self.next == shown or (self.next > shown and not self.feed.projection.ended)

    def new(self) -> list[PublicEvent]:
        """The events since the last call, as far as they go into one slice."""
        events, end, size = self.feed.events, self.next, 0
        if self.feed.projection.ended and end > len(events):  # it was shown more than is kept: it is told the end
            end = self.next = len(events) - 1
        while end < len(events) and size < SLICE_BYTES:
            size += len(events[end].data)
            end += 1
        taken = events[self.next : end]
        self.next, self._counted, self._read_at = end, 0, time.monotonic()
        return taken

    def is_too_far_behind(self, patience: Patience) -> bool:
        """More came while the reader did not read than it may leave waiting."""
        if time.monotonic() - self._read_at < patience.stall_s:
            return False
        events, first = self.feed.events, max(self.next, self.live, self.feed.backlog)
        if len(events) - first > patience.events:
            return True
        if self._counted < first:
            self._counted, self._waiting_bytes = first, 0
        self._waiting_bytes += sum(len(event.data) for event in events[self._counted :])
        self._counted = max(self._counted, len(events))
        return self._waiting_bytes > patience.bytes

    def must_tell_recovery(self) -> bool:
        """True once: the events come from the store."""
        told, self._recovery_told = self._recovery_told, self.feed.recovered
        return self.feed.recovered and not told


class Cursor:
    """A watcher that is awaited: what an HTTP stream reads from a feed, from an event number on."""

    __slots__ = ("_closed", "_patience", "_place", "_slow", "_waiting")

    def __init__(self, feed: Feed, next_event: int, patience: Patience) -> None:
        self._place = Place(feed, next_event)
        self._patience = patience
        self._waiting: asyncio.Future[None] | None = None
        self._closed = False
        self._slow = False
        feed.join(self)

    @property
    def feed(self) -> Feed:
        """What is being read."""
        return self._place.feed

    @property
    def next(self) -> int:
        """The number of the event that is taken next."""
        return self._place.next

    @property
    def closed(self) -> bool:
        """Nobody reads any more."""
        return self._closed

    @property
    def complete(self) -> bool:
        """The response's last event has been taken."""
        return self.feed.projection.ended and self._place.is_at_end

    def must_tell_recovery(self) -> bool:
        """True once: the events come from the store."""
        return self._place.must_tell_recovery()

    def move(self, feed: Feed) -> None:
        """Read another feed instead, from its first event."""
        old = self.feed
        self._place = Place(feed, 0)
        feed.join(self)
        old.leave(self)

    def wake(self) -> None:
        """Called by the feed."""
        if self._waiting is not None:
            if self._ready():  # a record may have said nothing to the public
                self._settle()
        elif self._place.is_too_far_behind(self._patience):
            self._slow = True
            self.close()

    def close(self) -> None:
        """Stop: `take` returns what there is, then None."""
        self._closed = True
        self.feed.leave(self, for_long=self._slow)
        self._settle()

    async def ready(self, timeout: float) -> bool:
        """Wait until there is something to take. False: there was nothing for `timeout` seconds."""
        if not self._ready():
            loop = asyncio.get_running_loop()
            self._waiting = loop.create_future()
            timer = loop.call_later(timeout, self._settle)
            try:
                await self._waiting
            finally:
                timer.cancel()
                self._waiting = None
        return self._ready()

    async def take(self, timeout: float) -> list[PublicEvent] | None:
        """The events since the last call, as many as go into a slice: at once if there are any, else when some come.

        Empty when none came within `timeout` seconds, None after the last.

        Raises:
            ParleyError: the feed can't go on; slow_reader: this reader fell too far behind. Both may resume.
        """
        await self.ready(timeout)
        if self._slow:
            raise ParleyError("slow_reader", "Events were not read fast enough; resume from the last one read.")
        if events := self._place.new():
            return events
        if self.feed.error is not None:
            raise self.feed.error
        return None if self._closed or self.feed.over else []

    def _settle(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def _ready(self) -> bool:
        return self._closed or self.feed.over or not self._place.is_at_end


class Feeds:
    """The feeds of this edge, by response."""

    def __init__(self, linger_s: float = 0.0) -> None:
        """`linger_s`: how long a running response is read on after its last watcher has left."""
        self._linger_s = linger_s
        self._by_key: dict[bytes, Feed] = {}
        self._stops: dict[bytes, Callable[[], None]] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def get(self, response: str) -> Feed | None:
        """The running feed of a response, if this edge has one."""
        return self._by_key.get(response.encode())

    def by_key(self, key: bytes) -> Feed | None:
        """The same by the route's key: how a record of a lane finds its feed.

        Not a feed whose route is read for it alone: two readers are seldom at the same place, and a fence that one
        brings early would void what the other has yet to bring.
        """
        return None if key in self._stops else self._by_key.get(key)

    def open(self, response: str, user: UUID) -> Feed:
        """A new feed, alive until it is over or nobody watches it."""
        feed = Feed(response, user, self._release, self._linger_s)
        self._by_key[feed.key] = feed
        return feed

    def on_release(self, feed: Feed, stop: Callable[[], None]) -> None:
        """Call `stop` when the feed ends: whatever reads its route for it alone."""
        self._stops[feed.key] = stop

    def of_partition(self, lane: int) -> list[Feed]:
        """The feeds whose route is a lane."""
        return [feed for feed in self._by_key.values() if response_address(feed.projection.id).lane == lane]

    def _release(self, feed: Feed) -> None:
        del self._by_key[feed.key]
        if (stop := self._stops.pop(feed.key, None)) is not None:
            stop()
