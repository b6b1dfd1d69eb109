"""A bounded part of one topic: what is asked for, and the offsets that it comes to.

Offsets are resolved once, before anything is done, so that a replay that goes on tomorrow sees the records that were
counted today.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

import orjson
from aiokafka import TopicPartition
from pydantic import BaseModel, ConfigDict

from parley.errors import ParleyError
from parley.ids import response_address
from parley.log.partitions import partition_of, session_key
from parley.log.ranges import Record
from parley.log.spans import Source, Span
from parley.settings import Settings
from parley.timeline.read import life_ms
from parley.timeline.target import Target
from parley.topics import TOKENS
from producers.replay.events import response_of
from schemas.base import Millis, UserId
from schemas.wire import header

DEFAULT_LIMIT = 100_000
"""Offsets that a slice may hold without asking."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What somebody asks for. None and empty: anything."""

    since: Millis | None = None
    until: Millis | None = None
    offsets: Mapping[int, Span] | None = None
    """By partition."""
    target: Target | None = None
    """A session, or one response."""
    user: UUID | None = None
    limit: int = DEFAULT_LIMIT

    @property
    def bounded(self) -> bool:
        """It says where to begin, in some way."""
        return self.since is not None or bool(self.offsets) or self.target is not None


class Slice(BaseModel):
    """Spans of a topic's partitions, and whose records of them are meant."""

    model_config = ConfigDict(frozen=True)

    topic: str
    spans: dict[int, Span]
    """Of each partition with offsets in the slice: (first, the one after the last)."""
    since: Millis | None = None
    until: Millis | None = None
    session: str | None = None
    """Its UUID in hex."""
    user: UserId | None = None
    response: str | None = None

    @property
    def size(self) -> int:
        """Offsets in it; records are at most as many."""
        return sum(end - start for start, end in self.spans.values())

    @property
    def parts(self) -> dict[TopicPartition, Span]:
        """The same spans, as readers take them."""
        return {TopicPartition(self.topic, partition): span for partition, span in self.spans.items()}

    def takes(self, record: Record) -> bool:
        """A record within the spans is one of those that are meant."""
        if self.response is not None and response_of(record) != self.response:
            return False
        if self.session is not None and self.session not in (_session_of(record), header(record.headers, "session")):
            return False
        return self.user is None or _user_of(record) == str(self.user)


async def resolve(settings: Settings, source: Source, topic: str, wanted: Wanted) -> Slice:
    """The offsets that `wanted` comes to on a topic now.

    Raises:
        ParleyError: invalid_request: it is too large; not_found: no such topic; log_unavailable.
    """
    count = (await source.existing([topic])).get(topic)
    if count is None:
        raise ParleyError("not_found", f"there is no topic {topic}")
    target = wanted.target
    chosen = _partitions(settings, topic, count, wanted)
    bounds = await source.bounds(TopicPartition(topic, partition) for partition in chosen)
    since, until = _times(settings, wanted)
    starts = await _at(source, bounds, since, first=True)
    ends = await _at(source, bounds, until, first=False)
    asked = wanted.offsets or {}
    resolved: dict[int, Span] = {}
    for where, bound in bounds.items():
        given = asked.get(where.partition, bound)
        start = max(bound[0], given[0], starts[where])
        end = min(bound[1], given[1], ends[where])
        if start < end:
            resolved[int(where.partition)] = (start, end)
    found = Slice(
        topic=topic,
        spans=resolved,
        since=since,
        until=until,
        session=target.session.hex if target else None,
        user=wanted.user,
        response=target.response if target else None,
    )
    if found.size > wanted.limit:
        raise ParleyError(
            "invalid_request", f"{topic}: {found.size:,} records, more than {wanted.limit:,}: narrow it, or --limit"
        )
    return found


async def _at(
    source: Source, bounds: Mapping[TopicPartition, Span], at: Millis | None, *, first: bool
) -> dict[TopicPartition, int]:
    """Where each partition's records of a time begin; without a time its own bound."""
    if at is None:
        return {where: bound[0 if first else 1] for where, bound in bounds.items()}
    found = await source.at_time(dict.fromkeys(bounds, at))
    return {where: end if (offset := found[where]) is None else offset for where, (_, end) in bounds.items()}


def parse_offsets(texts: tuple[str, ...]) -> dict[int, Span]:
    """PARTITION:START-END (END is not part of it), PARTITION:START- or PARTITION@OFFSET.

    Raises:
        ParleyError: invalid_request.
    """
    found: dict[int, Span] = {}
    for text in texts:
        if (one := re.fullmatch(r"(\d+)@(\d+)", text)) is not None:
            span = (int(one[2]), int(one[2]) + 1)
        elif (one := re.fullmatch(r"(\d+):(\d+)-(\d*)", text)) is not None:
            span = (int(one[2]), int(one[3]) if one[3] else 1 << 62)
        else:
            raise ParleyError("invalid_request", f"{text!r} is no range: give PARTITION:START-END or PARTITION@OFFSET")
        if int(one[1]) in found:
            raise ParleyError("invalid_request", f"partition {one[1]} is given twice")
        found[int(one[1])] = span
    return found


def _partitions(settings: Settings, topic: str, count: int, wanted: Wanted) -> list[int]:
    if wanted.offsets:
        missing = [partition for partition in wanted.offsets if partition >= count]
        if missing:
            raise ParleyError("invalid_request", f"{topic} has {count} partitions, so none numbered {missing[0]}")
        return sorted(wanted.offsets)
    known = settings.topics.topics.get(topic)
    if wanted.target is not None and topic != TOKENS and known is not None and "session" in known.key:
        return [partition_of(session_key(wanted.target.session.hex), count)]
    return list(range(count))


def _times(settings: Settings, wanted: Wanted) -> tuple[Millis | None, Millis | None]:
    """The window, narrowed to the life of what is asked for where its id tells that."""
    since, until, target = wanted.since, wanted.until, wanted.target
    if target is not None and since is None and target.born_ms is not None:
        since = target.born_ms - int(1000 * settings.protocol.margin_s)
    if target is not None and until is None and target.address is not None:
        until = target.address.accepted_ms + life_ms(settings.protocol)
    return since, until


def _session_of(record: Record) -> str | None:
    key = record.key or b""
    if key.startswith(b"resp_"):
        try:
            return response_address(key.decode("ascii")).session.hex
        except ValueError:
            return None
    return key.decode("ascii", "replace") if len(key) == 32 else None


def _user_of(record: Record) -> str | None:
    said = header(record.headers, "user")
    if said is not None:
        return str(UUID(said)) if re.fullmatch(r"[0-9a-f-]{32,36}", said) else None
    try:
        value = orjson.loads(record.value or b"")
    except orjson.JSONDecodeError:
        return None
    return value.get("user") if isinstance(value, dict) else None
