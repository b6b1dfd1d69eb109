"""Where the token events of a new turn go: the session's own topic, or one of this edge's lanes.

Session topics are simple to look at and cost a consumer for each running turn, so `auto` takes them for opened
conversations only, and up to a limit of turns running at once; lanes carry everything else (protocol.md, section 6).
The route travels with the turn: whatever is chosen here, writers and readers never guess.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Literal
from uuid import UUID

from parley.errors import ParleyError
from parley.ids import SESSION_TOPIC_LANE
from parley.log.ranges import RangeReader, RouteGone
from parley.topics import TOKENS, Topics
from producers.edge.lanes import LaneReader
from schemas.base import Route

log = logging.getLogger(__name__)

REFRESH_S = 10.0
"""How often the session topics that other edges made are looked up."""


class Placing:
    """Chooses routes; knows which sessions have a topic."""

    def __init__(
        self,
        mode: Literal["auto", "session", "lane"],
        topics: Topics,
        lanes: LaneReader,
        ranges: RangeReader,
        make_topic: Callable[[UUID], Awaitable[bool]],
    ) -> None:
        self._mode = mode
        self._topics = topics
        self._lanes = lanes
        self._ranges = ranges
        self._make_topic = make_topic
        self._known: set[str] = set()
        self.running = 0
        """Turns on session topics that this edge reads now."""
        self._refreshing: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Keep the list of session topics fresh."""
        if self._mode != "lane":
            self._refreshing = asyncio.create_task(self._refresh(), name="edge-session-topics")

    async def stop(self) -> None:
        """Look no more."""
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.gather(self._refreshing, return_exceptions=True)

    async def open(self, session: UUID) -> None:
        """A conversation was opened: give it its topic, if there may be one more. Without one it uses lanes."""
        if self._mode == "lane":
            return
        try:
            if await self._make_topic(session):
                self._known.add(self._name(session))
        except ParleyError as error:
            log.warning("no topic for a new conversation: %s", error)

    async def route(self, session: UUID) -> tuple[Route, int]:
        """(route, its lane number in ids) for a turn that is being accepted.

        Raises:
            ParleyError: log_unavailable.
        """
        if self._mode == "session" and self._name(session) not in self._known:
            await self.open(session)
        if self._mode != "lane" and self._name(session) in self._known and self._may_run_one_more():
            try:
                start = await self._ranges.end_offset(self._name(session), 0)
                return Route(topic=self._name(session), partition=0, start=start), SESSION_TOPIC_LANE
            except (RouteGone, ParleyError) as error:
                log.warning("a session's topic can't be used, a lane is: %s", error)
                self._known.discard(self._name(session))
        lane, start = self._lanes.next_lane()
        return Route(topic=TOKENS, partition=lane, start=start), lane

    async def exists(self, topic: str) -> bool:
        """The topic is there now. A reader that knew a deleted one would wait for it in vain."""
        return topic in await self._ranges.topics()

    def _may_run_one_more(self) -> bool:
        return self._mode == "session" or self.running < self._topics.session_topics.running_limit

    def _name(self, session: UUID) -> str:
        return f"{self._topics.session_topics.prefix}{session.hex}"

    async def _refresh(self) -> None:
        prefix = self._topics.session_topics.prefix
        while True:
            try:
                self._known = {name for name in await self._ranges.topics() if name.startswith(prefix)}
            except Exception as error:  # what can't be seen now is on lanes meanwhile
                log.warning("the session topics can't be listed: %r", error)
            await asyncio.sleep(REFRESH_S)
