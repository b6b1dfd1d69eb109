"""A consumer that keeps a store in step with the log.

A view holds no state and takes no partitions over: its writes are idempotent, so the group's commits need no fence. It
writes a batch, then commits what is durably written. While its store is away it waits, forever if need be: partitions
are paused, polls go on so that the member keeps its place, nothing is dropped and nothing is passed over. A record that
can't be read, or that the store can't take whenever it is asked, goes to the dead-letter queue as it was; when too many
of a partition do, something else is wrong, and the partition stands still rather than be emptied into that queue.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import Counter as Counted
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import KafkaError
from prometheus_client import Counter, Gauge

from parley.errors import ParleyError
from parley.health import Health
from parley.log.dlq import dead_letter
from parley.log.figures import MEMBERS, REBALANCES, PartitionFigures, Taking, log_end
from parley.log.losses import Losses
from parley.log.members import member_options
from parley.log.producer import Producer
from parley.log.ranges import Record
from parley.retrying import pause_s
from parley.settings import Settings
from parley.topics import DLQ
from schemas.base import Millis
from schemas.wire import REPLAY_HEADER, BadRecord, header

log = logging.getLogger(__name__)

E_ = TypeVar("E_")

POLL_MS = 200
"""How long one poll waits for records: bounds how fast the loop notices that it shall end."""
FETCH_BYTES = 65_536
FETCH_WAIT_MS = 50
"""A view may come a moment later, so many records share a fetch, a write and a commit; who reloads must not notice."""
BATCH = 500
"""Records of one poll: what a restart may write again."""
PATIENCE_S = 2.0
"""A batch that takes longer has found its store slow or away: from then on polls keep the membership alive."""
DRAIN_S = 5.0
"""How long a batch may go on once the process shall end. What is not committed by then is written again."""
COMMIT_S = 5.0
"""How long a commit may take: aiokafka alone would try for as long as no coordinator answers."""

UNFORESEEN = 5
"""Attempts with an error that is none of the taxonomy before the record that causes it is looked for and given up."""
RECORDS = Counter("parley_view_records_total", "Records that a view is done with, by outcome.", ("group", "outcome"))
ATTEMPTS = Counter("parley_view_failed_attempts_total", "Attempts at a batch that the store did not take.", ("group",))
WAITING = Gauge("parley_view_waiting", "1 while a view waits: for its store, or for a restart.", ("group",))


@dataclass(frozen=True, slots=True)
class Entry(Generic[E_]):
    """An event with its place in the log."""

    event: E_
    record: Record

    @property
    def offset(self) -> int:
        """Its offset in its partition."""
        return int(self.record.offset)

    @property
    def appended(self) -> Millis:
        """When the log took it, by the broker's clock."""
        return int(self.record.timestamp)


@dataclass(slots=True)
class _Batch:
    records: list[Record]
    ends: dict[TopicPartition, int]
    """What may be committed once all of it is written."""
    assignment: int
    """Under which it came. Writing it under a later one does no harm; its commit might take another member's back."""


