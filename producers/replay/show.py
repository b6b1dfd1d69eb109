"""A slice and a report for people at a terminal."""

from __future__ import annotations

from datetime import UTC, datetime

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from parley.timeline.show import printable
from producers.replay.report import Figure, Report, Row
from producers.replay.slices import Slice
from schemas.base import Millis

SHOWN = 20
"""Changed turns that are shown without asking."""
RESPONSE = 61
"""Characters of a response id, which is there to be copied."""


def slice_lines(slice_: Slice) -> list[str]:
    """What a slice holds: whose records, which window, and the offsets of each partition."""
    about = [f"{name} {value}" for name, value in _asked(slice_).items()]
    lines = [f"{slice_.topic}: {slice_.size:,} records in {len(slice_.spans)} partitions{', ' if about else ''}"]
    lines[0] += ", ".join(about)
    lines += [f"  {slice_.topic}-{partition}  {low} to {high - 1}" for partition, (low, high) in slice_.spans.items()]
    return lines


def table(report: Report, shown: int = SHOWN) -> RenderableType:
    """Versions, totals, and the first turns that are not as they were."""
    parts: list[RenderableType] = [_versions(report), Text(_totals(report))]
    if report.changed:
        parts += [Text(""), _rows(report, shown)]
    if len(report.changed) > shown:
        parts.append(Text(f"the first {shown} of {len(report.changed)}: --all shows more"))
    return Group(*parts)


def _versions(report: Report) -> RenderableType:
    made = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("", "before", "now"):
        made.add_column(name, overflow="fold")
    for name, (before, now) in report.versions.items():
        made.add_row(name, before, now)
    return made


def _totals(report: Report) -> str:
    passed = {name: count for name, count in report.manifest.counts.items() if name != "taken" and count}
    told = [f"{count:,} {name}" for name, count in report.totals.items()]
    return ", ".join([*told, *(f"{count:,} passed over ({name})" for name, count in passed.items())])


def _rows(report: Report, shown: int) -> RenderableType:
    made = Table(box=None, pad_edge=False, header_style="bold")
    made.add_column("response", overflow="fold", min_width=RESPONSE)
    for name in ("change", "before", "now"):
        made.add_column(name, overflow="fold")
    for row in report.changed[:shown]:
        made.add_row(row.response, row.change, *different(report, row))
        for name, text in row.texts.items():
            made.add_row(Text(f"  {name}: {printable(text)}", "dim"), "", "", "")
    return made


def different(report: Report, row: Row) -> tuple[str, str]:
    """The figures of a turn before and now: those that differ, and that the report does not tell of all turns."""
    names = [
        name
        for name in row.before | row.after
        if name not in report.versions and (name not in row.before or row.before[name] != row.after.get(name))
    ]
    return _figures(row.before, names), _figures(row.after, names)


def clock(at: Millis) -> str:
    """A time of the log, UTC."""
    return datetime.fromtimestamp(at / 1000, UTC).strftime("%m-%d %H:%M:%S")


def _figures(figures: dict[str, Figure], names: list[str]) -> str:
    told = [f"{name} {figures[name]}" for name in names if figures.get(name) not in (None, "")]
    return ", ".join(told) or "-"


def _asked(slice_: Slice) -> dict[str, str]:
    found = {"session": slice_.session, "user": str(slice_.user or ""), "response": slice_.response}
    if slice_.since is not None:
        found["since"] = f"{clock(slice_.since)} UTC"
    if slice_.until is not None:
        found["until"] = f"{clock(slice_.until)} UTC"
    return {name: value for name, value in found.items() if value}
