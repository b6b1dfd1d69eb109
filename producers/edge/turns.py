"""What the edge does with turns, whatever the transport: accept, watch, show, cancel.

An accepted prompt is one that the log has acknowledged on all in-sync replicas; nothing is said to a client before.
How a response is read from its id alone is told in reading.py.
"""

from __future__ import annotations

import asyncio
import logging
from uuid import UUID

from parley.clock import now_ms
from parley.errors import ParleyError
from parley.ids import SESSION_TOPIC_LANE
from parley.log.producer import Producer
from parley.settings import Settings
from parley.topics import CONTROL, PROMPTS
from producers.edge import metrics
from producers.edge.acceptance import Author, accept, check, idempotency, key_reused, own_response, place
from producers.edge.crowding import Crowding
from producers.edge.feeds import Cursor, Feed, Feeds
from producers.edge.pace import Pace
from producers.edge.placing import Placing
from producers.edge.reading import Reading
from producers.edge.replayed import ended_projection
from producers.edge.resource import Json
from schemas.api import CreateResponse
from schemas.prompts import Cancel, PromptAccepted
from schemas.routes import Opened
from schemas.turns import TurnEnded, TurnStarted
from schemas.wire import encode, headers

log = logging.getLogger(__name__)

ROUTE_IS_LATE_S = 5.0
"""A turn's end is on its route before it is in the state log: after this its reader stands, or the route is gone."""


class Turns:
    """The turns of this edge's users."""

    def __init__(
        self,
        settings: Settings,
        producer: Producer,
        feeds: Feeds,
        placing: Placing,
        reading: Reading,
        crowding: Crowding,
    ) -> None:
        self._settings = settings
        self._topics = settings.topics
        self._keys = settings.keys
        self._producer = producer
        self._feeds = feeds
        self._placing = placing
        self._reading = reading
        self._crowding = crowding

    async def accept(self, request: CreateResponse, author: Author, key: str | None, body: Json) -> Feed:
        """Accept a prompt: checked, in the log, and watched. The feed has said response.created.

        With an idempotency key nothing is said yet: the orchestrator may have seen the key before (see `settle`).

        Raises:
            ParleyError: what is wrong with the request; log_unavailable: whether it was accepted is not known.
        """
        pool = check(request, author.tier, self._topics)
        self._crowding.check(pool.name, author.tier)
        pace = Pace(pool.name, author.tier)
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
        feed.pace = pace
        pace.accepted()
        try:
            with metrics.ACCEPTANCE.time():
                await self._send(prompt)
        except ParleyError as error:
            feed.fail(error)
            raise
        if lane == SESSION_TOPIC_LANE:
            self._reading.read_new(feed, route)
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
            cursor.move(self.answering(author, opened))

    def answering(self, author: Author, opened: Opened) -> Feed:
        """The feed of the response that a repeated key is answered with.

        Raises:
            ParleyError: idempotency_key_reused: the key came with another body.
        """
        if opened.conflict or opened.duplicate_of is None:
            raise key_reused()
        return self.watch(author, opened.duplicate_of)

    def watch(self, author: Author, response: str) -> Feed:
        """The feed of a response, running or finished, from its first event.

        Raises:
            ParleyError: not_found.
        """
        address = own_response(self._keys, author, response, "response_id")
        if (running := self._feeds.get(response)) is not None:
            return running
        feed = self._feeds.open(response, author.user)
        self._reading.read_known(feed, address)
        return feed

    async def show(self, author: Author, response: str) -> Json:
        """The response object as it is now. Never not_found for an id of the author's.

        Raises:
            ParleyError: not_found; log_unavailable; store_unavailable.
        """
        address = own_response(self._keys, author, response, "response_id")
        feed = self._feeds.get(response)
        shown = feed.projection.snapshot() if feed is not None else None
        return shown or await self._reading.snapshot(response, author.user, address)

    def ended(self, started: TurnStarted, ended: TurnEnded) -> None:
        """The state log tells of a turn's end. Whoever waits here for a word on its route is told, if none can come."""
        feed = self._feeds.get(ended.response)
        if feed is None or feed.user != ended.user or feed.over:
            return
        if ended.status == "expired":
            feed.expire(ended, started.echo)
        else:
            asyncio.get_running_loop().call_later(ROUTE_IS_LATE_S, self._settle_end, feed, started, ended)

    @staticmethod
    def _settle_end(feed: Feed, started: TurnStarted, ended: TurnEnded) -> None:
        if not feed.over:
            log.warning("the route of %s has not told its end", ended.response)
            feed.recover(ended_projection(ended, started.echo))

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
                traceparent=prompt.traceparent,
                more=(("user", prompt.user.hex.encode()),),  # whoever can't read the prompt ends its turn
            ),
        )
