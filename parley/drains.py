"""What operators have taken out of use, as chat.pools says: whole pools, and single engines.

A pool that is drained gets no new turns: orchestrators route by the next rule that fits, or refuse. What was handed to
it before is finished. An engine that is drained gets no new runs: its worker takes its turns to the pool's other
engines, and what runs on it runs on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aiokafka import TopicPartition

from parley.errors import ParleyError
from parley.log.dlq import unreadable
from parley.log.follower import Follower
from parley.log.ranges import Record
from parley.settings import KafkaSettings
from parley.topics import POOLS
from schemas.operations import PoolDrain
from schemas.wire import BadRecord, decoder

_drain = decoder(PoolDrain)
WHERE = TopicPartition(POOLS, 0)
FETCH_WAIT_MS = 5_000
"""Operators write seldom; a record ends the wait at once."""


class Drains:
    """The fold of chat.pools: of each pool and engine, the last word counts."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, str | None], PoolDrain] = {}
        self.on_change: Callable[[], None] = lambda: None
        """Told after something was taken out of use, or put back."""
        self.known = asyncio.Event()
        """What was in the topic has been read."""

    @property
    def all(self) -> list[PoolDrain]:
        """Everything that is out of use now, by pool and engine."""
        out = [event for event in self._last.values() if event.drained]
        return sorted(out, key=lambda event: (event.pool, event.engine or ""))

    @property
    def pools(self) -> frozenset[str]:
        """Pools that get no new turns."""
        return frozenset(event.pool for event in self._last.values() if event.drained and event.engine is None)

    def engines(self, pool: str) -> frozenset[str]:
        """Addresses of a pool's engines that get no new runs."""
        return frozenset(e.engine for e in self._last.values() if e.drained and e.pool == pool and e.engine is not None)

    def handle(self, record: Record) -> None:
        """One record of the topic, in order."""
        try:
            event = _drain(record.value)
        except BadRecord as error:
            unreadable(record, error)
            return
        self._last[event.pool, event.engine] = event
        self.on_change()

    async def follow(self, settings: KafkaSettings, name: str) -> None:
        """Read what is there, then what comes, until cancelled.

        Over a connection of its own: a broker answers a connection's requests one after the other, and whoever takes
        partitions over must not wait for a fetch that finds nothing.

        Raises:
            ParleyError: log_unavailable.
            Exception: what ended the following.
        """
        patient = settings.model_copy(update={"fetch_max_wait_ms": FETCH_WAIT_MS})
        follower, ended = Follower(patient, name), asyncio.get_running_loop().create_future()
        follower.on_failure = ended.set_exception
        await follower.start()
        try:
            begin, end = await self._bounds(follower)
            follower.follow(WHERE.topic, WHERE.partition, begin, self.handle)
            if end > begin:
                await follower.reached(WHERE.topic, WHERE.partition, end - 1)
            self.known.set()
            await ended
        finally:
            await follower.stop()

    @staticmethod
    async def _bounds(follower: Follower) -> tuple[int, int]:
        try:
            return (await follower.bounds([WHERE]))[WHERE]
        except ParleyError as error:
            hint = "if it does not exist, `parley topics apply` makes it"
            raise ParleyError(error.kind.code, f"{POOLS} can't be read ({hint}): {error.message}") from error
