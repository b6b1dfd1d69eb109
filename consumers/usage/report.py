"""What users used, read from the changelog: it needs Kafka, and neither the usage role nor a database."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

import orjson
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from consumers.usage.names import HOURS_CHANGELOG
from consumers.usage.tally import Hour, parse_hour_key
from parley.errors import ParleyError
from parley.log.admin import unreachable
from parley.settings import Settings

Wanted = Callable[[UUID, int], bool]


@dataclass(frozen=True, slots=True)
class Row:
    """One user's hour, over all partitions."""

    user: UUID
    hour: int
    """From the Unix epoch."""
    turns: int
    input_tokens: int
    output_tokens: int
    """Released to the reader; what is billed."""
    generated_tokens: int
    """Made by engines, over all runs."""

    @property
    def begins(self) -> datetime:
        """The hour's beginning, in UTC."""
        return datetime.fromtimestamp(self.hour * 3600, UTC)


async def read_usage(settings: Settings, wanted: Wanted = lambda user, hour: True) -> list[Row]:
    """The rows that are wanted, by hour and user.

    Raises:
        ParleyError: log_unavailable.
    """
    hours = await _read_changelog(settings)
    sums: dict[tuple[int, UUID], Row] = {}
    for key, value in hours.items():
        _, user, hour = parse_hour_key(key)
        if not wanted(user, hour):
            continue
        row = sums.get((hour, user), Row(user, hour, 0, 0, 0, 0))
        sums[hour, user] = Row(
            user,
            hour,
            row.turns + value.turns,
            row.input_tokens + value.input,
            row.output_tokens + value.output,
            row.generated_tokens + value.generated,
        )
    return [sums[key] for key in sorted(sums)]


def fold(hours: dict[str, Hour], key: bytes, value: bytes | None) -> None:
    """Apply one changelog record: of a key, the record with the greatest `through` stands; a tombstone removes it."""
    name = orjson.loads(key)
    if value is None:
        hours.pop(name, None)
        return
    hour = Hour.from_json(orjson.loads(value))
    held = hours.get(name)
    if held is None or hour.through >= held.through:
        hours[name] = hour


async def _read_changelog(settings: Settings) -> dict[str, Hour]:
    consumer = AIOKafkaConsumer(
        bootstrap_servers=settings.kafka.bootstrap,
        client_id="parley-usage-report",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        request_timeout_ms=settings.kafka.request_timeout_ms,
    )
    hours: dict[str, Hour] = {}
    try:
        await consumer.start()
        count = settings.topics.topics[HOURS_CHANGELOG].partitions
        partitions = [TopicPartition(HOURS_CHANGELOG, number) for number in range(count)]
        topics = await consumer.topics()
        if HOURS_CHANGELOG not in topics:
            raise ParleyError("log_unavailable", f"{HOURS_CHANGELOG} is missing: run `parley topics apply`")
        consumer.assign(partitions)
        ends = await consumer.end_offsets(partitions)
        begins = await consumer.beginning_offsets(partitions)
        waiting = {partition for partition in partitions if ends[partition] > begins[partition]}
        consumer.pause(*(set(partitions) - waiting))
        for partition in waiting:
            consumer.seek(partition, begins[partition])
        while waiting:
            for records in (await consumer.getmany(timeout_ms=200)).values():
                for record in records:
                    fold(hours, record.key, record.value)
            for partition in list(waiting):
                # The position also passes offsets that compaction has emptied.
                if await consumer.position(partition) >= ends[partition]:
                    waiting.discard(partition)
                    consumer.pause(partition)
    except (KafkaError, OSError) as error:
        raise unreachable(settings.kafka.bootstrap, error) from error
    finally:
        await consumer.stop()
    return hours
