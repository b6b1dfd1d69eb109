"""Entries for people (one line each, coloured) and for scripts (one JSON object each)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel
from rich.text import Text

from parley.timeline.fold import DEAD_LETTER, UNREADABLE, Entry, Folding
from parley.timeline.redact import redacted
from parley.topics import TOKENS
from schemas.base import Item, Route
from schemas.operations import ContentRead, OffsetsMoved, PoolDrain, PoolStatus
from schemas.prompts import Cancel, InferenceRequest, PromptAccepted, Verdict
from schemas.routes import Delta, Fence, Opened, Terminal
from schemas.turns import Feedback, SessionChanged, TurnEnded, TurnStarted

COLOURS = {
    "prompt.accepted": "bold cyan",
    "verdict": "yellow",
    "turn.started": "blue",
    "inference.request": "blue",
    "opened": "green",
    "fence": "magenta",
    "delta": "green",
    "terminal": "bold green",
    "turn.ended": "bold blue",
    "cancel": "bold yellow",
    DEAD_LETTER: "bold red",
    UNREADABLE: "bold red",
    "content.read": "bold yellow",
    "offsets.moved": "bold yellow",
}


_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """The text with its control characters spelled out: what somebody wrote must not steer an operator's terminal."""
    return _UNPRINTABLE.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


@dataclass(frozen=True, slots=True)
class Line:
    """An entry, or a run of deltas of one writer that came in a row."""

    first: Entry
    last: Entry
    deltas: int = 0
    text: str = ""


def lines(entries: Iterable[Entry]) -> Iterator[Line]:
    """Entries, with deltas that follow each other taken together."""
    run: list[Entry] = []
    for entry in entries:
        if run and not _goes_on(run[-1], entry):
            yield _taken_together(run)
            run = []
        if isinstance(entry.event, Delta):
            run.append(entry)
        else:
            yield Line(entry, entry)
    if run:
        yield _taken_together(run)


def _goes_on(before: Entry, entry: Entry) -> bool:
    a, b = before.event, entry.event
    return (
        isinstance(a, Delta)
        and isinstance(b, Delta)
        and (before.response, a.writer, before.void) == (entry.response, b.writer, entry.void)
    )


def _taken_together(run: list[Entry]) -> Line:
    text = "".join(entry.event.text for entry in run if isinstance(entry.event, Delta))
    return Line(run[0], run[-1], len(run), text)


class Show:
    """Lines of one timeline: times from its first entry on, turns by their numbers."""

    def __init__(self, folding: Folding, *, content: bool) -> None:
        self._folding = folding
        self._content = content
        self._began: int | None = None

    def line(self, line: Line) -> Text:
        """One line; a second one, indented, with contents."""
        entry = line.first
        if self._began is None:
            self._began = entry.at
        at = datetime.fromtimestamp(entry.at / 1000, UTC)
        shown = Text(f"{at:%m-%d %H:%M:%S}.{at.microsecond // 1000:03d} ", "dim")
        shown.append(f"{(entry.at - self._began) / 1000:+9.3f} ")
        shown.append(f"{self._turn(entry.response):>4} ", "bold")
        shown.append(f"{entry.kind:<17} ", "dim strike" if entry.void else COLOURS.get(entry.kind, ""))
        shown.append(printable(about(line)), "dim" if entry.void else "")
        if entry.void:
            shown.append(f"  void: {entry.void}", "red")
        shown.append(f"  {self._place(line)}", "dim")
        text = printable(line.text if line.deltas else content_of(entry.event))
        if self._content and text:
            shown.append("\n" + "".join(f"{'':31}│ {part}\n" for part in text.splitlines()).rstrip("\n"), "italic")
        return shown

    def _turn(self, response: str | None) -> str:
        turn = self._folding.session.turns.get(response or "")
        return f"#{turn.number}" if turn else "" if response is None else "…" + response[-3:]

    @staticmethod
    def _place(line: Line) -> str:
        first, last = line.first, line.last
        topic = first.topic.removeprefix("chat.")
        if topic.startswith("tokens.s."):
            topic = "session topic"
        upto = f"–{last.offset}" if last.offset != first.offset else ""
        return f"{topic}-{first.partition}@{first.offset}{upto}"


