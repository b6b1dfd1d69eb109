"""Finding a conversation's records: its partition of each topic from the id's own time on, and its turns' routes.

Nothing else is read. What would be read is known before (offsets, not records, tell it), and refused when it is more
than the caller allows.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass, field

from aiokafka import TopicPartition

from parley.errors import ParleyError
from parley.log.partitions import partition_of, session_key
from parley.log.ranges import Record
from parley.log.spans import Source, Span
from parley.settings import ProtocolSettings, Settings
from parley.timeline.coming import coming
from parley.timeline.fold import Entry, Folding, in_order
from parley.timeline.target import Target
from parley.topics import AUDIT, CONTROL, DLQ, PROMPTS, TURNS, VERDICTS, Topics
from schemas.base import Millis

LATE_MS = 60_000
"""How long after a turn's end its route is still looked at: for what a zombie wrote."""
DEFAULT_LIMIT = 500_000
"""Records that are read without asking: about ten seconds."""


@dataclass(frozen=True, slots=True)
class Window:
    """What of a target's life is wanted; None: from its id's own time, until now."""

    since: Millis | None = None
    until: Millis | None = None
    limit: int = DEFAULT_LIMIT


@dataclass(slots=True)
class Timeline:
    """What was read, folded, and where reading would go on."""

    folding: Folding
    entries: list[Entry] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What could not be read, and why."""
    read: int = 0
    """Records that were read for it, other conversations' among them."""
    positions: dict[TopicPartition, int] = field(default_factory=dict)
    """The end of each partition when it was read."""


def life_ms(protocol: ProtocolSettings) -> Millis:
    """How long after its acceptance something may be written about a turn (the orchestrator's last look, with room)."""
    seconds = 2 * protocol.max_turn_age_s + protocol.start_deadline_s + protocol.answer_limit_s + protocol.margin_s
    return int(1000 * seconds)


def session_partitions(topics: Topics, target: Target) -> dict[str, TopicPartition]:
    """Where everything but tokens is: by topic, the session's partition."""
    key = session_key(target.session.hex)
    names = [
        *(PROMPTS, VERDICTS, CONTROL, TURNS, AUDIT, DLQ),
        *(name for name in topics.topics if name.startswith(topics.inference_prefix)),
    ]
    return {name: TopicPartition(name, partition_of(key, topics.topics[name].partitions)) for name in names}


def apart(spans: Iterable[Span]) -> list[Span]:
    """The same offsets as spans that don't touch, in order."""
    joined: list[Span] = []
    for start, end in sorted(span for span in spans if span[0] < span[1]):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


async def read_timeline(settings: Settings, spans: Source, target: Target, window: Window) -> Timeline:
    """Everything that the log holds of the target within the window.

    Raises:
        ParleyError: log_unavailable; invalid_request: it would be more than the window's limit.
    """
    timeline = Timeline(Folding(target, settings.topics))
    await _Reading(settings, spans, target, window, timeline).run()
    timeline.entries = in_order(timeline.entries)
    return timeline


