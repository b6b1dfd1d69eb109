"""Parts of many partitions, read once and bounded, outside of any group: what operators' tools look at.

Offsets may have holes (compaction, transaction markers), so a part is done when the reader's position has passed its
end, not when a record with the last offset has come.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Protocol, TypeAlias

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from parley.errors import ParleyError
from parley.log.admin import unreachable
from parley.log.ranges import Record, stopped
from parley.settings import KafkaSettings

Span: TypeAlias = tuple[int, int]
"""(first offset, the offset after the last)."""

STALLED_S = 15.0
"""A part that gives nothing for so long has no leader: say so instead of waiting for it."""
FETCH_WAIT_MS = 50
"""What is asked for is there already; only holes at an end make a fetch wait."""


class Source(Protocol):
    """What operators' tools read from: the brokers' log, or an archive of it. Failures are ParleyErrors."""

    missing: str
    """What is wrong with a topic that does not exist."""

    async def existing(self, topics: Iterable[str]) -> dict[str, int]:
        """Those of these topics that exist, with their numbers of partitions."""
        ...

    async def bounds(self, wheres: Iterable[TopicPartition]) -> dict[TopicPartition, Span]:
        """Of each partition: its oldest offset, and the one that its next record will have. Topics must exist."""
        ...

    async def at_time(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """Of each partition: the offset of the first record appended at or after its time (ms); None: there is none."""
        ...

    async def read(self, spans: Mapping[TopicPartition, Span], handle: Callable[[Record], bool | None]) -> None:
        """Hand the records of these spans to `handle`, each partition's in order. True: enough of this partition."""
        ...


class Spans:
    """A reader for one caller. Every failure is a ParleyError log_unavailable."""

    missing = "does not exist (`parley topics apply` makes it)"

    def __init__(self, consumer: AIOKafkaConsumer, bootstrap: str) -> None:
        self._consumer = consumer
        self._bootstrap = bootstrap

    async def existing(self, topics: Iterable[str]) -> dict[str, int]:
        """Those of these topics that exist, with their numbers of partitions."""
        try:
            # What aiokafka's own `topics()` asks for, with the partitions, which that leaves out.
            cluster = await self._consumer._client.fetch_all_metadata()
        except KafkaError as error:
            raise unreachable(self._bootstrap, error) from error
        counts = {topic: len(cluster.partitions_for_topic(topic) or ()) for topic in topics}
        return {topic: count for topic, count in counts.items() if count}

    async def bounds(self, wheres: Iterable[TopicPartition]) -> dict[TopicPartition, Span]:
        """Of each partition: its oldest offset, and the one that its next record will have. Topics must exist."""
        wheres = list(wheres)
        if not wheres:
            return {}
        try:
            begins = await self._consumer.beginning_offsets(wheres)
            ends = await self._consumer.end_offsets(wheres)
        except KafkaError as error:
            raise unreachable(self._bootstrap, error) from error
        return {where: (int(begins[where]), int(ends[where])) for where in wheres}

    async def at_time(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """Of each partition: the offset of the first record appended at or after its time (ms); None: there is none."""
        if not times:
            return {}
        try:
            found = await self._consumer.offsets_for_times({where: max(0, ms) for where, ms in times.items()})
        except KafkaError as error:
            raise unreachable(self._bootstrap, error) from error
        return {where: None if found[where] is None else int(found[where].offset) for where in times}

    async def read(self, spans: Mapping[TopicPartition, Span], handle: Callable[[Record], bool | None]) -> None:
        """Hand the records of these spans to `handle`, each partition's in order. True: enough of this partition.

        Where retention has passed the first offset it begins with what is left.
        """
        waiting = {where: end for where, (start, end) in spans.items() if start < end}
        if not waiting:
            return
        loop = asyncio.get_running_loop()
        try:
            self._consumer.assign(list(waiting))
            for where in waiting:
                self._consumer.seek(where, spans[where][0])
            deadline = loop.time() + STALLED_S
            while waiting:
                batches = await self._consumer.getmany(timeout_ms=200, max_records=1_000)
                done = {where for where, records in batches.items() if self._hand_over(where, records, waiting, handle)}
                for where in waiting:
                    if where not in done and await self._consumer.position(where) >= waiting[where]:
                        done.add(where)
                for where in done:
                    waiting.pop(where, None)
                self._consumer.pause(*done)
                if batches or done:
                    deadline = loop.time() + STALLED_S
                elif loop.time() > deadline:
                    names = ", ".join(f"{where.topic}-{where.partition}" for where in list(waiting)[:5])
                    raise ParleyError("log_unavailable", f"nothing comes from {names}: is there a leader?")
        except KafkaError as error:
            raise unreachable(self._bootstrap, error) from error

    async def first(
        self, spans: Mapping[TopicPartition, Span], wanted: Callable[[Record], bool] = lambda record: True
    ) -> dict[TopicPartition, Record]:
        """The first record of each span that is wanted, where there is one."""
        found: dict[TopicPartition, Record] = {}

        def look(record: Record) -> bool:
            if wanted(record):
                found[TopicPartition(record.topic, record.partition)] = record
                return True
            return False

        await self.read(spans, look)
        return found

    @staticmethod
    def _hand_over(
        where: TopicPartition,
        records: list[Record],
        waiting: Mapping[TopicPartition, int],
        handle: Callable[[Record], bool | None],
    ) -> bool:
        """True: the partition needs no more."""
        end = waiting.get(where)
        return end is None or any(record.offset >= end or handle(record) for record in records)


@asynccontextmanager
async def open_spans(settings: KafkaSettings, name: str) -> AsyncIterator[Spans]:
    """A reader.

    Raises:
        ParleyError: log_unavailable: no broker answers.
    """
    consumer = AIOKafkaConsumer(
        bootstrap_servers=settings.bootstrap,
        client_id=name,
        group_id=None,
        enable_auto_commit=False,
        # Retention may pass a part while it is being read: go on with what is left.
        auto_offset_reset="earliest",
        fetch_max_wait_ms=FETCH_WAIT_MS,
        request_timeout_ms=settings.request_timeout_ms,
        retry_backoff_ms=settings.retry_backoff_ms,
    )
    try:
        await consumer.start()
    except (KafkaError, OSError) as error:
        await consumer.stop()
        raise unreachable(settings.bootstrap, error) from error
    try:
        yield Spans(consumer, settings.bootstrap)
    finally:
        await stopped(consumer)
