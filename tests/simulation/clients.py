"""What the roles use of aiokafka, before the simulated brokers: AIOKafkaProducer and AIOKafkaConsumer."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from aiokafka import TopicPartition
from aiokafka.errors import (
    KafkaConnectionError,
    KafkaTimeoutError,
    OffsetOutOfRangeError,
    OutOfOrderSequenceNumber,
    ProducerClosed,
    RequestTimedOutError,
)
from aiokafka.structs import OffsetAndMetadata, OffsetAndTimestamp, RecordMetadata

from tests.simulation.cluster import Cluster, Record
from tests.simulation.coordinator import Coordinators
from tests.simulation.loop import current
from tests.simulation.membership import Membership


class World:
    """Where clients find the brokers; set for each schedule."""

    cluster: ClassVar[Cluster]
    coordinators: ClassVar[Coordinators]


@dataclass(slots=True)
class _Sending:
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]]
    acknowledged: asyncio.Future[RecordMetadata]
    expires: float


class SimProducer:
    """Idempotent: one batch of a partition under way; a partition of which a batch has failed never works again."""

    def __init__(self, *, request_timeout_ms: int = 10_000, **_: Any) -> None:
        self._cluster = World.cluster
        self._process = current()
        self._timeout_s = request_timeout_ms / 1000
        self._queues: dict[TopicPartition, deque[_Sending]] = {}
        self._busy: set[TopicPartition] = set()
        self._poisoned: set[TopicPartition] = set()
        self._closed = False

    async def start(self) -> None:
        await self._cluster.ask(self._process, lambda: None)

    async def stop(self) -> None:
        left = [sending.acknowledged for queue in self._queues.values() for sending in queue]
        await asyncio.gather(*left, return_exceptions=True)
        self._closed = True

    async def send(
        self, topic: str, value: bytes | None, *, key: bytes | None, partition: int, headers: list[tuple[str, bytes]]
    ) -> asyncio.Future[RecordMetadata]:
        if self._closed:
            raise ProducerClosed
        loop, where = self._cluster.loop, TopicPartition(topic, partition)
        assert where in self._cluster.partitions, where
        done: asyncio.Future[RecordMetadata] = loop.create_future()
        queue = self._queues.setdefault(where, deque())
        queue.append(_Sending(key, value, headers, done, loop.time() + self._timeout_s))
        if where not in self._busy:
            self._busy.add(where)
            loop.inside(self._process, 0, self._next, where)
        return done

    def _next(self, where: TopicPartition) -> None:
        """Send what has gathered, as one batch."""
        cluster, batch = self._cluster, list(self._queues[where])
        trouble, happens, rng = cluster.trouble, cluster.happens, cluster.rng
        self._busy.discard(where)
        if not batch:
            return
        self._busy.add(where)
        if (fate := cluster.fate(f"send {where.topic}")) is not None:
            if fate.lands_s is not None:
                cluster.loop.outside(fate.lands_s, self._land, where, batch)
            self._later(fate.fails_s or 0.0, where, batch, RequestTimedOutError("not acknowledged"))
        elif where in self._poisoned:
            self._later(rng.random(), where, batch, OutOfOrderSequenceNumber("a batch before was lost"))
        elif self._process.cut:
            wait = max(0.0, min(sending.expires for sending in batch) - cluster.loop.time())
            if wait == 0.0:
                self._later(0.0, where, batch, KafkaTimeoutError("expired"))
            else:
                cluster.loop.inside(self._process, min(wait, 0.2), self._next, where)
        elif happens(trouble.send_fails):
            self._later(self._noticed(), where, batch, RequestTimedOutError("not acknowledged"))
        elif happens(trouble.send_fails_and_lands):
            self._later(self._noticed(), where, batch, RequestTimedOutError("not acknowledged"))
            cluster.loop.outside(6 * rng.random() ** 2, self._land, where, batch)
        elif happens(trouble.send_without_offset):
            cluster.loop.outside(cluster.latency(), self._land, where, batch)
            self._later(2 * cluster.latency(), where, batch, [-1] * len(batch))
        else:
            slow = 2 * rng.random() ** 2 if happens(trouble.send_slow) else 0.0
            lag = self._process.lag_s * rng.random() if self._process.lag_s else 0.0
            cluster.loop.outside(cluster.latency() + slow + lag, self._arrive, where, batch)

    def _noticed(self) -> float:
        rng = self._cluster.rng
        return 0.05 * rng.random() if rng.random() < 0.5 else self._timeout_s * rng.random()

    def _land(self, where: TopicPartition, batch: Iterable[_Sending]) -> list[int]:
        return [self._cluster.append(where, sending.key, sending.value, sending.headers) for sending in batch]

    def _arrive(self, where: TopicPartition, batch: list[_Sending]) -> None:
        if self._process.cut:
            self._later(self._noticed(), where, batch, KafkaConnectionError("the connection broke"))
        else:
            self._later(self._cluster.latency(), where, batch, self._land(where, batch))

    def _later(
        self, delay_s: float, where: TopicPartition, batch: list[_Sending], outcome: Exception | list[int]
    ) -> None:
        self._cluster.loop.inside(self._process, delay_s, self._done, where, batch, outcome)

    def _done(self, where: TopicPartition, batch: list[_Sending], outcome: Exception | list[int]) -> None:
        queue = self._queues[where]
        for _ in batch:
            queue.popleft()
        if isinstance(outcome, Exception):
            self._poisoned.add(where)
            for sending in batch:
                if not sending.acknowledged.done():
                    sending.acknowledged.set_exception(outcome)
        else:
            for sending, offset in zip(batch, outcome, strict=True):
                if not sending.acknowledged.done():
                    sending.acknowledged.set_result(RecordMetadata(*where, where, offset, 0, 1, 0))
        self._next(where)


class _Client:
    """The private parts of a consumer that roles reach into."""

    def __init__(self, consumer: SimConsumer) -> None:
        self._consumer = consumer

    async def add_topic(self, topic: str) -> None:
        """Topics are known anyway."""

    async def force_metadata_update(self) -> bool:
        try:
            await self._consumer.ask(lambda: None)
        except (KafkaConnectionError, RequestTimedOutError):
            return False
        return True


class SimAdmin:
    """The admin client, as far as roles use it."""

    def __init__(self, **_: Any) -> None:
        self._process = current()

    async def start(self) -> None:
        await World.cluster.ask(self._process, lambda: None)

    async def close(self) -> None:
        """Nothing to close."""

    async def list_consumer_group_offsets(
        self, group: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        wheres, coordinators = tuple(partitions), World.coordinators
        found: dict[TopicPartition, OffsetAndMetadata] = await World.cluster.ask(
            self._process, lambda: coordinators.fetch(coordinators.lookup(), group, wheres)
        )
        return {where: found.get(where, OffsetAndMetadata(-1, "")) for where in wheres}


class SimConsumer:
    """In a group or without one."""

    def __init__(
        self,
        *,
        group_id: str | None = None,
        group_instance_id: str | None = None,
        auto_offset_reset: str = "latest",
        session_timeout_ms: int = 3_000,
        rebalance_timeout_ms: int = 6_000,
        **_: Any,
    ) -> None:
        self._cluster = World.cluster
        self.process = current()
        self._reset = auto_offset_reset
        self._positions: dict[TopicPartition, int | None] = {}
        self._paused: set[TopicPartition] = set()
        self._stalled: dict[TopicPartition, tuple[float, int]] = {}
        """Until when fetches show only what was there, and its end."""
        self._arrival: asyncio.Future[None] | None = None
        self._cold = True
        self._closed = False
        self._client = _Client(self)
        self._coordinator: Membership | None = None
        if group_id is not None:
            self._coordinator = Membership(
                World.coordinators, self, group_id, group_instance_id, session_timeout_ms, rebalance_timeout_ms
            )

    @property
    def _subscription(self) -> Any:
        return self._coordinator

    async def ask(self, serve: Callable[[], Any], what: str = "") -> Any:
        return await self._cluster.ask(self.process, serve, what=what)

    async def start(self) -> None:
        await self.ask(lambda: None)

    async def stop(self) -> None:
        self._closed = True
        if self._coordinator is not None:
            await self._coordinator.close()
        self._watch(())
        self._wake()

    # -- positions --------------------------------------------------------------------------------------------------

    def subscribe(self, topics: list[str], listener: Any) -> None:
        assert self._coordinator is not None
        self._coordinator.subscribe(topics, listener)

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        self._watch(partitions)
        self._positions = dict.fromkeys(partitions)
        self._paused.clear()
        self._cold = True
        self._wake()

    def assignment(self) -> set[TopicPartition]:
        return set(self._positions)

    def seek(self, where: TopicPartition, offset: int) -> None:
        if where not in self._positions:
            raise ValueError(f"{where} is not assigned")
        self._positions[where] = offset
        self._wake()

    def pause(self, *partitions: TopicPartition) -> None:
        self._paused.update(partitions)

    def resume(self, *partitions: TopicPartition) -> None:
        self._paused.difference_update(partitions)
        self._wake()

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        return {where.partition for where in self._cluster.partitions if where.topic == topic} or None

    def _watch(self, partitions: Iterable[TopicPartition]) -> None:
        for where in self._positions:
            self._cluster.watchers.get(where, {}).pop(self, None)
        for where in partitions:
            self._cluster.watchers.setdefault(where, {})[self] = None

    # -- records ----------------------------------------------------------------------------------------------------

    async def getmany(
        self, *partitions: TopicPartition, timeout_ms: int = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[Record]]:
        loop = self._cluster.loop
        deadline = loop.time() + timeout_ms / 1000
        if self._cold:
            self._cold = False
            await asyncio.sleep(self._cluster.latency())
        while not self._closed:
            if self._coordinator is not None:
                await self._coordinator.check()
            found = self._collect(partitions or tuple(self._positions), max_records or 500)
            if found or self._closed or loop.time() >= deadline:
                return found
            arrival = self._arrival = loop.create_future()
            timer = loop.call_at(deadline, self._wake)
            try:
                await arrival
            finally:
                timer.cancel()
        return {}

    def arrived(self, where: TopicPartition) -> None:
        """A record has come."""
        if self._arrival is not None and where in self._positions:
            self._cluster.loop.inside(self.process, self._cluster.latency(), self._wake)

    def _wake(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)
        self._arrival = None

    def _collect(self, partitions: Iterable[TopicPartition], most: int) -> dict[TopicPartition, list[Record]]:
        found: dict[TopicPartition, list[Record]] = {}
        if self.process.cut:
            return found
        for where in partitions:
            if where not in self._positions or where in self._paused:
                continue
            position = self._position(where)
            records = self._cluster.partitions[where].read(position, most, self._shown(where))
            if records:
                found[where] = records
                self._positions[where] = records[-1].offset + 1
                self._cold = True
                most -= len(records)
                if most <= 0:
                    break
        return found

    def _position(self, where: TopicPartition) -> int:
        position = self._positions[where]
        try:
            if position is not None:
                self._cluster.check_position(where, position)
                return position
            if self._reset == "none":
                raise OffsetOutOfRangeError({where: -1})
        except OffsetOutOfRangeError:
            if self._reset == "none":
                raise
        self._positions[where] = begin = self._cluster.partitions[where].begin
        return begin

    def _shown(self, where: TopicPartition) -> int:
        """The end of the log as fetches see it."""
        cluster, now = self._cluster, self._cluster.loop.time()
        until, end = self._stalled.get(where, (0.0, 0))
        if until <= now:
            end = cluster.partitions[where].end
            if cluster.happens(cluster.trouble.fetch_stalls):
                until = now + 2 * cluster.rng.random()
                self._stalled[where] = until, end
                cluster.loop.inside(self.process, until - now, self._wake)
        return end

    # -- questions --------------------------------------------------------------------------------------------------

    async def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        log = self._cluster.partitions
        found: dict[TopicPartition, int] = await self.ask(lambda: {where: log[where].begin for where in partitions})
        return found

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        log = self._cluster.partitions
        found: dict[TopicPartition, int] = await self.ask(lambda: {where: log[where].end for where in partitions})
        return found

    async def offsets_for_times(
        self, times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        def serve() -> dict[TopicPartition, OffsetAndTimestamp | None]:
            offsets = {where: self._cluster.time_offset(where, ms) for where, ms in times.items()}
            return {w: None if o is None else OffsetAndTimestamp(o, times[w]) for w, o in offsets.items()}

        found: dict[TopicPartition, OffsetAndTimestamp | None] = await self.ask(serve)
        return found
