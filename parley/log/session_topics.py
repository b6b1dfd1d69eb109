"""Clearing away token topics of sessions that nobody can resume from any more.

Only `parley topics gc` deletes them (protocol.md, section 6): when the newest record is older than the resume window
and max_turn_age together, no reader may still follow a turn there and no turn may still be running into it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from parley.ids import session_created_ms
from parley.log.admin import unreachable
from parley.settings import KafkaSettings, ProtocolSettings
from parley.topics import SessionTopics

READ_TIMEOUT_S = 15.0


@dataclass(frozen=True, slots=True)
class SessionTopic:
    """A session's token topic and the last time that something happened in it."""

    name: str
    last_ms: int | None
    """Append time of its newest record. Of a topic that holds none: see `last_activity`. None: not known."""

    def idle_s(self, now_ms: int) -> float | None:
        """Seconds since then."""
        return None if self.last_ms is None else (now_ms - self.last_ms) / 1000


def keep_s(protocol: ProtocolSettings) -> float:
    """How long after its newest record a session topic stays."""
    return protocol.resume_window_s + protocol.max_turn_age_s


def expired(found: Sequence[SessionTopic], protocol: ProtocolSettings, now_ms: int) -> list[SessionTopic]:
    """Those that may go. One whose last activity isn't known stays."""
    limit = keep_s(protocol)
    return [topic for topic in found if (idle := topic.idle_s(now_ms)) is not None and idle > limit]


def last_activity(name: str, prefix: str, begin: int, end: int, newest_ms: int | None, kept_ms: int) -> int | None:
    """When something last happened in a topic, from its offsets and its newest record.

    A topic without records was either made for a conversation that has said nothing yet, and counts from the session's
    birth, which its id tells; or retention has taken all that it held (its offsets do not begin at 0), and then its
    newest record is older than `kept_ms`, a moment one retention ago. None when the newest record could not be read or
    the session's id tells no time.
    """
    if newest_ms is not None or end > begin:
        return newest_ms
    if end > 0:
        return kept_ms
    try:
        return session_created_ms(UUID(hex=name.removeprefix(prefix)))
    except ValueError:
        return None


async def survey(settings: KafkaSettings, session_topics: SessionTopics, names: Sequence[str]) -> list[SessionTopic]:
    """The session topics among `names`, with their last activity.

    Raises:
        ParleyError: log_unavailable.
    """
    prefix = session_topics.prefix
    partitions = [TopicPartition(name, 0) for name in sorted(names) if name.startswith(prefix)]
    if not partitions:
        return []
    consumer = AIOKafkaConsumer(
        bootstrap_servers=settings.bootstrap,
        client_id="parley-topics-gc",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        request_timeout_ms=settings.request_timeout_ms,
        max_partition_fetch_bytes=settings.max_request_size,
    )
    try:
        await consumer.start()
        consumer.assign(partitions)
        begins = await consumer.beginning_offsets(partitions)
        ends = await consumer.end_offsets(partitions)
        newest = await _newest(consumer, begins, ends)
    except (KafkaError, OSError) as error:
        raise unreachable(settings.bootstrap, error) from error
    finally:
        await consumer.stop()
    kept_ms = time.time_ns() // 1_000_000 - session_topics.retention_ms
    return [
        SessionTopic(part.topic, last_activity(part.topic, prefix, begins[part], ends[part], newest.get(part), kept_ms))
        for part in partitions
    ]


async def _newest(
    consumer: AIOKafkaConsumer, begins: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """The append time of the last record of each partition that has one; those that can't be read now are left out."""
    waiting = {part for part, end in ends.items() if end > begins[part]}
    for part in ends:
        if part in waiting:
            consumer.seek(part, ends[part] - 1)
        else:
            consumer.pause(part)
    newest: dict[TopicPartition, int] = {}
    deadline = time.monotonic() + READ_TIMEOUT_S
    while waiting and time.monotonic() < deadline:
        for part, records in (await consumer.getmany(timeout_ms=500)).items():
            newest[part] = max(record.timestamp for record in records)
            waiting.discard(part)
            consumer.pause(part)
    return newest