class _Reading:
    def __init__(self, settings: Settings, spans: Source, target: Target, window: Window, timeline: Timeline) -> None:
        self._settings = settings
        self._spans = spans
        self._target = target
        self._window = window
        self._timeline = timeline

    async def run(self) -> None:
        margin_ms = int(1000 * self._settings.protocol.margin_s)
        since = self._window.since
        if since is None and self._target.born_ms is not None:
            since = self._target.born_ms - margin_ms  # edges' clocks and brokers' differ
        parts = await self._session_spans(since or 0)
        self._account({where: [span] for where, span in parts.items()})
        await self._spans.read(parts, self._take)
        routes = await self._route_spans(margin_ms)
        self._account(routes)
        while any(routes.values()):
            await self._spans.read({where: spans.pop(0) for where, spans in routes.items() if spans}, self._take)

    async def _session_spans(self, since: Millis) -> dict[TopicPartition, Span]:
        wheres = session_partitions(self._settings.topics, self._target)
        existing = await self._spans.existing(wheres)
        for missing in sorted(wheres.keys() - existing.keys()):
            self._timeline.notes.append(f"{missing} {self._spans.missing}")
        chosen = [where for topic, where in wheres.items() if topic in existing]
        bounds = await self._spans.bounds(chosen)
        starts = await self._spans.at_time(dict.fromkeys(chosen, since))
        ends = await self._ends(bounds)
        spans = {}
        for where, (begin, end) in bounds.items():
            found = starts[where]
            spans[where] = (end if found is None else found, ends[where])
            self._timeline.positions[where] = end
            if where.topic == TURNS and begin > 0 and spans[where][0] == begin:
                self._timeline.notes.append("chat.turns has no older records: earlier turns may be gone")
        return spans

    async def _ends(self, bounds: dict[TopicPartition, Span]) -> dict[TopicPartition, int]:
        """Where to stop: at `until`, and for a response after its life; who read it is of interest for ever."""
        until, address = self._window.until, self._target.address
        died = address.accepted_ms + life_ms(self._settings.protocol) if address else None
        limits = {
            where: min((ms for ms in (until, None if where.topic == AUDIT else died) if ms is not None), default=None)
            for where in bounds
        }
        found = await self._spans.at_time({where: ms for where, ms in limits.items() if ms is not None})
        return {where: end if (at := found.get(where)) is None else at for where, (_, end) in bounds.items()}

    async def _route_spans(self, margin_ms: int) -> dict[TopicPartition, list[Span]]:
        """Each turn's part of its route: from its start to some time after its end."""
        folding = self._timeline.folding
        existing = await self._spans.existing({route.topic for route in folding.routes.values()})
        wheres = {r: TopicPartition(route.topic, route.partition) for r, route in folding.routes.items()}
        bounds = await self._spans.bounds({where for where in wheres.values() if where.topic in existing})
        found: dict[TopicPartition, list[Span]] = {}
        gone = 0
        for response, route in folding.routes.items():
            where = wheres[response]
            begin, end = bounds.get(where, (0, 0))
            if route.start < begin or where not in bounds:
                folding.torn(response)
                gone += 1
            if where in bounds:
                self._timeline.positions[where] = end
                found.setdefault(where, []).append(
                    (max(route.start, begin), await self._route_end(where, end, response, margin_ms))
                )
        if gone:
            self._timeline.notes.append(f"token routes of {gone} turns are gone, whole or in part: not judged")
        return {where: apart(spans) for where, spans in found.items()}

    async def _route_end(self, where: TopicPartition, end: int, response: str, margin_ms: int) -> int:
        folding = self._timeline.folding
        over = folding.ended.get(response)
        died = folding.accepted.get(response, 0) + life_ms(self._settings.protocol)
        limits = [died if over is None else over + LATE_MS + margin_ms, self._window.until]
        at = (await self._spans.at_time({where: min(ms for ms in limits if ms is not None)}))[where]
        return end if at is None else min(at, end)

    def _account(self, parts: dict[TopicPartition, list[Span]]) -> None:
        wanted = sum(end - start for spans in parts.values() for start, end in spans if start < end)
        self._timeline.read += wanted
        if self._timeline.read > self._window.limit:
            raise ParleyError(
                "invalid_request",
                f"this would read {self._timeline.read:,} records, more than {self._window.limit:,}: "
                "narrow it with --since and --until, or raise --limit",
            )

    def _take(self, record: Record) -> None:
        self._timeline.entries += self._timeline.folding.add(record)


async def follow_timeline(settings: Settings, target: Target, timeline: Timeline) -> AsyncGenerator[Entry, None]:
    """What comes after what was read, as it comes, until the caller stops.

    Raises:
        ParleyError: log_unavailable.
    """
    followed: set[str] = set()
    known = set(timeline.folding.routes)
    async with coming(settings.kafka) as reading:

        def follow_routes() -> None:
            for response, route in timeline.folding.routes.items():
                if response not in followed and response not in timeline.folding.ended:
                    followed.add(response)
                    where = TopicPartition(route.topic, route.partition)
                    start = timeline.positions.get(where, route.start) if response in known else route.start
                    reading.follow(route.topic, route.partition, start)

        for where in session_partitions(settings.topics, target).values():
            if where in timeline.positions:
                reading.follow(where.topic, where.partition, timeline.positions[where])
        follow_routes()
        while True:
            for entry in timeline.folding.add(await reading.next()):
                yield entry
            follow_routes()
