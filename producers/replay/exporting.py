"""A slice as a file: one JSON object a line, in the order of the log, and a manifest beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from parley import __version__
from parley.archive.source import open_source
from parley.clock import now_ms
from parley.errors import ParleyError
from parley.log.ranges import Record
from parley.settings import Settings
from parley.timeline.audit import operator
from parley.timeline.redact import redacted
from producers.replay.events import events_of
from producers.replay.manifest import Manifest, Output
from producers.replay.running import audited, new_id
from producers.replay.slices import Slice
from schemas.wire import BadRecord, header

SHOWN_HEADERS = frozenset(
    {
        *("type", "response", "session", "user", "route", "deadline", "dispatch", "started"),
        *("x-redrive-of", "x-redrive-by", "x-replay-id", "x-replay-source"),
    }
)
"""Headers whose values are ours; of others only the length is shown."""


async def export_slice(
    settings: Settings, slice_: Slice, out: Path, *, archive: Path | None, content: bool
) -> Manifest:
    """Write a slice's records to `out`, and OUT.manifest.json.

    Raises:
        ParleyError: log_unavailable; invalid_request: the file can't be written.
    """
    if content:
        await audited(settings, "parley replay export", slice_)
    began, records = now_ms(), list[Record]()
    async with open_source(settings.kafka, "parley-replay", archive) as source:
        await source.read(slice_.parts, lambda record: records.append(record) if slice_.takes(record) else None)
    records.sort(key=lambda record: (record.partition, record.offset))
    lines = [as_line(record, content=content) for record in records]
    _write(lines, out)
    manifest = Manifest(
        id=new_id(),
        stage="export",
        operator=operator(),
        code=__version__,
        began_at=began,
        ended_at=now_ms(),
        slice=slice_,
        archive=str(archive) if archive else None,
        content=content,
        counts={
            "taken": len(lines),
            "others": slice_.size - len(lines),
            "unreadable": sum("unreadable" in line for line in lines),
        },
        outputs=(Output.of(out),),
    )
    out.with_name(f"{out.name}.manifest.json").write_text(manifest.model_dump_json(indent=2) + "\n")
    return manifest


def _write(lines: list[dict[str, Any]], out: Path) -> None:
    """A new file is its owner's alone: it may hold what people wrote."""
    try:
        out.touch(mode=0o600)
        out.write_bytes(b"".join(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE) for line in lines))
    except OSError as error:
        raise ParleyError("invalid_request", f"cannot write {out}: {error.strerror or error}") from error


def as_line(record: Record, *, content: bool) -> dict[str, Any]:
    """A record: its place, when the log took it, its headers, and its events; without `content`, texts as lengths."""
    line: dict[str, Any] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "at": record.timestamp,
        "key": (record.key or b"").decode("ascii", "backslashreplace"),
        "headers": {name: _shown(name, value, content) for name, value in record.headers},
    }
    try:
        events = events_of(record)
    except BadRecord as error:
        line["unreadable"] = str(error)
        line["bytes"] = (record.value or b"").decode("utf-8", "backslashreplace") if content else None
    else:
        line["events"] = [event.model_dump(mode="json") if content else redacted(event) for event in events]
    return line


def _shown(name: str, value: bytes, content: bool) -> str:
    if content or name in SHOWN_HEADERS:
        return header([(name, value)], name) or ""
    return f"[{len(value)} bytes]"
