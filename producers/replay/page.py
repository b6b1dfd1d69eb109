"""A report as one HTML file: no script, no font, no picture from anywhere else. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from producers.replay.report import Chart, Report, Row
from producers.replay.show import clock, different

SHOWN = 1_000
"""Turns of one kind of change that are listed: a page of all of them would not open."""
WIDTH, HEIGHT, BOTTOM = 480, 200, 46

_STYLE = """
:root { color-scheme: light dark; --before: #8a8f98; --after: #2a6fdb; --line: #8884; }
body { font: 15px/1.45 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; } td, th { text-align: left; vertical-align: top; padding: .25rem .6rem;
border-bottom: 1px solid var(--line); font-size: .85rem; overflow-wrap: anywhere; }
code { font-size: .8rem; } figure { display: inline-block; margin: 0 1rem 1rem 0; } figcaption { font-weight: 600; }
svg text { font: 11px system-ui, sans-serif; fill: currentColor; } .before { fill: var(--before); }
.after { fill: var(--after); } .key span { display: inline-block; width: .8em; height: .8em; margin: 0 .3em 0 1em; }
.totals b { font-size: 1.3rem; } .totals span { margin-right: 1.6rem; white-space: nowrap; }
p.text { white-space: pre-wrap; margin: .2rem 0; }
"""


def page(report: Report) -> str:
    """The file's text."""
    manifest = report.manifest
    title = f"Replay {manifest.id}: {manifest.stage}"
    totals = "".join(f"<span><b>{count:,}</b> {escape(name)}</span>" for name, count in report.totals.items())
    parts = [
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>',
        '<meta name="viewport" content="width=device-width"><meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        f"<style>{_STYLE}</style></head><body><h1>{escape(title)}</h1>",
        f"<p>{escape(_about(report))}</p><p class='totals'>{totals}</p>",
        _table(("", "before", "now"), ((n, b, a) for n, (b, a) in report.versions.items())),
        '<p class="key"><span class="before" style="background:var(--before)"></span>before'
        '<span class="after" style="background:var(--after)"></span>now</p>',
        *(_figure(chart) for chart in report.charts if chart.labels),
        *_changes(report),
        "</body></html>\n",
    ]
    return "\n".join(parts)


def _about(report: Report) -> str:
    manifest = report.manifest
    passed = ", ".join(f"{n:,} {why}" for why, n in manifest.counts.items() if n and why != "taken")
    return (
        f"{manifest.slice.topic}, {manifest.slice.size:,} offsets in {len(manifest.slice.spans)} partitions; "
        f"began {clock(manifest.began_at)} UTC by {manifest.operator}, Parley {manifest.code}"
        + (f"; passed over: {passed}" if passed else "")
    )


def _changes(report: Report) -> Iterable[str]:
    kinds = dict.fromkeys(row.change for row in report.changed)
    for kind in kinds:
        rows = [row for row in report.changed if row.change == kind]
        yield f"<h2>{escape(kind)}: {len(rows):,}</h2>"
        if len(rows) > SHOWN:
            yield f"<p>The first {SHOWN:,}; report.json has all.</p>"
        yield _table(("turn", "at (UTC)", "before", "now"), (_cells(report, row) for row in rows[:SHOWN]), plain=False)


def _cells(report: Report, row: Row) -> tuple[str, ...]:
    texts = "".join(f'<p class="text"><i>{escape(name)}</i> {escape(text)}</p>' for name, text in row.texts.items())
    before, after = different(report, row)
    names = f"<code>{escape(row.response)}</code><br>{escape(row.source)}{texts}"
    return names, clock(row.at), escape(before), escape(after)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]], *, plain: bool = True) -> str:
    """`plain`: the cells are texts, not HTML."""
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell) if plain else cell}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table><tr>{''.join(f'<th>{escape(name)}</th>' for name in head)}</tr>{body}</table>"


def _figure(chart: Chart) -> str:
    """Pairs of bars, each with its number."""
    most = max((*chart.before, *chart.after, 1.0))
    step = WIDTH / len(chart.labels)
    bar = min(step * 0.38, 40)
    top, floor = 16, HEIGHT - BOTTOM
    shapes = []
    for n, label in enumerate(chart.labels):
        middle = (n + 0.5) * step
        for kind, value, left in (("before", chart.before[n], middle - bar), ("after", chart.after[n], middle)):
            height = (floor - top) * value / most
            said = f"{label}, {'now' if kind == 'after' else kind}: {value:g}"
            shapes.append(
                f'<rect class="{kind}" x="{left:.1f}" y="{floor - height:.1f}" width="{bar:.1f}" '
                f'height="{height:.1f}"><title>{escape(said)}</title></rect>'
            )
            if value:
                x, y = left + bar / 2, floor - height - 3
                shapes.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="middle">{value:g}</text>')
        shapes.append(
            f'<text x="{middle:.1f}" y="{floor + 14}" text-anchor="end" '
            f'transform="rotate(-25 {middle:.1f} {floor + 14})">{escape(label)}</text>'
        )
    line = f'<line x1="0" x2="{WIDTH}" y1="{floor}" y2="{floor}" stroke="currentColor" stroke-opacity=".4"/>'
    drawn = f'<svg viewBox="-30 0 {WIDTH + 30} {HEIGHT}" width="{WIDTH + 30}" height="{HEIGHT}" role="img">'
    return f"<figure><figcaption>{escape(chart.title)}</figcaption>{drawn}{line}{''.join(shapes)}</svg></figure>"
