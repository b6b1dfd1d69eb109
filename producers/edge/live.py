"""Which turns run now, in which sessions, and who follows them: the fold of the newest part of chat.turns.

Every edge reads all of chat.turns, from a little before it started, and keeps open turns only. So a client that knows
nothing but its conversation can be told at once what runs there, and of each turn that begins later, whatever edge
accepted it and whatever device asked.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, Protocol
from uuid import UUID

from aiokafka import TopicPartition

from parley.clock import now_ms
from parley.errors import ParleyError
from parley.log.dlq import unreadable
from parley.log.follower import Follower
from parley.log.ranges import Record
from parley.settings import ProtocolSettings
from parley.topics import TURNS
from schemas.turns import SessionChanged, SessionDeleted, TurnEnded, TurnStarted
from schemas.wire import BadRecord, decode_turns_event

REMEMBERED = 10_000
"""Ended turns, and opened and deleted sessions, that are remembered: views have long caught up with older ones."""

READING_S = 5.0
"""How long a request waits for what the log has and this edge has not read yet."""


class Listener(Protocol):
    """Somebody who follows a session. Both calls must return at once."""

    def began(self, turn: TurnStarted) -> None:
        """A turn of the session has begun."""

    def deleted(self) -> None:
        """The session was deleted."""


class Live:
    """Open turns by session. Owns the reading of chat.turns on this edge."""

    def __init__(
        self,
        follower: Follower,
        partitions: int,
        protocol: ProtocolSettings,
        on_ended: Callable[[TurnStarted, TurnEnded], None],
    ) -> None:
        """`on_ended` is told of each turn that has run here and has ended, or was too old to run."""
        self._follower = follower
        self._wheres = [TopicPartition(TURNS, partition) for partition in range(partitions)]
        # A turn that is older is waited for by nobody who would not know its id.
        lasts = protocol.moderation_deadline_s + protocol.start_deadline_s + protocol.answer_limit_s
        self._lookback_ms = int(2 * lasts * 1000)
        self._on_ended = on_ended
        self._running: dict[UUID, dict[str, TurnStarted]] = {}
        self._listeners: dict[UUID, set[Listener]] = {}
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._deleted: OrderedDict[UUID, UUID] = OrderedDict()
        self._opened: OrderedDict[UUID, SessionChanged] = OrderedDict()
        self._caught_up: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to read; `follow` waits until what was there is read.

        Raises:
            ParleyError: log_unavailable.
        """
        since = now_ms() - self._lookback_ms
        begins = await self._follower.since(dict.fromkeys(self._wheres, since))
        ends = await self._follower.bounds(self._wheres)
        for where, begin in begins.items():
            self._follower.follow(where.topic, where.partition, begin, self._absorb)
        behind = {where: end for where, (_, end) in ends.items() if end > begins[where]}
        self._caught_up = asyncio.create_task(self._catch_up(behind), name="edge-live")

    async def stop(self) -> None:
        """Wait no more."""
        if self._caught_up is not None:
            self._caught_up.cancel()
            await asyncio.gather(self._caught_up, return_exceptions=True)

    async def follow(self, session: UUID, listener: Listener) -> list[TurnStarted]:
        """Tell a listener of each turn that begins in a session from now on; gives those that run, in their order.

        Raises:
            ParleyError: log_unavailable: what runs now is not known yet.
        """
        if self._caught_up is not None:
            await _in_time(asyncio.shield(self._caught_up))
        self._listeners.setdefault(session, set()).add(listener)
        running = [turn for turn in self._running.get(session, {}).values() if turn.why != "expired"]
        return sorted(running, key=lambda turn: turn.turn)

    def unfollow(self, session: UUID, listener: Listener) -> None:
        """Tell it no more."""
        listeners = self._listeners.get(session, set())
        listeners.discard(listener)
        if not listeners:
            self._listeners.pop(session, None)

    def is_deleted(self, session: UUID, user: UUID) -> bool:
        """The user has deleted the session lately; views may not know yet."""
        return self._deleted.get(session) == user

    def has_ended(self, response: str) -> bool:
        """The turn has ended lately."""
        return response in self._ended

    def opening(self, session: UUID) -> SessionChanged | None:
        """What opened a session first, as far as that is not long ago."""
        return self._opened.get(session)

    async def reached(self, partition: int, offset: int) -> None:
        """Returns once the state log has been read up to an offset.

        Raises:
            ParleyError: log_unavailable: it has not been for seconds.
        """
        await _in_time(self._follower.reached(TURNS, partition, offset))

    async def _catch_up(self, behind: dict[TopicPartition, int]) -> None:
        for where, end in behind.items():
            await self._follower.reached(where.topic, where.partition, end - 1)

    def _absorb(self, record: Record) -> None:
        try:
            event = decode_turns_event(record.value)
        except BadRecord as error:
            unreadable(record, error)
            return
        match event:
            case TurnStarted():
                self._began(event)
            case TurnEnded():
                self._end(event)
            case SessionChanged(opened=True):
                self._opened.setdefault(event.session, event)
                _forget_oldest(self._opened)
            case SessionDeleted():
                self._deleted[event.session] = event.user
                _forget_oldest(self._deleted)
                for listener in tuple(self._listeners.get(event.session, ())):
                    listener.deleted()

    def _began(self, event: TurnStarted) -> None:
        if event.response in self._ended:  # an ended turn stays ended
            return
        turns = self._running.setdefault(event.session, {})
        known = turns.get(event.response)
        if known is not None and known.dispatch >= event.dispatch:
            return
        turns[event.response] = event
        if known is None and event.why != "expired":
            for listener in tuple(self._listeners.get(event.session, ())):
                listener.began(event)

    def _end(self, event: TurnEnded) -> None:
        turns = self._running.get(event.session, {})
        known = turns.get(event.response)
        if known is not None and event.dispatch < known.dispatch:
            return
        self._ended[event.response] = None
        _forget_oldest(self._ended)
        if known is None:
            return
        del turns[event.response]
        if not turns:
            del self._running[event.session]
        self._on_ended(known, event)


async def _in_time(reading: Awaitable[None]) -> None:
    try:
        async with asyncio.timeout(READING_S):
            await reading
    except TimeoutError:
        raise ParleyError("log_unavailable", "The state log can't be read at the moment.") from None


def _forget_oldest(remembered: OrderedDict[Any, Any]) -> None:
    if len(remembered) > REMEMBERED:
        remembered.popitem(last=False)
