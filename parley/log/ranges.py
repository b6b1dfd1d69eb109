"""Reading a part of a partition: what a route holds from a turn's start to a fence, or from there on.

Readers are consumers without a group, each used by one caller at a time: `assign()` on a shared consumer would drop
everybody's prefetched records. Started ones are kept for the next caller, so that a read costs a few milliseconds.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any, TypeAlias

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError, OffsetOutOfRangeError
from aiokafka.structs import ConsumerRecord

from parley.errors import ParleyError
from parley.settings import KafkaSettings

Record: TypeAlias = ConsumerRecord[Any, Any]
KEPT = 8
"""Started readers that wait for the next caller."""
QUEUE_S = 0.5
"""How long a range waits for a reader before it starts one of its own."""
FETCH_WAIT_MS = 20
"""A broker answers the requests of a connection one after the other: the next range waits for the last one's fetch."""
APPEARANCE_S = (0.0, 0.05, 0.2)
"""Pauses before asking again for a topic that the brokers don't know."""


class RouteGone(Exception):
    """The log begins after the offset asked for, or the topic does not exist: what is left is not the whole."""


async def stopped(consumer: AIOKafkaConsumer) -> None:
    """Stop a consumer. aiokafka's own cancellations and failures come out of that now and then: they are not ours."""
    await asyncio.gather(consumer.stop(), return_exceptions=True)


