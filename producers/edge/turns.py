"""What the edge does with turns, whatever the transport: accept, watch, show, cancel.

An accepted prompt is one that the log has acknowledged on all in-sync replicas; nothing is said to a client before.
A response is found by its id alone: the id holds session, route and start offset, the route is folded from there, and
only where the route is gone the store answers (protocol.md, section 6).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from uuid import UUID

from parley.clock import now_ms
from parley.errors import ParleyError
from parley.ids import SESSION_TOPIC_LANE, ResponseAddress
from parley.log.producer import Producer
from parley.log.ranges import RangeReader, RouteGone
from parley.settings import Settings
from parley.topics import CONTROL, PROMPTS, TOKENS
from producers.edge import metrics
from producers.edge.acceptance import Author, accept, check, idempotency, own_response, place
from producers.edge.feeds import Cursor, Feed, Feeds
from producers.edge.kept import Kept
from producers.edge.placing import Placing
from producers.edge.replayed import replay
from producers.edge.resource import Json, failure_object, response_object
from schemas.api import CreateResponse
from schemas.base import Route
from schemas.prompts import Cancel, PromptAccepted
from schemas.routes import Opened
from schemas.wire import encode, headers

log = logging.getLogger(__name__)

NOTIFY_EVERY = 200
"""Records of a route that is being caught up with, before those who watch it get a turn."""


class Turns:
    """The turns of this edge's users."""

    def __init__(
        self,
        settings: Settings,
        producer: Producer,
        feeds: Feeds,
        ranges: RangeReader,
        placing: Placing,
        kept: Kept,
    ) -> None:
        self._settings = settings
        self._topics = settings.topics
        self._keys = settings.keys
        self._producer = producer
        self._feeds = feeds
        self._ranges = ranges
        self._placing = placing
        self._kept = kept
        self._followers: set[asyncio.Task[None]] = set()

    async def stop(self) -> None:
        """Read no route any more."""
        for task in tuple(self._followers):
            task.cancel()
        await asyncio.gather(*self._followers, return_exceptions=True)

    async def accept(self, request: CreateResponse, author: Author, key: str | None, body: Json) -> Feed:
        """Accept a prompt: checked, in the log, and watched. The feed has said response.created.

        With an idempotency key nothing is said yet: the orchestrator may have seen the key before (see `settle`).

        Raises:
            ParleyError: what is wrong with the request; log_unavailable: whether it was accepted is not known.
        """
        pool = check(request, author.tier, self._topics)
        keyed = idempotency(self._keys, author, key, body) if key is not None else None
        placement = place(request, author, self._keys, self._topics.cell, keyed)
        route, lane = await self._placing.route(placement.session)
        prompt = accept(
            request,
            author,
            placement,
            pool,
            keys=self._keys,
            route=route,
            lane=lane,
            now_ms=now_ms(),
            max_record=self._settings.kafka.max_request_size,
            idempotent=keyed,
        )
        feed = self._feeds.open(prompt.response, author.user)  # before the prompt is sent, or records might be missed
        try:
            with metrics.ACCEPTANCE.time():
                await self._send(prompt)
        except ParleyError as error:
            feed.fail(error)
            raise
        if lane == SESSION_TOPIC_LANE:
            self._read_alone(feed, route, route.start)
        if keyed is None:
            feed.announce(prompt.echo)
        return feed

    async def settle(self, author: Author, cursor: Cursor) -> None:
        """Wait for the orchestrator's word on a keyed prompt: it runs, or its key came before.

        A cursor whose turn does not run is moved to the response that answers the key, to its first event.

        Raises:
            ParleyError: idempotency_key_reused: the key came with another body.
        """
        while not await cursor.ready(self._settings.edge.keepalive_s):
            pass
        opened = cursor.feed.transcript.opened
        if opened is not None and cursor.feed.redirected and not cursor.closed:
            cursor.move(await self.answering(author, opened))

    async def answering(self, author: Author, opened: Opened) -> Feed:
        """The feed of the response that a repeated key is answered with.

        Raises:
            ParleyError: idempotency_key_reused: the key came with another body.
        """
        if opened.duplicate_of is None:
            raise ParleyError(
                "idempotency_key_reused", "This Idempotency-Key came before with another body. Use a new key."
            )
        return await self.watch(author, opened.duplicate_of)

    async def watch(self, author: Author, response: str) -> Feed:
        """The feed of a response, running or finished, from its first event.

        Raises:
            ParleyError: not_found.
        """
        address = own_response(self._keys, author, response, "response_id")
        if (running := self._feeds.get(response)) is not None:
            return running
        feed = self._feeds.open(response, author.user)
        self._read_alone(feed, self._route(address), None, address)
        return feed

    async def show(self, author: Author, response: str) -> Json:
        """The response object as it is now. Never not_found for an id of the author's.

        Raises:
            ParleyError: not_found; log_unavailable; store_unavailable.
        """
        address = own_response(self._keys, author, response, "response_id")
        feed = self._feeds.get(response)
        if feed is None or feed.projection.response is None:
            feed = Feed(response, author.user)
            with contextlib.suppress(RouteGone):
                await self._catch_up(feed, self._route(address))
        if feed.error is not None:
            raise feed.error
        shown = feed.projection.snapshot()
        if shown is None:
            shown = await self._stored(address, response)
        return shown or self._unknown(address, response)

    async def cancel(self, author: Author, response: str) -> Json:
        """Write the wish that a turn ends; gives the response as it is now.

        Raises:
            ParleyError: not_found; log_unavailable: the wish may be lost, say it again.
        """
        address = own_response(self._keys, author, response, "response_id")
        await self.request_cancel(author, response, address.session)
        return await self.show(author, response)

    async def request_cancel(self, author: Author, response: str, session: UUID) -> None:
        """The durable part of `cancel`."""
        event = Cancel(response=response, session=session, user=author.user, at=now_ms())
        await self._producer.send_keyed(
            CONTROL,
            encode(event),
            key=session.hex.encode(),
            count=self._topics.session_partitions,
            headers=headers(event.type, response=response, session=session.hex),
        )

    async def _send(self, prompt: PromptAccepted) -> None:
        await self._producer.send_keyed(
            PROMPTS,
            encode(prompt),
            key=prompt.session.hex.encode(),
            count=self._topics.session_partitions,
            headers=headers(
                prompt.type,
                response=prompt.response,
                session=prompt.session.hex,
                route=prompt.route,
                deadline=prompt.accepted_at + int(self._settings.protocol.max_turn_age_s * 1000),
            ),
        )

    def _route(self, address: ResponseAddress) -> Route:
        return address.route(TOKENS, self._topics.session_topics.prefix)

    def _read_alone(self, feed: Feed, route: Route, start: int | None, address: ResponseAddress | None = None) -> None:
        """Read a route for this feed with a reader of its own; from `start`, or first what is there already."""
        task = asyncio.create_task(self._follow(feed, route, start, address), name="edge-follow")
        self._followers.add(task)
        if route.topic != TOKENS:
            self._placing.running += 1
        task.add_done_callback(lambda done: self._followed(done, route))
        self._feeds.on_release(feed, lambda: self._stop_following(task))

    def _followed(self, task: asyncio.Task[None], route: Route) -> None:
        self._followers.discard(task)
        if route.topic != TOKENS:
            self._placing.running -= 1

    @staticmethod
    def _stop_following(task: asyncio.Task[None]) -> None:
        if task is not asyncio.current_task():
            task.cancel()

    async def _follow(self, feed: Feed, route: Route, start: int | None, address: ResponseAddress | None) -> None:
        try:
            if start is None:
                start = await self._catch_up(feed, route)
                if feed.transcript.opened is None and address is not None and await self._recover(feed, address):
                    return
            if feed.over:
                return
            async with contextlib.aclosing(self._ranges.follow(route.topic, route.partition, start)) as records:
                async for record in records:
                    if record.key == feed.key:
                        feed.absorb(record.value)
                        feed.notify()
                        if feed.over:
                            return
        except RouteGone:
            if address is None or not await self._recover(feed, address):
                feed.fail(ParleyError("expired", "The answer's tokens are no longer in the log; ask for it again."))
        except ParleyError as error:
            feed.fail(error)
        except Exception:
            log.exception("reading the route of %s", feed.projection.id)
            feed.fail(ParleyError("internal", "The stream was interrupted; resume it."))

    async def _catch_up(self, feed: Feed, route: Route) -> int:
        """Fold what a route holds of a turn; gives the offset to go on at.

        Raises:
            RouteGone; ParleyError: log_unavailable.
        """
        if route.topic != TOKENS and not await self._placing.exists(route.topic):
            raise RouteGone(f"{route.topic} does not exist")
        end = await self._ranges.end_offset(route.topic, route.partition)
        if end <= route.start:
            return route.start
        async with contextlib.aclosing(self._ranges.follow(route.topic, route.partition, route.start)) as records:
            async for record in records:
                if record.key == feed.key:
                    feed.absorb(record.value)
                    feed.backlog = len(feed.events)
                if feed.over or record.offset >= end - 1:
                    break
                if record.offset % NOTIFY_EVERY == 0:
                    await asyncio.sleep(0)
        feed.notify()
        return end

    async def _recover(self, feed: Feed, address: ResponseAddress) -> bool:
        """Answer from the store, if the turn has ended there."""
        turn = await self._kept.turn_of(address.session, feed.projection.id)
        if turn is None or turn.status is None or turn.user != feed.user or not turn.kept:
            return False
        feed.backlog = len(turn.delta_lengths) + 12
        feed.replace(replay(turn, address.session))
        return True

    async def _stored(self, address: ResponseAddress, response: str) -> Json | None:
        turn = await self._kept.turn_of(address.session, response)
        if turn is None or not turn.kept:
            return None
        if turn.status is None:
            return response_object(response, turn.echo)
        return replay(turn, address.session).response

    def _unknown(self, address: ResponseAddress, response: str) -> Json:
        """An id that was acknowledged, of which neither log nor store says anything: too new, or too old."""
        protocol = self._settings.protocol
        shown = response_object(response, {})
        if now_ms() - address.accepted_ms <= (protocol.max_turn_age_s + protocol.margin_s) * 1000:
            return shown | {"status": "queued"}
        gone = ParleyError("previous_response_not_found", "The response was deleted, or was not to be stored.")
        return shown | {"status": "failed", "error": failure_object(gone.failure())}
