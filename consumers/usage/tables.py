"""The Faust application: an agent over chat.turns and its two tables.

Which partition a table's record is in. Faust gives a table the partitions of its source, and the process that reads a
partition holds the table's. chat.turns is keyed by session and the numbers are asked for by user, so either the ends
are sent once more through a topic keyed by user, or each partition keeps its own numbers and whoever reads sums them
over the partitions. The second is done here: an end is then counted in the process, order and offsets of the partition
that it was read from, and "once" needs no argument across two topics (tally.py has all of it).

When an offset may be committed. Faust hands changelog records to its producer and commits source offsets without
waiting for each acknowledgement; a producer that fails in between would lose counts. So acknowledging is done here, in
the order of the log (Faust commits past an unacknowledged record if a later one is acknowledged): a record is let go
when its changelog records are acknowledged, and a failed one ends the process. What was not let go is read again.

A process that was paused, and lost its partitions meanwhile, may still send an older `Hour` after its successor's
newer one. Recovery and reports therefore keep, for a key, the record with the greatest `through`. (Only if compaction
had removed the newer one, and nothing more came in that hour, would the older one stand.)

When too many of a partition's records can't be read, it is no bad record but a bad deployment (parley.log.losses): the
partition stands still, which is that none of its records from there on is let go.

Size. The tables are in memory and are rebuilt from their changelogs at the start: an `Hour` for each user, hour and
partition with a turn, for HOURS_KEPT; a `Turn` for each turn, for as long as another end of it may come, and up to
an hour more. At a hundred bytes a record a million active user-hours are 100 MB: then `store` becomes rocksdb://,
which needs no change here. Faust makes no topics (topics.yaml has its changelogs) and no leader topic.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Any, cast

import faust
from aiokafka.structs import ConsumerRecord
from faust.events import Event
from faust.types import EventT, FutureMessage
from prometheus_client import Counter

from consumers.usage.names import APP
from consumers.usage.tally import HOUR_MS, Counted, Hour, count, hour_key, hour_of, parse_hour_key, turn_key
from parley.health import Health
from parley.log.dlq import dead_letter
from parley.log.losses import Losses
from parley.log.producer import Producer
from parley.settings import ProtocolSettings, Settings
from parley.topics import DLQ, TURNS
from schemas.turns import TurnEnded
from schemas.wire import REPLAY_HEADER, BadRecord, decode_turns_event, header

log = logging.getLogger(__name__)

HOURS_KEPT = 400 * 24
"""A year and a month of billing, in hours."""
IN_FLIGHT = 500
"""Records of chat.turns whose changelog records are on their way."""

FETCH_S = 1.1
"""Longer than Faust waits for records in one fetch."""

RECORDS = Counter("parley_usage_records_total", "Records of chat.turns by what became of them", ["outcome"])


def turn_kept_ms(protocol: ProtocolSettings) -> float:
    """How long after an end another end of the same turn may be appended.

    A request is taken up to max_turn_age after its append time, runs at most until its deadlines, and the orchestrator
    ends what has no end max_turn_age after the turn's deadline.
    """
    seconds = 2 * protocol.max_turn_age_s + protocol.start_deadline_s + protocol.answer_limit_s + protocol.margin_s
    return seconds * 1000


class ConfirmedTable(faust.Table[str, Any]):
    """A table that tells when its changes are in the changelog."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._sent: list[FutureMessage] = []

    def send_changelog(self, *args: Any, **kwargs: Any) -> FutureMessage:
        future = super().send_changelog(*args, **kwargs)
        self._sent.append(future)
        return future

    def take_sent(self) -> list[FutureMessage]:
        """The changes since the last call, each a future of its acknowledgement."""
        sent, self._sent = self._sent, []
        return sent

    def apply_changelog_batch(self, batch: Iterable[EventT[Any]]) -> None:
        """Recovery: of an hour, the record with the greatest `through` (see above)."""
        if self.name == "hours":
            newest: dict[Any, int] = {}
            batch = [event for event in batch if self._is_newer(event, newest)]
        super().apply_changelog_batch(batch)

    def _is_newer(self, event: EventT[Any], newest: dict[Any, int]) -> bool:
        value: Any = event.value
        if value is None:
            newest.pop(event.key, None)
            return True
        held = self.data.get(event.key)
        through = Hour.from_json(value).through
        if through < newest.get(event.key, -1 if held is None else Hour.from_json(held).through):
            return False
        newest[event.key] = through
        return True


