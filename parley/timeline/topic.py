"""Reading a topic, or a part of it: which offsets, and which of their records."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from aiokafka import TopicPartition

from parley.clock import now_ms
from parley.errors import ParleyError
from parley.ids import SESSION_TOPIC_LANE, response_address, session_created_ms
from parley.log.partitions import partition_of, session_key
from parley.log.ranges import Record
from parley.log.spans import Source, Span
from parley.settings import Settings
from parley.timeline.coming import coming
from parley.timeline.decode import entries_of
from parley.timeline.fold import Entry
from parley.timeline.pick import Pick
from parley.timeline.read import DEFAULT_LIMIT
from parley.topics import TOKENS, Topics
from schemas.base import Millis

DEFAULT_MS = 15 * 60_000
"""How far back a topic is read when nothing says from where."""


@dataclass(frozen=True, slots=True)
class Extent:
    """Which part of a topic. Offsets and times together: both must hold."""

    partition: int | None = None
    first: int | None = None
    """Offset to begin with; None: the oldest."""
    last: int | None = None
    """Offset to end with, included; None: the newest."""
    since: Millis | None = None
    until: Millis | None = None
    limit: int = DEFAULT_LIMIT


@dataclass(slots=True)
class Found:
    """What was read of a topic."""

    picked: list[tuple[Record, Entry]] = field(default_factory=list)
    """By partition, in log order. An entry of a record of several has its record beside it each time."""
    read: int = 0
    """Offsets that were read for it."""
    positions: dict[TopicPartition, int] = field(default_factory=dict)
    """Where following goes on."""


async def read_topic(settings: Settings, source: Source, topic: str, extent: Extent, pick: Pick) -> Found:
    """The records of a topic that are wanted.

    Raises:
        ParleyError: not_found: no such topic or partition; invalid_request: it would be more than the limit;
            log_unavailable.
    """
    count = (await source.existing([topic])).get(topic)
    if count is None:
        nor_an_id = "" if "." in topic else "; nor is it an id: those are conv_…, resp_…, msg_…, or a session's UUID"
        raise ParleyError("not_found", f"{topic} {source.missing}{nor_an_id}")
    if extent.partition is not None and extent.partition >= count:
        raise ParleyError("not_found", f"{topic} has the partitions 0 to {count - 1}")
    chosen = [extent.partition] if extent.partition is not None else home(settings.topics, topic, count, pick)
    wheres = [TopicPartition(topic, number) for number in (chosen if chosen is not None else range(count))]
    found = Found()
    spans = await _spans(source, wheres, extent, _since(settings, extent, pick), found)
    found.read = sum(max(0, end - start) for start, end in spans.values())
    if found.read > extent.limit:
        raise ParleyError(
            "invalid_request",
            f"this would read {found.read:,} records, more than {extent.limit:,}: narrow it with --since, --until, "
            "--partition, --offsets, --session or --response, or raise --limit",
        )

    def take(record: Record) -> None:
        found.picked += [(record, entry) for entry in entries_of(record) if pick.wants(record, entry)]

    await source.read(spans, take)
    return found


def home(topics: Topics, topic: str, count: int, pick: Pick) -> list[int] | None:
    """The partition that holds all of what is wanted, where its key tells; None: any may."""
    session = pick.session or (response_address(pick.response).session if pick.response else None)
    about = topics.topics.get(topic)
    if topic == TOKENS:
        lane = response_address(pick.response).lane if pick.response else None
        return None if lane in (None, SESSION_TOPIC_LANE) else [lane]
    if session is None or about is None or about.key != "session":
        return None
    return [partition_of(session_key(session.hex), count)]


def _since(settings: Settings, extent: Extent, pick: Pick) -> Millis | None:
    """Where time begins when no option says it: with what is wanted, or a short while ago."""
    if extent.since is not None or extent.first is not None or extent.last is not None or extent.until is not None:
        return extent.since
    born = response_address(pick.response).accepted_ms if pick.response else None
    if born is None and pick.session is not None:
        born = session_created_ms(pick.session)
    return now_ms() - DEFAULT_MS if born is None else born - int(1000 * settings.protocol.margin_s)


async def _spans(
    source: Source, wheres: list[TopicPartition], extent: Extent, since: Millis | None, found: Found
) -> dict[TopicPartition, Span]:
    bounds = await source.bounds(wheres)
    starts = await source.at_time(dict.fromkeys(wheres, since)) if since is not None else {}
    ends = await source.at_time(dict.fromkeys(wheres, extent.until)) if extent.until is not None else {}
    spans = {}
    for where, (begin, end) in bounds.items():
        found.positions[where] = end
        first = begin if since is None else end if (at := starts[where]) is None else at
        over = end if extent.until is None or (at := ends[where]) is None else at
        if extent.first is not None:
            first = max(first, extent.first)
        if extent.last is not None:
            over = min(over, extent.last + 1)
        spans[where] = (first, over)
    return spans


async def follow_topic(
    settings: Settings, positions: dict[TopicPartition, int], pick: Pick
) -> AsyncGenerator[tuple[Record, Entry], None]:
    """What comes after what was read, as it comes, until the caller stops.

    Raises:
        ParleyError: log_unavailable.
    """
    async with coming(settings.kafka) as reading:
        for where, position in positions.items():
            reading.follow(where.topic, where.partition, position)
        while True:
            record = await reading.next()
            for entry in entries_of(record):
                if pick.wants(record, entry):
                    yield record, entry