class RangeReader:
    """A pool of readers of one process."""

    def __init__(self, settings: KafkaSettings, name: str = "ranges") -> None:
        self._settings = settings
        self._name = name
        self._idle: list[AIOKafkaConsumer] = []
        self._starting: set[asyncio.Task[None]] = set()
        self._closed = False
        self._ranges = asyncio.Semaphore(KEPT)

    async def warm(self) -> None:
        """Start the readers that are kept before they are needed: starting one takes longer than most ranges to read.

        Raises:
            ParleyError: log_unavailable.
        """
        for consumer in [await self._take() for _ in range(KEPT - len(self._idle))]:
            await self._give_back(consumer, reusable=True)

    async def stop(self) -> None:
        """Disconnect the readers that wait; those in use go when they come back."""
        self._closed = True
        for task in tuple(self._starting):
            task.cancel()
        await asyncio.gather(*self._starting, return_exceptions=True)
        idle, self._idle = self._idle, []
        await asyncio.gather(*(stopped(consumer) for consumer in idle))

    async def read(self, topic: str, partition: int, start: int, end: int) -> list[Record]:
        """The records from `start` to `end`, both included. The record at `end` must be in the log.

        Raises:
            RouteGone: see there.
            ParleyError: log_unavailable.
        """
        records: list[Record] = []
        async with self._queueing(), contextlib.aclosing(self.follow(topic, partition, start)) as following:
            async for record in following:
                if record.offset > end:
                    break
                records.append(record)
                if record.offset == end:
                    break
        return records

    @contextlib.asynccontextmanager
    async def _queueing(self) -> AsyncGenerator[None, None]:
        """Who takes over many turns at once waits for readers that are there: starting one takes longer than a read.

        But not long: those before may wait for a broker that is away, and nobody should wait for them.
        """
        queued = False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(QUEUE_S):
                queued = await self._ranges.acquire()
        try:
            yield
        finally:
            if queued:
                self._ranges.release()

    async def follow(self, topic: str, partition: int, start: int) -> AsyncGenerator[Record, None]:
        """The records from `start` on, also those that are yet to come, until the caller stops.

        Raises:
            RouteGone: see there.
            ParleyError: log_unavailable.
        """
        where = TopicPartition(topic, partition)
        consumer = await self._take()
        reusable = True
        try:
            consumer.assign([where])
            consumer.seek(where, start)
            await self._require(consumer, where)
            while True:
                batch = await consumer.getmany(where, timeout_ms=1_000)
                for record in batch.get(where, ()):
                    yield record
        except OffsetOutOfRangeError:
            raise RouteGone(f"{topic}-{partition} no longer holds offset {start}") from None
        except KafkaError as error:
            reusable = False
            raise ParleyError("log_unavailable", f"could not read {topic}-{partition}: {error!r}") from error
        except asyncio.CancelledError:
            reusable = False  # a cancelled poll leaves aiokafka's idle time wrong
            raise
        finally:
            await self._give_back(consumer, reusable)

    async def end_offset(self, topic: str, partition: int) -> int:
        """The offset that the next record will have.

        Raises:
            RouteGone: the topic does not exist.
            ParleyError: log_unavailable.
        """
        where = TopicPartition(topic, partition)
        consumer = await self._take()
        reusable = True
        try:
            await self._require(consumer, where)
            return int((await consumer.end_offsets([where]))[where])
        except KafkaError as error:
            reusable = False  # the leader may be another by now, which a reader that is new finds out at once
            raise ParleyError("log_unavailable", f"could not read {topic}-{partition}: {error!r}") from error
        finally:
            await self._give_back(consumer, reusable)

    async def holds(self, topic: str, partition: int, offset: int) -> bool:
        """The log, as some broker knows it, reaches from `offset` or before it to there or further.

        Raises:
            ParleyError: log_unavailable: no broker answers.
        """
        if topic not in await self.topics():
            return False
        where = TopicPartition(topic, partition)
        consumer = await self._take()
        reusable = True
        try:
            await self._require(consumer, where)
            begin, end = await consumer.beginning_offsets([where]), await consumer.end_offsets([where])
            return bool(begin[where] <= offset <= end[where])
        except RouteGone:
            return False
        except KafkaError as error:
            reusable = False
            raise ParleyError("log_unavailable", f"could not read {topic}-{partition}: {error!r}") from error
        finally:
            await self._give_back(consumer, reusable)

    async def topics(self) -> set[str]:
        """The names of all topics, as the brokers know them now.

        Raises:
            ParleyError: log_unavailable.
        """
        consumer = await self._take()
        try:
            return set(await consumer.topics())
        except KafkaError as error:
            raise ParleyError("log_unavailable", f"could not ask for the topics: {error!r}") from error
        finally:
            await self._give_back(consumer, reusable=True)

    @staticmethod
    async def _require(consumer: AIOKafkaConsumer, where: TopicPartition) -> None:
        """Wait until the reader knows the partition; a topic just made is known to brokers a moment later."""
        for pause in APPEARANCE_S:
            if where.partition in (consumer.partitions_for_topic(where.topic) or ()):
                return
            await asyncio.sleep(pause)
            # aiokafka has no public way to ask for the metadata of one topic.
            await consumer._client.add_topic(where.topic)
            if not await consumer._client.force_metadata_update():
                raise ParleyError("log_unavailable", f"no broker tells of {where.topic}")
        if where.partition not in (consumer.partitions_for_topic(where.topic) or ()):
            raise RouteGone(f"{where.topic}-{where.partition} does not exist")

    async def _take(self) -> AIOKafkaConsumer:
        if self._idle:
            return self._idle.pop()
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self._settings.bootstrap,
            client_id=self._name,
            group_id=None,
            auto_offset_reset="none",
            enable_auto_commit=False,
            fetch_max_wait_ms=FETCH_WAIT_MS,
            request_timeout_ms=self._settings.request_timeout_ms,
            retry_backoff_ms=self._settings.retry_backoff_ms,
        )
        try:
            await consumer.start()
        except (KafkaError, OSError) as error:
            await stopped(consumer)
            raise ParleyError("log_unavailable", f"no broker answers at {self._settings.bootstrap}") from error
        except BaseException:  # cancelled: half a consumer must not be left behind
            await stopped(consumer)
            raise
        return consumer

    async def _give_back(self, consumer: AIOKafkaConsumer, reusable: bool) -> None:
        if reusable and not self._closed and len(self._idle) < KEPT:
            consumer.pause(*consumer.assignment())
            self._idle.append(consumer)
            return
        if not reusable and not self._closed and not self._idle and not self._starting:
            task = asyncio.create_task(self._start_spare())
            self._starting.add(task)
            task.add_done_callback(self._starting.discard)
        await stopped(consumer)

    async def _start_spare(self) -> None:
        """A reader instead of one that could not be kept: the next caller should not wait for its start."""
        with contextlib.suppress(ParleyError):
            spare = await self._take()
            self._idle.append(spare)