class ViewConsumer(ConsumerRebalanceListener, Generic[E_]):  # type: ignore[misc]
    """One member of the group that feeds a store.

    `apply` writes events durably, in the order of their records for each key, and may be asked again for the same ones.
    It raises BadRecord when one of them can never be written, and any other error when the store should be asked again.
    """

    def __init__(
        self,
        settings: Settings,
        group: str,
        topics: Iterable[str],
        decode: Callable[[bytes | None], E_],
        apply: Callable[[Sequence[Entry[E_]]], Awaitable[None]],
        health: Health,
    ) -> None:
        kafka = settings.kafka
        self._settings = settings
        self.name = group
        self._topics = list(topics)
        self._decode = decode
        self._apply = apply
        self._producer = Producer(kafka, f"{group}-dlq")
        self._consumer = AIOKafkaConsumer(
            **member_options(settings, group),
            client_id=settings.instance or group,
            fetch_min_bytes=FETCH_BYTES,
            fetch_max_wait_ms=FETCH_WAIT_MS,
        )
        self._assignment = 0
        self._written: dict[TopicPartition, int] = {}
        """Ends of durably written prefixes that are not committed yet."""
        self._reached: dict[TopicPartition, int] = {}
        """The offset that each partition's next write begins with."""
        self._in_hand: _Batch | None = None
        self._paused = False
        self._backlog: list[_Batch] = []
        self._losses: dict[TopicPartition, Losses] = defaultdict(Losses)
        self._still: dict[TopicPartition, int] = {}
        """Partitions that stand still until a restart, and the offset that they stand at."""
        self.health = health
        """Ready: the store took the last batch, and not too many records went to the dead letters."""

    async def run(self, stop: asyncio.Event) -> None:
        """Feed the store until `stop` is set: after the batch in hand, or without it if its store is away.

        Raises:
            ParleyError: log_unavailable: no broker answers at the start.
        """
        try:
            await self._start()
            while not stop.is_set():
                self.health.beat()
                batch = self._backlog.pop(0) if self._backlog else await self._poll(POLL_MS)
                if batch is not None:
                    await self._see_through(batch, stop)
                await self._commit()
        finally:
            MEMBERS.discard(self)
            self.health.unready("ending")
            # aiokafka's own cancellations come out of `stop` now and then: they must not hide why this ended.
            stops = (asyncio.wait_for(part.stop(), DRAIN_S) for part in (self._consumer, self._producer))
            await asyncio.gather(*stops, return_exceptions=True)

    async def _start(self) -> None:
        try:
            await self._consumer.start()
        except (KafkaError, OSError) as error:
            raise ParleyError("log_unavailable", f"no broker answers at {self._settings.kafka.bootstrap}") from error
        await self._producer.start()
        self._consumer.subscribe(self._topics, listener=self)
        MEMBERS.add(self)
        self.health.ready()

    # -- the loop -----------------------------------------------------------------------------------------------------

    async def _poll(self, timeout_ms: int) -> _Batch | None:
        found = await self._consumer.getmany(timeout_ms=timeout_ms, max_records=BATCH)
        for where in self._still.keys() & found.keys():
            del found[where]
            self._consumer.pause(where)  # again after a reassignment, which forgets it
        records = [record for part in found.values() for record in part]
        if not records:
            return None
        return _Batch(records, {where: part[-1].offset + 1 for where, part in found.items()}, self._assignment)

    async def _see_through(self, batch: _Batch, stop: asyncio.Event) -> None:
        """Write a batch, however long it takes, then commit it."""
        work = asyncio.create_task(self._write(batch.records), name="write")
        ending = asyncio.create_task(stop.wait(), name="ending")
        self._in_hand = batch
        try:
            await asyncio.wait({work, ending}, timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
            while not (work.done() or stop.is_set()):
                # Again before each poll: aiokafka forgets pauses at a reassignment.
                self._consumer.pause(*self._consumer.assignment())
                self._paused = True
                stray = await self._poll(0)
                if stray is not None:
                    self._backlog.append(stray)
                await asyncio.wait({work, ending}, timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                await asyncio.wait({work}, timeout=DRAIN_S)
            if self._paused:
                self._consumer.resume(*(self._consumer.assignment() - self._still.keys()))
            if work.done():
                work.result()
                self._reached |= batch.ends
                if batch.assignment == self._assignment:
                    self._written |= {where: min(end, self._still.get(where, end)) for where, end in batch.ends.items()}
        finally:
            self._in_hand, self._paused = None, False
            for task in (work, ending):
                task.cancel()
            await asyncio.gather(work, ending, return_exceptions=True)

    async def _commit(self) -> None:
        """Commit what is written. If it fails it is tried again after the next poll; at worst some is written again."""
        ends, self._written, assignment = self._written, {}, self._assignment
        if not ends:
            return
        try:
            async with asyncio.timeout(COMMIT_S):
                await self._consumer.commit(ends)
        except (KafkaError, TimeoutError) as error:
            log.info("%s: a commit failed: %r", self.name, error)
            if assignment == self._assignment:
                self._written = ends | self._written

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        """Commits what is written; a batch in hand is finished, but not committed by this member."""
        await self._commit()
        self._assignment += 1
        self._written.clear()
        self._reached.clear()

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        """Nothing to prepare: views hold no state."""
        REBALANCES.labels(self.name).inc()

    # -- writing ------------------------------------------------------------------------------------------------------

    async def _write(self, records: Sequence[Record]) -> None:
        entries: list[Entry[E_]] = []
        for record in records:
            if header(record.headers, REPLAY_HEADER) is not None:
                RECORDS.labels(self.name, "replay").inc()
                continue
            if self._stands(record):
                continue
            try:
                entries.append(Entry(self._decode(record.value), record))
            except BadRecord as error:
                await self._bury(record, error)
        if not entries:
            return
        try:
            await self._until_taken(entries)
        except BadRecord:
            for entry in entries:  # one of them, and only that one, must go
                if self._stands(entry.record):
                    continue
                try:
                    await self._until_taken([entry])
                except BadRecord as error:
                    await self._bury(entry.record, error)

    def _stands(self, record: Record) -> bool:
        """The record is one that its partition stands still at, or behind it."""
        still = self._still.get(_where(record))
        return still is not None and bool(record.offset >= still)

    async def _until_taken(self, entries: Sequence[Entry[E_]]) -> None:
        async def attempt() -> None:
            await self._apply(entries)

        await self._persist(attempt)
        RECORDS.labels(self.name, "applied").inc(len(entries))
        for entry in entries:
            self._losses[_where(entry.record)].kept()

    async def _bury(self, record: Record, error: BadRecord) -> None:
        """Nothing of a turn is lost with it: the orchestrator answers for the turn's end, not its views."""
        log.warning("%s: %s-%d@%d: %s", self.name, record.topic, record.partition, record.offset, error)
        where = _where(record)
        if self._losses[where].too_many:
            self._stand_still(where, record.offset)
            return

        async def attempt() -> None:
            partitions = self._settings.topics.topics[DLQ].partitions
            await dead_letter(self._producer, record, group=self.name, error=error, partitions=partitions)

        try:
            await self._persist(attempt)
        except BadRecord as refused:
            log.error("%s: not even the dead-letter queue takes it: %s", self.name, refused)
        RECORDS.labels(self.name, "dead").inc()
        self._losses[where].lost()

    def _stand_still(self, where: TopicPartition, offset: int) -> None:
        name = f"{where.topic}-{where.partition}"
        log.error(
            "%s: %s stands still at offset %d: too many records can't be kept; see chat.dlq, then restart",
            self.name,
            name,
            offset,
        )
        self._still[where] = offset
        if where in self._consumer.assignment():
            self._consumer.pause(where)
        self.health.trouble(name, f"{name} stands still: too many of its records went to the dead letters")
        WAITING.labels(self.name).set(1)

    async def _persist(self, attempt: Callable[[], Awaitable[None]]) -> None:
        """Try until it succeeds.

        Raises:
            BadRecord: trying again would not help.
        """
        unforeseen = 0
        for failures in itertools.count():
            try:
                await attempt()
            except BadRecord:
                raise
            except ParleyError as error:
                if not error.kind.retryable:
                    raise BadRecord(error.message) from error
                log.warning("%s waits: %s", self.name, error.message)
            except Exception as error:
                log.exception("%s waits: an error that nobody foresaw", self.name)
                unforeseen += 1
                if unforeseen == UNFORESEEN:
                    raise BadRecord(f"{type(error).__name__}, {unforeseen} times") from error
            else:
                self.health.ready()
                WAITING.labels(self.name).set(1 if self._still else 0)
                return
            self.health.unready(f"the store of {self.name} does not take what is written to it")
            WAITING.labels(self.name).set(1)
            ATTEMPTS.labels(self.name).inc()
            await asyncio.sleep(pause_s(failures))

    # -- what it tells ------------------------------------------------------------------------------------------------

    def figures(self) -> list[PartitionFigures]:
        """Of each partition that it has read from, or reads from now."""
        batch = self._in_hand
        hand = batch.records if batch is not None else []
        first: dict[TopicPartition, Record] = {}
        taken = Counted(map(_where, hand))
        for record in hand:
            first.setdefault(_where(record), record)
        found = []
        for where in {**self._reached, **first}:
            taking: Taking = "still" if where in self._still else "paused" if self._paused else "taking"
            oldest = int(first[where].timestamp) if where in first else None
            done = int(first[where].offset) if where in first else self._reached[where]
            end = log_end(self._consumer, where)
            waiting = None if end is None else max(0, end - done - taken[where])
            found.append(PartitionFigures(where, taking, taken[where], oldest, waiting))
        return found


def _where(record: Record) -> TopicPartition:
    return TopicPartition(record.topic, record.partition)
