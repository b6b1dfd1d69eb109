"""Reading a response's events into its feed: from its route, or from the store where the route is gone.

A response is found by its id alone: the id holds session, route and start offset. The route is folded from there, and
only where the log no longer holds all of it the store answers (protocol.md, section 6). What an ended turn of a deleted
session had said is in the log until its retention takes it, but is not shown any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine
from typing import Any
from uuid import UUID

from parley.clock import now_ms
from parley.errors import ParleyError
from parley.ids import ResponseAddress, response_address
from parley.log.ranges import RangeReader, RouteGone
from parley.settings import Settings
from parley.topics import TOKENS
from producers.edge.feeds import Feed, Feeds
from producers.edge.kept import Kept, may_run
from producers.edge.live import Live
from producers.edge.placing import Placing
from producers.edge.replayed import replay
from producers.edge.resource import Json, failure_object, response_object
from schemas.base import Route

log = logging.getLogger(__name__)

VIEWS_ARE_LATE_S = 10.0
"""How long the store may take to know the end of a turn that has ended."""
ASK_AGAIN_S = 1.0
"""Between two looks into the store for the end of a turn whose route is gone."""
BREATHE_EVERY = 200
"""Records of a route that is being caught up with, before others get a turn."""


def not_kept() -> ParleyError:
    """What is said of a response whose text is not to be had any more."""
    return ParleyError("previous_response_not_found", "The response was deleted, or was not to be stored.")


def was_lost() -> ParleyError:
    """What is said of a response whose end was lost with the log that had it."""
    return ParleyError("log_unavailable", "The answer was lost. Ask again.")


class Reading:
    """The readers of this edge that are not shared: one for each response that is not on one of its lanes."""

    def __init__(
        self, settings: Settings, feeds: Feeds, ranges: RangeReader, placing: Placing, kept: Kept, live: Live
    ) -> None:
        self._settings = settings
        self._feeds = feeds
        self._ranges = ranges
        self._placing = placing
        self._kept = kept
        self._live = live
        self._tasks: set[asyncio.Task[None]] = set()

    async def stop(self) -> None:
        """Read no route any more."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def read_new(self, feed: Feed, route: Route) -> None:
        """Read a turn's route that this edge has just chosen."""
        self._spawn(feed, route, self._go_on(feed, route, route.start))

    def read_known(self, feed: Feed, address: ResponseAddress) -> None:
        """Read a response that may be running, finished, or gone from the log."""
        route = self._route(address)
        self._spawn(feed, route, self._resume(feed, route, address))

    async def snapshot(self, response: str, user: UUID, address: ResponseAddress) -> Json:
        """The response as it is now. Never not_found for an id of the user's.

        Raises:
            ParleyError: log_unavailable; store_unavailable.
        """
        feed = Feed(response, user)
        with contextlib.suppress(RouteGone):
            await self._catch_up(feed, self._route(address))
        if feed.error is not None:
            raise feed.error
        shown = feed.projection.snapshot()
        if shown is not None and not (feed.projection.ended and await self._is_deleted(feed, address)):
            return shown
        return await self._stored(feed, address)

    def _route(self, address: ResponseAddress) -> Route:
        return address.route(TOKENS, self._settings.topics.session_topics.prefix)

    def _spawn(self, feed: Feed, route: Route, reading: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(self._guarded(feed, reading), name="edge-follow")
        self._tasks.add(task)
        alone = route.topic != TOKENS
        self._placing.running += alone

        def done(_: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            self._placing.running -= alone

        task.add_done_callback(done)
        self._feeds.on_release(feed, lambda: _stop(task))

    async def _guarded(self, feed: Feed, reading: Coroutine[Any, Any, None]) -> None:
        try:
            try:
                await reading
            except RouteGone as gone:
                log.warning("the route of %s is gone: %s", feed.projection.id, gone)
                await self._without_route(feed)
        except ParleyError as error:
            if error.kind.http >= 500:
                log.warning("reading the route of %s: %s: %s", feed.projection.id, error.kind.code, error.message)
            feed.fail(error)
        except Exception:
            log.exception("reading the route of %s", feed.projection.id)
            feed.fail(ParleyError("internal", "The stream was interrupted; resume it."))

    async def _resume(self, feed: Feed, route: Route, address: ResponseAddress) -> None:
        past = Feed(feed.projection.id, feed.user)  # shown to nobody before it is known that it may be
        start = await self._catch_up(past, route)
        if past.error is not None:
            raise past.error
        if past.projection.ended and await self._is_deleted(feed, address):
            raise not_kept()
        if past.transcript.opened is None and self._is_older(address, self._settings.protocol.margin_s):
            try:
                await self._recover(feed, address)  # this may be another log under the same name
            except ParleyError:
                if self._is_past(address):
                    raise
        if not feed.over:
            if past.events[: len(feed.events)] != feed.events:
                raise RouteGone(f"{route.topic} is another log than the one that was read before")
            feed.take_over(past)
        if not feed.over:
            await self._go_on(feed, route, start)

    async def _without_route(self, feed: Feed) -> None:
        """Until the route is there after all, or the turn's end is known.

        That comes from the store, or from the state log, whose reader tells the feed.
        """
        address = response_address(feed.projection.id)
        now = asyncio.get_running_loop().time
        ended = self._live.has_ended(feed.projection.id)
        patience = now() + (VIEWS_ARE_LATE_S if ended else 2 * self._settings.protocol.margin_s)
        while not feed.over and now() < patience:
            try:
                await self._recover(feed, address)
            except ParleyError as error:
                if not error.kind.retryable or self._is_past(address):
                    raise
            if not feed.over:
                await asyncio.sleep(ASK_AGAIN_S)
                with contextlib.suppress(RouteGone):
                    await self._resume(feed, self._route(address), address)
        if not feed.over:
            feed.fail(ParleyError("expired", "The answer's tokens are no longer in the log; ask for it again."))

    async def _go_on(self, feed: Feed, route: Route, start: int) -> None:
        async with contextlib.aclosing(self._ranges.follow(route.topic, route.partition, start)) as records:
            async for record in records:
                if record.key == feed.key:
                    feed.absorb(record.value, record.timestamp)
                    feed.notify()
                    if feed.over:
                        return

    async def _catch_up(self, feed: Feed, route: Route) -> int:
        """Fold what a route holds of a turn into a feed that nobody watches; gives the offset to go on at.

        Raises:
            RouteGone; ParleyError: log_unavailable.
        """
        if route.topic != TOKENS and not await self._placing.exists(route.topic):
            raise RouteGone(f"{route.topic} does not exist")
        end = await self._ranges.end_offset(route.topic, route.partition)
        if end < route.start:
            raise RouteGone(f"{route.topic}-{route.partition} ends before the turn began: it is another log")
        if end == route.start:
            return route.start
        async with contextlib.aclosing(self._ranges.follow(route.topic, route.partition, route.start)) as records:
            async for record in records:
                if record.key == feed.key:
                    feed.absorb(record.value)
                if feed.over or record.offset >= end - 1:
                    break
                if record.offset % BREATHE_EVERY == 0:
                    await asyncio.sleep(0)
        return end

    async def _recover(self, feed: Feed, address: ResponseAddress) -> None:
        """Answer from the store, if the turn has ended there; a response that is nowhere and old has gone for good."""
        turn = await self._kept.turn_of(address.session, feed.projection.id)
        if turn is not None and turn.status is not None and turn.user == feed.user and turn.kept:
            feed.recover(replay(turn, address.session))
        elif (turn is None or not turn.kept) and self._is_past(address):
            raise not_kept()

    async def _stored(self, feed: Feed, address: ResponseAddress) -> Json:
        response = feed.projection.id
        turn = await self._kept.turn_of(address.session, response)
        if turn is not None and turn.kept and turn.user == feed.user:
            if turn.status is None:
                running = response_object(response, turn.echo)
                return running if may_run(turn, self._settings.protocol) else running | _failed(was_lost())
            return replay(turn, address.session).response or {}
        shown = response_object(response, {})
        if not self._is_past(address) and not self._live.is_deleted(address.session, feed.user):
            return shown | {"status": "queued"}  # neither log nor store says anything yet
        return shown | _failed(not_kept())

    def _is_past(self, address: ResponseAddress) -> bool:
        """So old that the log or the store would know of it."""
        protocol = self._settings.protocol
        return self._is_older(address, protocol.max_turn_age_s + protocol.margin_s)

    @staticmethod
    def _is_older(address: ResponseAddress, age_s: float) -> bool:
        return now_ms() - address.accepted_ms > age_s * 1000

    async def _is_deleted(self, feed: Feed, address: ResponseAddress) -> bool:
        """The response's session was deleted by its user. While the store is away the log's word stands."""
        if self._live.is_deleted(address.session, feed.user):
            return True
        try:
            header = await self._kept.header(address.session)
        except ParleyError:
            return False
        return header is not None and header.deleted and header.user == feed.user


def _failed(error: ParleyError) -> Json:
    return {"status": "failed", "error": failure_object(error.failure())}


def _stop(task: asyncio.Task[None]) -> None:
    if task is not asyncio.current_task():
        task.cancel()
