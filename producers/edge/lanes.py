"""The shared reader of this edge's lanes: one consumer without a group, one loop, every record to its feed.

Assigned once: `assign()` on a running consumer would reset positions and drop everybody's prefetched records. An
edge's lanes are rendezvous-hashed from its instance id, so that edges spread over the lanes; overlap only costs reads.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Sequence

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError, OffsetOutOfRangeError

from parley.errors import ParleyError
from parley.log.ranges import Record, stopped
from parley.settings import KafkaSettings
from parley.topics import TOKENS
from producers.edge.feeds import Feed, Feeds

log = logging.getLogger(__name__)

LANES_PER_EDGE = 4
"""Enough that a lane without a leader leaves others; few, since every edge reads its lanes whole."""
POLL_MS = 1_000


def lanes_of(instance: str, lanes: int, count: int = LANES_PER_EDGE) -> tuple[int, ...]:
    """The lanes of an edge: those of the greatest hashes with its id (rendezvous hashing)."""

    def weight(lane: int) -> bytes:
        return hashlib.sha256(f"{instance}/{lane}".encode()).digest()

    return tuple(sorted(range(lanes), key=weight, reverse=True)[:count])


class LaneReader:
    """Reads the lanes from the moment it starts, for as long as the process lives."""

    def __init__(self, settings: KafkaSettings, lanes: Sequence[int], feeds: Feeds) -> None:
        self._settings = settings
        self._partitions = [TopicPartition(TOKENS, lane) for lane in lanes]
        self._feeds = feeds
        self._positions: dict[int, int] = {}
        self._turn = 0
        self._consumer: AIOKafkaConsumer | None = None
        self._loop: asyncio.Task[None] | None = None
        self._stopping = False

    @property
    def ready(self) -> bool:
        """The lanes are being read."""
        return self._loop is not None and not self._loop.done()

    def next_lane(self) -> tuple[int, int]:
        """(lane, offset): the lane for the next turn, and a lower bound of where its first record will be.

        The feed must be open before the turn's prompt is sent: what is read for nobody is skipped.

        Raises:
            ParleyError: log_unavailable: no lane is being read.
        """
        if not self.ready:
            raise ParleyError("log_unavailable", "The token lanes can't be read at the moment.")
        lane = self._partitions[self._turn % len(self._partitions)].partition
        self._turn += 1
        return lane, self._positions[lane]

    async def start(self) -> None:
        """Go to the lanes' ends.

        Raises:
            ParleyError: log_unavailable: no broker answers, or the topic of the lanes does not exist.
        """
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self._settings.bootstrap,
            client_id="edge-lanes",
            group_id=None,
            auto_offset_reset="none",
            enable_auto_commit=False,
            fetch_max_wait_ms=self._settings.fetch_max_wait_ms,
            request_timeout_ms=self._settings.request_timeout_ms,
            retry_backoff_ms=self._settings.retry_backoff_ms,
        )
        try:
            await consumer.start()
            ends = await consumer.end_offsets(self._partitions)
        except (KafkaError, OSError) as error:
            await stopped(consumer)
            raise ParleyError("log_unavailable", f"the lanes of {TOKENS} can't be read: {error!r}") from error
        consumer.assign(self._partitions)
        for where, end in ends.items():
            consumer.seek(where, end)
            self._positions[where.partition] = end
        self._consumer = consumer
        self._loop = asyncio.create_task(self._read(consumer), name="edge-lanes")

    async def stop(self) -> None:
        """Read no more."""
        self._stopping = True
        if self._consumer is not None:
            await stopped(self._consumer)
        if self._loop is not None:
            await asyncio.gather(self._loop, return_exceptions=True)

    async def _read(self, consumer: AIOKafkaConsumer) -> None:
        while not self._stopping:
            try:
                batches = await self._poll(consumer)
            except KafkaError as error:
                if self._stopping:
                    return
                log.warning("reading the lanes: %r", error)
                await asyncio.sleep(self._settings.retry_backoff_ms / 1000)
                continue
            touched: dict[bytes, Feed] = {}
            for where, records in batches.items():
                for record in records:
                    feed = self._feeds.by_key(record.key)
                    if feed is not None:
                        _absorb(feed, record)
                        touched[record.key] = feed
                self._positions[where.partition] = records[-1].offset + 1
            for feed in touched.values():
                feed.notify()

    async def _poll(self, consumer: AIOKafkaConsumer) -> dict[TopicPartition, list[Record]]:
        try:
            batches: dict[TopicPartition, list[Record]] = await consumer.getmany(timeout_ms=POLL_MS)
            return batches
        except OffsetOutOfRangeError as error:
            await self._skip(consumer, list(error.args[0]))  # if brokers don't answer, the next poll says it again
            return {}

    async def _skip(self, consumer: AIOKafkaConsumer, gone: list[TopicPartition]) -> None:
        """The log no longer holds what comes next: go to the end; whoever waited there resumes from the store."""
        for where, end in (await consumer.end_offsets(gone)).items():
            log.error("lost the place in %s-%d: going on at its end", where.topic, where.partition)
            consumer.seek(where, end)
            self._positions[where.partition] = end
            for feed in self._feeds.of_partition(where.partition):
                feed.fail(ParleyError("log_unavailable", "The stream was interrupted; resume it."))


def _absorb(feed: Feed, record: Record) -> None:
    """A record that can't be folded ends its own feed, not the reading of the lanes for all."""
    try:
        feed.absorb(record.value, record.timestamp)
    except Exception:
        log.exception("reading the route of %s", feed.projection.id)
        feed.fail(ParleyError("internal", "The stream was interrupted; resume it."))
