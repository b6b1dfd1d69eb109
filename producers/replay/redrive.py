"""Reading chat.dlq, what the log says since, and sending letters back."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace

from aiokafka import TopicPartition

from parley.clock import now_ms
from parley.errors import ParleyError
from parley.log.producer import Producer
from parley.log.ranges import Record
from parley.log.spans import Source, Span, Spans
from parley.settings import Settings
from parley.timeline.audit import operator
from parley.topics import DLQ, PROMPTS, TOKENS, TURNS
from producers.replay.letters import SOURCE_HEADER, Letter, Past, Redrive, Refusal, decide, new_turn
from schemas.base import Millis, Route
from schemas.prompts import PromptAccepted
from schemas.turns import Feedback, SessionChanged, TurnEnded, TurnStarted
from schemas.wire import BadRecord, decode_turns_event, decoder, header

_prompt = decoder(PromptAccepted)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which letters; empty: all."""

    names: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()
    topics: frozenset[str] = frozenset()
    since: Millis | None = None

    def takes(self, letter: Letter) -> bool:
        """The letter is among them."""
        return (
            (not self.names or letter.name in self.names)
            and (not self.groups or letter.group in self.groups)
            and (not self.topics or letter.topic in self.topics)
        )


async def read_letters(spans: Spans, wanted: Wanted) -> list[Letter]:
    """The letters that are wanted, oldest first.

    Raises:
        ParleyError: log_unavailable; not_found: a letter that is named is not there.
    """
    letters: list[Letter] = []
    await _read(spans, wanted, letters.append)
    return sorted(letters, key=_order)


async def newest_letters(spans: Source, wanted: Wanted, limit: int) -> tuple[list[Letter], int]:
    """The newest `limit` of the letters that are wanted, oldest first, and how many are wanted in all.

    Without the records that they are about, and no more of them are ever held: chat.dlq may be large.

    Raises:
        ParleyError: as `read_letters`.
    """
    newest: list[tuple[tuple[Millis, int, int], Letter]] = []
    count = 0

    def take(letter: Letter) -> None:
        nonlocal count
        count += 1
        entry = (_order(letter), letter.without_original())
        if len(newest) < limit:
            heapq.heappush(newest, entry)
        else:
            heapq.heappushpop(newest, entry)

    await _read(spans, wanted, take)
    return [letter for _, letter in sorted(newest)], count


def _order(letter: Letter) -> tuple[Millis, int, int]:
    """By age; no two are alike."""
    return letter.at, letter.partition, letter.offset


async def _read(spans: Source, wanted: Wanted, take: Callable[[Letter], None]) -> None:
    count = (await spans.existing([DLQ])).get(DLQ, 0)
    bounds = await spans.bounds(TopicPartition(DLQ, number) for number in range(count))
    if wanted.names:
        parts: dict[TopicPartition, Span] = {}
        for partition, offset in sorted(map(_place, wanted.names)):
            where = TopicPartition(DLQ, partition)
            begin, end = bounds.get(where, (0, 0))
            if not begin <= offset < end:
                raise ParleyError(
                    "not_found", f"{DLQ} has no letter {partition}@{offset}: `parley dlq list` shows them"
                )
            low, high = parts.get(where, (offset, offset))
            parts[where] = (min(low, offset), max(high, offset + 1))
    elif wanted.since is not None:
        starts = await spans.at_time(dict.fromkeys(bounds, wanted.since))
        parts = {where: (end if (at := starts[where]) is None else at, end) for where, (_, end) in bounds.items()}
    else:
        parts = bounds

    def look(record: Record) -> None:
        if wanted.takes(letter := Letter.of(record)):
            take(letter)

    await spans.read(parts, look)


async def pasts(settings: Settings, spans: Spans, letters: Sequence[Letter]) -> dict[str, Past]:
    """What the log says since, by the letters' sources: read from each one's own place on, and no further back.

    Raises:
        ParleyError: log_unavailable.
    """
    found: dict[str, Past] = {letter.source: Past() for letter in letters}
    await _look_for_redriven(spans, letters, found)
    await _look_for_turns(settings, spans, [letter for letter in letters if letter.topic == PROMPTS], found)
    return found


async def plan(
    settings: Settings, spans: Spans, letters: Sequence[Letter], *, as_new_turn: bool
) -> list[Redrive | Refusal]:
    """What would become of each letter. Nothing is sent.

    Raises:
        ParleyError: log_unavailable.
        ValueError: PARLEY_ID_KEYS is not set, which new turns need.
    """
    known = await pasts(settings, spans, letters)
    who = operator()
    lanes = await spans.bounds(TopicPartition(TOKENS, lane) for lane in range(settings.topics.lanes))
    decisions: list[Redrive | Refusal] = []
    planned: set[str] = set()
    for letter in letters:
        if letter.source in planned:
            decisions.append(Refusal(letter, f"another letter about {letter.source} goes back already", done=True))
            continue

        def mint(prompt: PromptAccepted, source: str = letter.source) -> PromptAccepted:
            where = TopicPartition(TOKENS, prompt.session.int % settings.topics.lanes)
            route = Route(topic=TOKENS, partition=where.partition, start=lanes[where][1])
            return new_turn(prompt, source, keys=settings.keys, route=route, now_ms=now_ms())

        decision = decide(
            letter, known[letter.source], settings.topics, as_new_turn=as_new_turn, mint=mint, operator=who
        )
        if isinstance(decision, Redrive):
            planned.add(letter.source)
        decisions.append(decision)
    return decisions


