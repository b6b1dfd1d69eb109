"""Records of a conversation to entries of its timeline, each judged by the folds that every reader uses. Pure.

Records of one partition must come in log order, and a route from its turn's start; partitions may come in any order
among each other, since no fold needs two of them.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from parley.log.dlq import PREFIX as DLQ_PREFIX
from parley.log.partitions import session_key
from parley.log.ranges import Record
from parley.session import Session
from parley.timeline.target import Target
from parley.topics import AUDIT, CONTROL, DLQ, PROMPTS, TOKENS, TURNS, VERDICTS, Topics
from parley.transcript import Transcript
from schemas.base import Dispatch, Epoch, Millis, Route
from schemas.operations import ContentRead
from schemas.prompts import Cancel, InferenceRequest, PromptAccepted, Verdict
from schemas.routes import decode_route_record
from schemas.turns import TurnEnded, TurnStarted
from schemas.wire import REPLAY_HEADER, BadRecord, decode_turns_event, decoder, describe, header

DEAD_LETTER = "dead letter"
UNREADABLE = "unreadable"

_RANKS = (
    *("session.changed", "prompt.accepted", "opened", "verdict", "turn.started", "inference.request", "fence"),
    *("delta", "cancel", "terminal", "turn.ended", "feedback", "session.deleted"),
)
"""Which of two records of one millisecond is shown first: the one that is usually the cause."""

_DECODERS: dict[str, Any] = {
    PROMPTS: decoder(PromptAccepted),
    VERDICTS: decoder(Verdict),
    CONTROL: decoder(Cancel),
    TURNS: decode_turns_event,
    AUDIT: decoder(ContentRead),
}
_request = decoder(InferenceRequest)


@dataclass(frozen=True, slots=True)
class Entry:
    """One event of the timeline."""

    at: Millis
    """When the log took it, by the broker's clock."""
    topic: str
    partition: int
    offset: int
    kind: str
    """The event's type, or `dead letter`, or `unreadable`."""
    response: str | None
    event: BaseModel | None = None
    void: str | None = None
    """Why it changes nothing for any reader."""
    note: str = ""
    """Of what has no event: why a record is dead or can't be read."""


