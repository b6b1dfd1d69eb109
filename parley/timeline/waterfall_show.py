"""A waterfall for people (bars to scale) and for scripts (one JSON object)."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from parley.timeline.show import printable
from parley.timeline.waterfall import Stage, Waterfall
from schemas.base import Millis

COLOURS = {
    "log": "cyan",
    "moderation": "yellow",
    "orchestration": "blue",
    "waiting": "red",
    "context": "blue",
    "queue": "magenta",
    "taking": "cyan",
    "slot": "magenta",
    "engine": "green",
    "guard": "yellow",
    "answer": "bold green",
    "takeover": "bold red",
    "end": "cyan",
    "proof": "cyan",
    "verdict": "yellow",
}
WIDTH = 48
"""Columns of a bar's field."""
FIRST, REST = "to the first text", "the answer and its end"


def drawn(fall: Waterfall) -> RenderableType:
    """Two parts, each to its own scale: an answer lasts for so long that what comes before it would vanish."""
    first = fall.first_text
    parts: list[RenderableType] = [Text(_headline(fall), "bold")]
    if first is None:
        parts.append(_part("from acceptance on", fall.stages, fall.began, fall.last, fall.began))
    else:
        before = [stage for stage in fall.stages if stage.start < first and stage.name != "answer"]
        after = [stage for stage in fall.stages if stage not in before]
        parts.append(_part(FIRST, before, fall.began, first, fall.began))
        parts.append(_part(REST, after, first, fall.last, fall.began))
    parts.extend(Text(line, "dim") for line in _lines(fall))
    return Group(*parts)


def as_json(fall: Waterfall) -> dict[str, Any]:
    """Everything that is known; times in ms from acceptance on. What isn't known is null."""

    def since(at: Millis | None) -> Millis | None:
        return None if at is None else at - fall.began

    return {
        "response": fall.response,
        "turn": fall.turn,
        "pool": fall.pool,
        "tier": fall.tier,
        "status": fall.status,
        "accepted_at": fall.began,
        "ttft_ms": fall.ttft_ms,
        "total_ms": fall.last - fall.began,
        "stages": [
            {
                "stage": stage.name,
                "start_ms": since(stage.start),
                "end_ms": since(stage.end),
                "clock": stage.clock,
                "note": stage.note,
            }
            for stage in fall.stages
        ],
        "runs": [
            {
                "epoch": list(run.epoch),
                "writer": run.writer,
                "fenced_ms": since(run.fenced),
                "first_delta_ms": since(run.deltas[0]) if run.deltas else None,
                "last_delta_ms": since(run.deltas[-1]) if run.deltas else None,
                "deltas": len(run.deltas),
                "tokens": run.tokens,
                "over_ms": since(run.over),
            }
            for run in fall.runs
        ],
        "gaps": {
            "count": fall.gaps.count,
            "p50_ms": fall.gaps.p50,
            "p99_ms": fall.gaps.p99,
            "longest_ms": fall.gaps.longest,
            "longest_before_seq": fall.gaps.longest_before,
        }
        if fall.gaps.count
        else None,
        "void_records": fall.voids,
        "notes": fall.notes,
    }


def _headline(fall: Waterfall) -> str:
    at = datetime.fromtimestamp(fall.began / 1000, UTC)
    number = f"turn {fall.turn}, " if fall.turn else ""
    place = ", ".join(filter(None, (fall.tier, fall.pool)))
    ttft = "no text" if fall.ttft_ms is None else f"first text after {_span(fall.ttft_ms)}"
    whole = f"{fall.status or 'running'} after {_span(fall.last - fall.began)}"
    return f"{fall.response}\n{number}{place}; accepted {at:%Y-%m-%d %H:%M:%S}.{fall.began % 1000:03d}; {ttft}; {whole}"


def _part(title: str, stages: Iterable[Stage], start: Millis, end: Millis, began: Millis) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", title=title, title_justify="left", title_style="italic")
    table.add_column("stage", no_wrap=True)
    table.add_column(f"{_span(start - began)} … {_span(end - began)}", no_wrap=True, width=WIDTH)
    table.add_column("from", justify="right", no_wrap=True)
    table.add_column("took", justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    for stage in stages:
        took = f"{_span(stage.end - stage.start)}" if stage.end is not None else "…"
        bar = Text(_bar(stage, start, end), COLOURS.get(stage.name, ""))
        note = printable(stage.note)
        table.add_row(stage.name, bar, _span(stage.start - began), took, Text(note, "dim"))
    return table


def _bar(stage: Stage, start: Millis, end: Millis) -> str:
    """Whole columns; what is shorter than one is a thin mark: nothing is invisible, or looks longer than it is."""
    scale = WIDTH / max(1, end - start)
    left = min(WIDTH - 1, max(0, int((stage.start - start) * scale)))
    right = WIDTH if stage.end is None else min(WIDTH, max(0, round((stage.end - start) * scale)))
    return " " * left + ("━" * (right - left) if right > left else "╷")


def _lines(fall: Waterfall) -> list[str]:
    lines = []
    if fall.gaps.count:
        gaps = fall.gaps
        lines.append(
            f"between {gaps.count + 1} deltas: p50 {_span(gaps.p50)}, p99 {_span(gaps.p99)}, "
            f"longest {_span(gaps.longest)} before seq {gaps.longest_before}"
        )
    if len(fall.runs) > 1:
        lines.append(f"{len(fall.runs)} runs: the answer was taken over {len(fall.runs) - 1} times")
    if fall.voids:
        lines.append(f"{fall.voids} void records: `parley log {fall.response}` says why")
    lines.extend(fall.notes)
    return lines


def _span(ms: Millis) -> str:
    return f"{ms} ms" if ms < 10_000 else f"{ms / 1000:.1f} s"
