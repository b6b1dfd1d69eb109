"""The message store as the orchestrator sees it: history's view of chat.turns, now and then out of reach."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, ClassVar
from uuid import UUID

from aiokafka import TopicPartition
from aiokafka.structs import OffsetAndMetadata

from parley.errors import ParleyError
from parley.stores.stored import SessionHeader, StoredTurn, standing
from parley.topics import TURNS
from schemas.turns import SessionDeleted, TurnEnded, TurnStarted
from schemas.wire import TurnsEvent, decode_turns_event
from tests.simulation.clients import World
from tests.simulation.cluster import Cluster
from tests.simulation.coordinator import Coordinators

VIEW = "history-messages"


class History:
    """The role that feeds the store, as slow as it likes: what it has committed is in the store, and perhaps more."""

    def __init__(self, cluster: Cluster, coordinators: Coordinators) -> None:
        self._cluster = cluster
        self._coordinators = coordinators
        self.ends: dict[TopicPartition, int] = {where: 0 for where in cluster.partitions if where.topic == TURNS}
        cluster.loop.outside(0.5, self._work)

    def _work(self) -> None:
        """Some records more; then, perhaps, a commit of what there was before."""
        rng, trouble = self._cluster.rng, self._cluster.trouble
        for where, end in self.ends.items():
            if rng.random() < 0.5 or not trouble.store_down:
                self._coordinators.group(VIEW).offsets[where] = OffsetAndMetadata(end, "")
            if not self._cluster.happens(trouble.store_down):
                self.ends[where] = end + int((self._cluster.partitions[where].end - end) * rng.random() + 0.999)
        self._cluster.loop.outside(rng.random(), self._work)


class SimStore:
    """As LazyMessageStore and the MessageStore that it gives: the fold of what history has written."""

    history: ClassVar[History]

    def __init__(self, settings: Any) -> None:
        self._cluster = World.cluster

    async def get(self) -> SimStore:
        await asyncio.sleep(self._cluster.latency())
        if self._cluster.happens(self._cluster.trouble.store_down):
            raise ParleyError("store_unavailable", "the simulated store is down")
        return self

    async def close(self) -> None:
        """Nothing to close."""

    def _events(self, session: UUID) -> Iterable[TurnsEvent]:
        for where, partition in self._cluster.partitions.items():
            if where.topic == TURNS:
                for record in partition.records[: self.history.ends[where]]:
                    if record.key == session.hex.encode():
                        yield decode_turns_event(record.value)

    async def header(self, session: UUID) -> SessionHeader | None:
        events = list(self._events(session))
        numbers = [event.turn for event in events if isinstance(event, TurnStarted | TurnEnded)]
        if not events:
            return None
        deleted = any(isinstance(event, SessionDeleted) for event in events)
        return SessionHeader(session, events[0].user, max(numbers, default=0), deleted)

    async def turns(
        self, session: UUID, *, after: int = 0, before: int | None = None, limit: int, newest_first: bool = False
    ) -> list[StoredTurn]:
        of: dict[str, list[TurnStarted | TurnEnded]] = {}
        for event in self._events(session):
            if isinstance(event, TurnStarted | TurnEnded):
                of.setdefault(event.response, []).append(event)
        turns = []
        for events in of.values():
            fold = standing(events)
            if fold.started or fold.ended:
                turns.append(
                    fold.turn(fold.started.items if fold.started else (), fold.ended.output if fold.ended else ())
                )
        wanted = [turn for turn in turns if turn.turn > after and (before is None or turn.turn < before)]
        return sorted(wanted, key=lambda turn: turn.turn, reverse=newest_first)[:limit]

    async def turn_of(self, session: UUID, response: str) -> StoredTurn | None:
        turns = await self.turns(session, limit=1_000_000)
        return next((turn for turn in turns if turn.response == response), None)