class Folding:
    """The folds of one target: give it records, it gives the entries that they are."""

    def __init__(self, target: Target, topics: Topics) -> None:
        self._target = target
        self._topics = topics
        self._key = session_key(target.session.hex)
        self.session = Session(target.session)
        """As far as the records of chat.turns given so far tell."""
        self.transcripts: dict[str, Transcript] = {}
        """Of each response whose route has been read from its start."""
        self.routes: dict[str, Route] = {}
        """Of each response met, and of the target."""
        self.accepted: dict[str, Millis] = {}
        """When each response met was accepted."""
        self.ended: dict[str, Millis] = {}
        """When the log took the last end of each response met."""
        self._torn: set[str] = set()
        self._next: dict[str, int] = {}
        """Offset on its route up to which a response has been folded."""
        self._seen: set[tuple[str, ...]] = set()
        self._requested: dict[str, Dispatch] = {}
        if target.response is not None and (address := target.address) is not None:
            prefix = topics.session_topics.prefix
            self.routes[target.response] = address.route(TOKENS, prefix)
            self.accepted[target.response] = address.accepted_ms

    def torn(self, response: str) -> None:
        """The beginning of a response's route is gone: what is left can't be judged."""
        self._torn.add(response)

    def add(self, record: Record) -> list[Entry]:
        """The entries of a record, in its order; none when it isn't the target's."""
        if self._is_route(record.topic):
            return self._route_record(record)
        if record.key != self._key:
            return []
        entry = self._letter(record) if record.topic == DLQ else self._session_record(record)
        return [entry] if entry is not None and self._wanted(entry) else []

    def _wanted(self, entry: Entry) -> bool:
        """A response's timeline also holds what befell its whole session."""
        return self._target.response in (None, entry.response) or entry.kind == "session.deleted"

    def _is_route(self, topic: str) -> bool:
        return topic == TOKENS or topic.startswith(self._topics.session_topics.prefix)

    # -- the session's topics -----------------------------------------------------------------------------------------

    def _letter(self, record: Record) -> Entry:
        return entry_of(record, DEAD_LETTER, header(record.headers, "response"), note=letter_note(record))

    def _session_record(self, record: Record) -> Entry | None:
        decode = _DECODERS.get(record.topic)
        if decode is None:
            if not record.topic.startswith(self._topics.inference_prefix):
                return None
            decode = _request
        try:
            event = decode(record.value)
        except BadRecord as error:
            return entry_of(record, UNREADABLE, header(record.headers, "response"), note=str(error))
        self._meet(event)
        response = getattr(event, "response", None)
        if header(record.headers, REPLAY_HEADER) is not None:
            return entry_of(record, event.type, response, event, "a replay's: live roles refuse it")
        void = self._judge(event)
        if isinstance(event, TurnEnded) and void is None:
            self.ended[event.response] = int(record.timestamp)
        return entry_of(record, event.type, response, event, void)

    def _meet(self, event: Any) -> None:
        if self._target.response in (None, getattr(event, "response", None)):
            if isinstance(event, PromptAccepted | TurnStarted | InferenceRequest):
                self.routes.setdefault(event.response, event.route)
            if isinstance(event, PromptAccepted | TurnStarted):
                self.accepted.setdefault(event.response, event.accepted_at)

    def _judge(self, event: Any) -> str | None:
        match event:
            case PromptAccepted():
                return self._again("the same prompt came before", event.type, event.response)
            case Verdict():
                return self._again("a verdict came before", event.type, event.response, event.stage)
            case Cancel():
                return self._again("cancelled before", event.type, event.response)
            case InferenceRequest():
                known = self._requested.get(event.response)
                if known is not None and event.dispatch <= known:
                    return "repeated: its worker absorbs it"
                self._requested[event.response] = event.dispatch
                return None
            case ContentRead():
                return None
        stood = self._standing(event)
        reason = self.session.apply(event)
        if reason is not None:
            return reason.value
        if isinstance(event, TurnEnded) and stood is not None and event.epoch <= stood:
            return "the same end, repeated" if event.epoch == stood else "an end of a greater epoch stands"
        return None

    def _standing(self, event: Any) -> Epoch | None:
        turn = self.session.turns.get(event.response) if isinstance(event, TurnEnded) else None
        return turn.epoch if turn is not None else None

    def _again(self, reason: str, *what: str) -> str | None:
        if what in self._seen:
            return reason
        self._seen.add(what)
        return None

    # -- routes -------------------------------------------------------------------------------------------------------

    def _route_record(self, record: Record) -> list[Entry]:
        try:
            response = (record.key or b"").decode("ascii")
        except UnicodeDecodeError:
            return []
        route = self.routes.get(response)
        if route is None or (route.topic, route.partition) != (record.topic, record.partition):
            return []
        if record.offset < self._next.get(response, route.start):
            return []  # another turn's records on the same lane were read before
        self._next[response] = record.offset + 1
        try:
            events = decode_route_record(record.value or b"")
        except ValidationError as error:
            return [entry_of(record, UNREADABLE, response, note=describe(error))]
        transcript = self.transcripts.setdefault(response, Transcript())
        entries = []
        for event in events:
            reason = transcript.apply(event) if response not in self._torn else None
            entries.append(entry_of(record, event.type, response, event, reason.value if reason else None))
        return entries


def entry_of(
    record: Record,
    kind: str,
    response: str | None,
    event: BaseModel | None = None,
    void: str | None = None,
    note: str = "",
) -> Entry:
    """The entry that a record, or one event of it, is."""
    return Entry(
        int(record.timestamp), record.topic, record.partition, record.offset, kind, response, event, void, note
    )


def letter_note(record: Record) -> str:
    """Where a dead letter came from, and why."""
    about = {name: header(record.headers, DLQ_PREFIX + name) for name in ("topic", "partition", "offset", "reason")}
    return "{topic}-{partition} offset {offset}: {reason}".format(**about)


def in_order(entries: Iterable[Entry]) -> list[Entry]:
    """All partitions' entries as one list, by log time; those of a partition stay in its order.

    Clocks of brokers differ: an entry that seems older than its predecessor counts as old as that.
    """
    partitions: dict[tuple[str, int], list[Entry]] = defaultdict(list)
    for entry in entries:
        partitions[entry.topic, entry.partition].append(entry)
    merged = heapq.merge(*(_keyed(partition) for partition in partitions.values()), key=lambda pair: pair[0])
    return [entry for _, entry in merged]


def _keyed(entries: list[Entry]) -> Iterator[tuple[tuple[Millis, int], Entry]]:
    at = 0
    for entry in entries:
        at = max(at, entry.at)
        yield (at, _RANKS.index(entry.kind) if entry.kind in _RANKS else len(_RANKS)), entry