@dataclass
class UsageTables:
    """The application with its tables."""

    app: faust.App
    hours: ConfirmedTable
    turns: ConfirmedTable


def make_app(settings: Settings, producer: Producer, health: Health, data: str) -> faust.App:
    """The application, ready to be started in the running event loop.

    `producer` is for the dead-letter queue, `data` a folder for what Faust insists on keeping in files (nothing), and
    `health` is told of partitions that stand still.
    """
    kafka = settings.kafka
    app = faust.App(
        APP,
        broker=[f"kafka://{address}" for address in kafka.bootstrap.split(",")],
        Table=ConfirmedTable,
        autodiscover=False,
        broker_client_id=APP,
        broker_commit_interval=1.0,
        broker_heartbeat_interval=kafka.heartbeat_interval_ms / 1000,
        broker_max_poll_interval=kafka.max_poll_interval_ms / 1000,
        broker_rebalance_timeout=kafka.rebalance_timeout_ms / 1000,
        broker_request_timeout=kafka.request_timeout_ms / 1000,
        broker_session_timeout=kafka.session_timeout_ms / 1000,
        consumer_auto_offset_reset="earliest",
        consumer_group_instance_id=settings.instance,
        datadir=data,
        producer_acks=-1,
        producer_request_timeout=kafka.request_timeout_ms / 1000,
        store="memory://",
        stream_recovery_delay=0.0,
        stream_wait_empty=False,
        table_standby_replicas=0,
        topic_allow_declare=False,
        topic_disable_leader=True,
        topic_partitions=settings.topics.topics[TURNS].partitions,
        web_enabled=False,
    )
    hours, turns = (cast(ConfirmedTable, app.Table(name, key_type=str)) for name in ("hours", "turns"))
    tables = UsageTables(app, hours, turns)
    counting = Counting(settings, tables, producer, health)
    source = app.topic(TURNS, key_type=bytes, value_type=bytes, key_serializer="raw", value_serializer="raw")
    app.agent(source, name="usage")(counting.run)
    app.task(counting.confirm)
    app.on_rebalance_complete.connect(_seek_unfetched)
    return app


async def _seek_unfetched(app: Any, /, *_: Any, **__: Any) -> None:
    """Fetch nothing while Faust, its tables restored, seeks the committed offsets and empties the streams' buffers.

    Left to itself it fetches meanwhile. What comes between is then lost in the buffers, or taken for read already
    (faust-streaming's issue 596); and of a fetch that was under way while it read changelogs alone, what came of other
    partitions is dropped. It seeks back, but aiokafka's `seek_to_committed` does not where nothing was committed yet,
    or offset 0: those records would not be counted before the next start. So that is done here.
    """
    app.consumer.stop_flow()
    app.flow_control.suspend()
    await asyncio.sleep(FETCH_S)
    committed = await app.consumer.seek_to_committed()
    fresh = [where for where, offset in committed.items() if not offset and where.topic == TURNS]
    if fresh:
        await app.consumer.seek_wait(await app.consumer.earliest_offsets(*fresh))


