"""What users used, read from the changelog: it needs Kafka, and neither the usage role nor a database."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

import orjson
from aiokafka import TopicPartition

from consumers.usage.names import HOURS_CHANGELOG
from consumers.usage.tally import Hour, parse_hour_key
from parley.errors import ParleyError
from parley.log.spans import open_spans
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
    hours: dict[str, Hour] = {}
    async with open_spans(settings.kafka, "parley-usage-report") as spans:
        count = (await spans.existing([HOURS_CHANGELOG])).get(HOURS_CHANGELOG)
        if count is None:
            raise ParleyError("log_unavailable", f"{HOURS_CHANGELOG} is missing: run `parley topics apply`")
        whole = await spans.bounds(TopicPartition(HOURS_CHANGELOG, number) for number in range(count))
        await spans.read(whole, lambda record: fold(hours, record.key, record.value))
    return hours
