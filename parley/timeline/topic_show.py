"""A topic's entries as lines for people: the place first, then what it is."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from rich.text import Text

from parley.log.ranges import Record
from parley.timeline.decode import session_of
from parley.timeline.fold import Entry
from parley.timeline.show import COLOURS, Line, about, as_json, content_of, printable

INDENT = 6
"""Columns before what was written."""


def topic_line(line: Line, *, content: bool) -> Text:
    """One line; with contents, what was written below it."""
    entry = line.first
    at = datetime.fromtimestamp(entry.at / 1000, UTC)
    upto = f"–{line.last.offset}" if line.last.offset != entry.offset else ""
    shown = Text(f"{at:%m-%d %H:%M:%S}.{at.microsecond // 1000:03d} ", "dim")
    shown.append(f"{entry.topic}-{entry.partition}@{entry.offset}{upto} ", "bold")
    shown.append(f"{entry.kind} ", COLOURS.get(entry.kind, ""))
    shown.append(printable(about(line)))
    if entry.response:
        shown.append(f"  {printable(entry.response)}", "dim")
    text = printable(line.text if line.deltas else content_of(entry.event))
    if content and text:
        shown.append("".join(f"\n{'':{INDENT}}│ {part}" for part in text.splitlines()), "italic")
    return shown


def topic_json(record: Record, entry: Entry, *, content: bool) -> dict[str, Any]:
    """An entry for scripts and for `--where`: as in a conversation's timeline, with the session and the size."""
    return as_json(entry, content=content) | {
        "session": session_of(record, entry),
        "bytes": len(record.value or b""),
    }