def summary(folding: Folding) -> list[str]:
    """What each turn that was asked for came to, in order of their numbers."""
    told = []
    turns = [turn for turn in folding.session.turns.values() if turn.response in folding.routes]
    for turn in sorted(turns, key=lambda turn: turn.number):
        transcript = folding.transcripts.get(turn.response)
        route = "its route was not read"
        if transcript is not None:
            runs = len(transcript.joins) + 1
            route = f"{len(transcript.text)} characters in {transcript.seq} deltas" + (
                f", continued {runs - 1} times" if runs > 1 else ""
            )
            route += f", {transcript.voids} void" if transcript.voids else ""
        told.append(f"#{turn.number} {turn.response}: {turn.status or 'running'}; {route}")
    return told


def as_json(entry: Entry, *, content: bool) -> dict[str, Any]:
    """An entry for scripts."""
    event: dict[str, Any] | None = None
    if entry.event is not None:
        event = entry.event.model_dump(mode="json") if content else redacted(entry.event)
    return {
        "at": entry.at,
        "topic": entry.topic,
        "partition": entry.partition,
        "offset": entry.offset,
        "type": entry.kind,
        "response": entry.response,
        "void": entry.void,
        "note": entry.note or None,
        "event": event,
    }


def about(line: Line) -> str:
    """What an event says beside its contents."""
    event = line.first.event
    match event:
        case None:
            return line.first.note
        case PromptAccepted():
            session = "new session, " if event.new_session else ""
            return f"{session}{event.tier}, model {event.model or '-'}, {_size(event.items)}, {_route(event.route)}"
        case Verdict():
            why = f" {', '.join(event.categories)}" if event.categories else ""
            return f"{event.stage}: {event.decision}{why} (policy {event.policy})"
        case TurnStarted():
            to = f"to {event.pool}" if event.pool else f"to be ended: {event.why}"
            return f"turn {event.turn} {to}, dispatch {_dotted(event.dispatch)}"
        case InferenceRequest():
            return f"pool {event.pool}, dispatch {_dotted(event.dispatch)}, {event.prompt_tokens} tokens"
        case Opened():
            waits = "waits" if event.waiting else "its turn"
            return f"{waits}{f', duplicate of {event.duplicate_of}' if event.duplicate_of else ''}"
        case Fence():
            return f"epoch {_dotted(event.epoch)} writer {event.writer}"
        case Delta():
            seqs = f"{event.seq}" if line.deltas == 1 else f"{event.seq}–{event.seq + line.deltas - 1}"
            return f"× {line.deltas} seq {seqs}, {len(line.text)} characters, writer {event.writer}"
        case Terminal():
            return f"{event.kind}{_why(event)}, seq {event.seq}, writer {event.writer}"
        case TurnEnded():
            return f"{event.status}{_why(event)}, epoch {_dotted(event.epoch)}, {event.usage.output_tokens} tokens"
        case Cancel():
            return "by the user"
        case SessionChanged():
            said = [name for name in ("opened", "title", "metadata") if getattr(event, name)]
            return ", ".join(said)
        case Feedback():
            return event.rating
        case ContentRead():
            return f"{event.who} by {event.command}"
        case PoolDrain():
            place = f"{event.pool}/{event.engine}" if event.engine else event.pool
            return f"{place} {'drained' if event.drained else 'in use again'} by {event.who}"
        case OffsetsMoved():
            return f"{event.group} in {event.topic}, partitions moved: {len(event.moved)}, by {event.who}"
        case PoolStatus():
            return f"{event.worker}: {event.running} of {event.slots} slots busy, {sum(event.queued.values())} queued"
        case _:
            return ""


def _route(route: Route) -> str:
    return f"lane {route.partition}" if route.topic == TOKENS else "the session's own topic"


def _why(event: Terminal | TurnEnded) -> str:
    said = event.failure.code if event.failure else event.reason
    return f" ({said})" if said else ""


def _size(items: tuple[Item, ...]) -> str:
    return f"{sum(len(item.text) for item in items)} characters"


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))


def content_of(event: BaseModel | None) -> str:
    match event:
        case PromptAccepted():
            return "\n".join(f"{item.role}: {item.text}" for item in event.items)
        case InferenceRequest():
            return event.prompt
        case TurnEnded():
            return "\n".join(item.text for item in event.output)
        case Terminal():
            return event.refusal or ""
        case SessionChanged():
            return event.title or ""
        case Feedback():
            return event.comment or ""
        case _:
            return ""
