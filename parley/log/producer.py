"""Sending, so that an acknowledgement means: in the log, on all in-sync replicas, once.

An idempotent producer never recovers on a partition after one of its batches has expired, while its other partitions
stay fine (measured against aiokafka 0.14 and Kafka 4.4). So a partition whose send failed moves to a fresh producer:
`Producer` keeps generations of aiokafka producers and remembers, for each partition, the oldest one that may still be
used. One that no partition uses any more is stopped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError, MessageSizeTooLargeError, UnknownTopicOrPartitionError
from aiokafka.structs import RecordMetadata

from parley.errors import ParleyError
from parley.log.partitions import partition_of
from parley.settings import KafkaSettings
from schemas.wire import Headers

log = logging.getLogger(__name__)


class TopicUnknown(ParleyError):
    """log_unavailable: for the whole request timeout no broker has known the topic. Nothing was handed over."""

    def __init__(self, where: str) -> None:
        super().__init__("log_unavailable", f"no broker knows {where}")


class Producer:
    """A process's way into the log. Sends of one partition keep their order until one fails.

    aiokafka tries for as long as the brokers that it knows are away. Roles wait for them; people do not: with
    `patience_s`, `send` waits so long, and while a partition owes an answer its next sends are refused at once.
    """

    def __init__(
        self, settings: KafkaSettings, name: str, *, linger_ms: int | None = None, patience_s: float | None = None
    ) -> None:
        self._settings = settings
        self._name = name
        self._linger_ms = settings.linger_ms if linger_ms is None else linger_ms
        self._generations: dict[int, AIOKafkaProducer] = {}
        """Those that may be used: the first, the newest, and any between that a partition still uses."""
        self._newest = -1
        self._retiring: set[asyncio.Task[None]] = set()
        self._from: dict[TopicPartition, int] = {}
        self._renewing = asyncio.Lock()
        self._patience_s = patience_s
        self._overdue: dict[TopicPartition, asyncio.Future[RecordMetadata]] = {}

    async def start(self) -> None:
        """Connect.

        Raises:
            ParleyError: log_unavailable.
        """
        await self._renew(0)

    async def stop(self) -> None:
        """Send what is buffered, then disconnect."""
        stopping = (producer.stop() for producer in self._generations.values())
        await asyncio.gather(*stopping, *self._retiring, return_exceptions=True)

    async def send(
        self, topic: str, value: bytes | None, *, key: bytes | None, partition: int, headers: Headers = ()
    ) -> int:
        """Send and wait: the offset of the record, on all in-sync replicas.

        Raises:
            ParleyError: log_unavailable: whether the record is or will be in the log is not known;
                request_too_large: it is not.
        """
        where = TopicPartition(topic, partition)
        if (before := self._overdue.get(where)) is not None and not before.done():
            raise ParleyError("log_unavailable", f"{topic}-{partition} acknowledges nothing")
        future = await self.post(topic, value, key=key, partition=partition, headers=headers)
        try:
            async with asyncio.timeout(self._patience_s):
                return await self.acknowledged(future)
        except TimeoutError:
            self._overdue[where] = future
            raise ParleyError("log_unavailable", f"{topic}-{partition} has not acknowledged a record yet") from None

    async def send_keyed(self, topic: str, value: bytes, *, key: bytes, count: int, headers: Headers = ()) -> int:
        """`send` to the key's partition of a topic that has `count` partitions."""
        return await self.send(topic, value, key=key, partition=partition_of(key, count), headers=headers)

    def generation(self, topic: str, partition: int) -> int:
        """Which producer the partition's next record goes to. Records of one keep their order, those of two do not."""
        return self._from.get(TopicPartition(topic, partition), 0)

    async def post(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None,
        partition: int,
        headers: Headers = (),
        on_done: Callable[[asyncio.Future[RecordMetadata]], None] | None = None,
    ) -> asyncio.Future[RecordMetadata]:
        """Hand a record over; the future tells what became of it. Give it to `acknowledged`, or look at it later.

        Waits only while the buffer for the partition is full or its leader is unknown.

        Raises:
            ParleyError: as `send`.
        """
        where = TopicPartition(topic, partition)
        generation = self.generation(topic, partition)
        if generation not in self._generations:
            await self._renew(generation)
        try:
            future: asyncio.Future[RecordMetadata] = await self._generations[generation].send(
                topic, value, key=key, partition=partition, headers=list(headers)
            )
        except MessageSizeTooLargeError:
            raise ParleyError("request_too_large", f"a record for {topic} is larger than the log accepts") from None
        except UnknownTopicOrPartitionError as error:  # nothing was handed over: the producer is as good as before
            raise TopicUnknown(f"{topic}-{partition}") from error
        except (KafkaError, OSError, AssertionError) as error:
            self._abandon(where, generation)
            raise ParleyError("log_unavailable", f"could not send to {topic}-{partition}: {error!r}") from error
        future.add_done_callback(lambda done: self._watch(where, generation, done))
        if on_done is not None:
            future.add_done_callback(on_done)
        return future

    async def acknowledged(self, future: asyncio.Future[RecordMetadata]) -> int:
        """The offset under which a posted record is in the log.

        Raises:
            ParleyError: log_unavailable. An acknowledgement without an offset counts as a failure.
        """
        try:
            # Whoever waits may be cancelled; the record is on its way all the same.
            metadata = await asyncio.shield(future)
        except MessageSizeTooLargeError:  # by the broker's own limit
            raise ParleyError("request_too_large", "a record is larger than its topic accepts") from None
        except (KafkaError, OSError) as error:
            raise ParleyError("log_unavailable", f"a record was not acknowledged: {error!r}") from error
        return offset_of(metadata)

    def _watch(self, where: TopicPartition, generation: int, done: asyncio.Future[RecordMetadata]) -> None:
        if done.cancelled() or done.exception() is not None or done.result().offset < 0:
            self._abandon(where, generation)

    def _abandon(self, where: TopicPartition, generation: int) -> None:
        if self._from.get(where, 0) <= generation:
            log.warning("sends to %s-%d move to a fresh producer", where.topic, where.partition)
            self._from[where] = max(generation + 1, self._newest)

    async def _renew(self, wanted: int) -> None:
        """Have a generation; `wanted` is at most the next one, since only generations that were used are abandoned."""
        try:
            await self._next_generation(wanted)
        except (KafkaError, OSError) as error:
            raise ParleyError("log_unavailable", f"no broker answers at {self._settings.bootstrap}") from error

    async def _next_generation(self, wanted: int) -> None:
        async with self._renewing:
            if wanted <= self._newest:
                return
            producer = AIOKafkaProducer(
                bootstrap_servers=self._settings.bootstrap,
                client_id=f"{self._name}-{wanted}",
                acks="all",
                enable_idempotence=True,
                linger_ms=self._linger_ms,
                max_request_size=self._settings.max_request_size,
                request_timeout_ms=self._settings.request_timeout_ms,
                retry_backoff_ms=self._settings.retry_backoff_ms,
            )
            try:
                await producer.start()
            except BaseException:
                await producer.stop()
                raise
            self._generations[wanted], self._newest = producer, wanted
            self._retire()

    def _retire(self) -> None:
        """An outage may use up one every few seconds, and each keeps its connections."""
        for generation in self._generations.keys() - {0, self._newest, *self._from.values()}:
            stopping = asyncio.create_task(self._generations.pop(generation).stop(), name="retire")
            self._retiring.add(stopping)
            stopping.add_done_callback(self._retired)

    def _retired(self, stopping: asyncio.Task[None]) -> None:
        self._retiring.discard(stopping)
        if not stopping.cancelled() and (error := stopping.exception()) is not None:
            log.info("a producer that nobody uses did not end well: %r", error)


def offset_of(metadata: RecordMetadata) -> int:
    """The offset in an acknowledgement.

    Raises:
        ParleyError: log_unavailable: it has none.
    """
    if metadata.offset < 0:
        raise ParleyError("log_unavailable", "a record was acknowledged without an offset")
    return int(metadata.offset)