class Counting:
    """The agent: one record of chat.turns after the other."""

    def __init__(self, settings: Settings, tables: UsageTables, producer: Producer, health: Health) -> None:
        self._settings = settings
        self._tables = tables
        self._producer = producer
        self._health = health
        self._kept_ms = turn_kept_ms(settings.protocol)
        self._sweep_after: dict[int, int] = {}
        self._confirmed_ms: dict[int, int] = {}
        self._losses: dict[int, Losses] = defaultdict(Losses)
        self._still: dict[int, int] = {}
        """Partitions that stand still until a restart, and the offset that they stand at."""
        self._unconfirmed: asyncio.Queue[tuple[Event, list[FutureMessage]]] = asyncio.Queue(IN_FLIGHT)

    async def run(self, stream: Any) -> AsyncIterator[None]:
        """Faust's agent; yields nothing."""
        async for event in stream.noack().events():
            if not await self._take(event):
                continue
            hours, turns = self._tables.hours.take_sent(), self._tables.turns.take_sent()
            await self._unconfirmed.put((event, [*hours, *turns]))
        return
        yield  # makes it the generator that Faust wants

    async def confirm(self) -> None:
        """Let records go in the order of the log, each when its changes are in the changelog."""
        while True:
            event, sent = await self._unconfirmed.get()
            try:
                await asyncio.gather(*sent)
            except Exception as error:
                log.error("a change of the usage tables was not acknowledged: %r", error)
                await self._tables.app.crash(error)
                return
            self._confirmed_ms[event.message.partition] = int(event.message.timestamp * 1000)
            event.ack()

    async def _take(self, event: Event) -> bool:
        """Count it, or give it up. False: its partition stands still there."""
        message = event.message
        still = self._still.get(message.partition)
        if still is not None and message.offset >= still:
            return False
        headers = _headers(message.headers)
        if header(headers, REPLAY_HEADER) is not None:
            RECORDS.labels("replay").inc()
            return True
        try:
            taken = decode_turns_event(message.value)
        except BadRecord as error:
            return await self._bury(message, headers, error)
        if isinstance(taken, TurnEnded):
            self._count(taken, message.partition, message.offset, int(message.timestamp * 1000))
            RECORDS.labels("counted").inc()
        else:
            RECORDS.labels("other").inc()
        self._losses[message.partition].kept()
        return True

    def _count(self, end: TurnEnded, partition: int, offset: int, at_ms: int) -> None:
        hours, turns = self._tables.hours, self._tables.turns
        hour_at, turn_at = hour_key(partition, end.user, hour_of(end.response)), turn_key(partition, end.response)
        held, remembered = hours.get(hour_at), turns.get(turn_at)
        hour_before = Hour() if held is None else Hour.from_json(held)
        turn_before = tuple(Counted.from_json(one) for one in remembered or ())
        hour, turn = count(hour_before, turn_before, Counted.of(end, offset, at_ms))
        if hour != hour_before:
            hours[hour_at] = hour.json()
        if turn != turn_before:
            turns[turn_at] = [one.json() for one in turn]
        if at_ms >= self._sweep_after.get(partition, 0):
            self._sweep(partition)
            self._sweep_after[partition] = at_ms + HOUR_MS

    def _sweep(self, partition: int) -> None:
        """Forget what is too old; only in a record of the partition, since its changelog is this one.

        The time is the log's, at the newest record that was let go: a successor reads on from there, and must find
        every turn that may have another end after it.
        """
        now_ms = self._confirmed_ms.get(partition, 0)
        prefix = f"{partition}:"
        turns, hours = self._tables.turns, self._tables.hours
        for key in [key for key in turns if key.startswith(prefix)]:
            if Counted.from_json(turns[key][-1]).at_ms + self._kept_ms < now_ms:
                del turns[key]
        oldest = now_ms // HOUR_MS - HOURS_KEPT
        for key in [key for key in hours if key.startswith(prefix)]:
            if parse_hour_key(key)[2] < oldest:
                del hours[key]

    async def _bury(self, message: Any, headers: tuple[tuple[str, bytes], ...], error: BadRecord) -> bool:
        """Nothing of a turn is lost with it: the orchestrator answers for the turn's end, not its views."""
        log.warning("%s-%d@%d: %s", message.topic, message.partition, message.offset, error)
        losses = self._losses[message.partition]
        if losses.too_many:
            self._stand_still(message.partition, message.offset)
            return False
        record: ConsumerRecord[bytes | None, bytes | None] = ConsumerRecord(
            topic=message.topic,
            partition=message.partition,
            offset=message.offset,
            timestamp=int(message.timestamp * 1000),
            timestamp_type=message.timestamp_type,
            key=message.key,
            value=message.value,
            checksum=None,
            serialized_key_size=-1,
            serialized_value_size=-1,
            headers=headers,
        )
        partitions = self._settings.topics.topics[DLQ].partitions
        await dead_letter(self._producer, record, group=APP, error=error, partitions=partitions)
        RECORDS.labels("dead").inc()
        losses.lost()
        return True

    def _stand_still(self, partition: int, offset: int) -> None:
        name = f"{TURNS}-{partition}"
        log.error(
            "%s stands still at offset %d: too many records can't be counted; see chat.dlq, then restart", name, offset
        )
        self._still[partition] = offset
        self._health.trouble(name, f"{name} stands still: too many of its records went to the dead letters")


def _headers(given: Any) -> tuple[tuple[str, bytes], ...]:
    pairs = given.items() if isinstance(given, dict) else given or ()
    return tuple((name, value) for name, value in pairs)