def at_most(limit: int, decisions: Sequence[Redrive | Refusal]) -> list[Redrive | Refusal]:
    """The decisions up to the last of `limit` letters that go back.

    What is done, or refused, takes no place: run again and again, it gets to the end of the queue, whose letters stay.
    """
    going = [number for number, decision in enumerate(decisions) if isinstance(decision, Redrive)]
    return list(decisions if len(going) <= limit else decisions[: going[limit]])


async def send(settings: Settings, redrives: Sequence[Redrive]) -> AsyncIterator[tuple[Redrive, int]]:
    """Send them back one after the other, each to its own topic and partition; gives the offset of each.

    Raises:
        ParleyError: log_unavailable: whether the one after the last given has been sent is not known. To run again is
            safe: what is in the log is not sent twice.
    """
    producer = Producer(settings.kafka, "parley-dlq")
    await producer.start()
    try:
        for redrive in redrives:
            letter = redrive.letter
            offset = await producer.send(
                letter.topic,
                redrive.value,
                key=letter.key,
                partition=letter.source_partition,
                headers=redrive.headers,
            )
            yield redrive, offset
    finally:
        await producer.stop()


def _place(name: str) -> tuple[int, int]:
    partition, _, offset = name.partition("@")
    if not (partition.isdecimal() and offset.isdecimal()):
        raise ParleyError(
            "invalid_request", f"{name!r} names no letter: give PARTITION@OFFSET, as `parley dlq list` does"
        )
    return int(partition), int(offset)


async def _look_for_redriven(spans: Spans, letters: Sequence[Letter], found: dict[str, Past]) -> None:
    """The source's partition, from after the record on: what was redriven, and what the user has changed since."""
    about: dict[TopicPartition, list[Letter]] = defaultdict(list)
    for letter in letters:
        if letter.topic in (TURNS, PROMPTS) and letter.source_offset >= 0:
            about[TopicPartition(letter.topic, letter.source_partition)].append(letter)
    existing = await spans.existing({where.topic for where in about})
    bounds = await spans.bounds(w for w in about if w.partition < existing.get(w.topic, 0))
    parts = {}
    for where, (begin, end) in bounds.items():
        parts[where] = (min(letter.source_offset for letter in about[where]) + 1, end)
        for letter in about[where]:
            if begin > letter.source_offset + 1:
                found[letter.source] = replace(found[letter.source], complete=False)

    def take(record: Record) -> None:
        source = header(record.headers, SOURCE_HEADER)
        if source in found:
            found[source] = replace(found[source], redriven_at=int(record.offset))
        elif record.topic == TURNS:
            for letter in about[TopicPartition(record.topic, record.partition)]:
                if record.key == letter.key and record.offset > letter.source_offset and _same_thing(letter, record):
                    found[letter.source] = replace(found[letter.source], said_later=True)

    await spans.read({where: (max(start, bounds[where][0]), end) for where, (start, end) in parts.items()}, take)


def _same_thing(letter: Letter, record: Record) -> bool:
    """Both describe the session, or both rate the same answer."""
    try:
        before, after = decode_turns_event(letter.value), decode_turns_event(record.value)
    except BadRecord:
        return False
    if isinstance(before, Feedback) and isinstance(after, Feedback):
        return before.response == after.response
    return isinstance(before, SessionChanged) and isinstance(after, SessionChanged)


async def _look_for_turns(settings: Settings, spans: Spans, letters: Sequence[Letter], found: dict[str, Past]) -> None:
    """chat.turns, from the prompt's time on: whether the prompt has a turn after all."""
    sources: dict[str, str] = {}
    since: dict[TopicPartition, Millis] = {}
    margin_ms = int(1000 * settings.protocol.margin_s)
    count = (await spans.existing([TURNS])).get(TURNS, 0)
    for letter in letters:
        if not 0 <= letter.source_partition < count:
            continue  # nobody of ours wrote that letter: what it says of itself keeps no other one waiting
        try:
            sources[_prompt(letter.value).response] = letter.source
        except BadRecord:
            continue
        where = TopicPartition(TURNS, letter.source_partition)
        since[where] = min(since.get(where, letter.source_at), letter.source_at - margin_ms)
    bounds = await spans.bounds(since)
    starts = await spans.at_time(since)

    def take(record: Record) -> None:
        try:
            event = decode_turns_event(record.value)
        except BadRecord:
            return
        if isinstance(event, TurnStarted | TurnEnded) and event.response in sources:
            status = event.status if isinstance(event, TurnEnded) else "running"
            source = sources[event.response]
            found[source] = replace(found[source], status=status)

    parts = {where: (start, bounds[where][1]) for where, start in starts.items() if start is not None}
    await spans.read(parts, take)
