"""Grafana's dashboards as values: what a panel asks and how it is drawn, without the JSON around it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

DATASOURCE = {"type": "prometheus", "uid": "prometheus"}
SCHEMA_VERSION = 41
WIDTH, HEIGHT, COLUMNS = 8, 8, 24
"""Of a panel, and of the whole grid."""


@dataclass(frozen=True, slots=True)
class Query:
    """A question to Prometheus, and the name of each answer: Grafana's template over its labels."""

    ask: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """A graph over time."""

    title: str
    queries: Sequence[Query]
    unit: str = "short"
    limit: float | None = None
    """Drawn as a line: what was promised, or where an alert begins."""
    description: str = ""
    wide: int = 1
    """In widths of a usual panel."""


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under one heading."""

    title: str
    panels: Sequence[Panel]


@dataclass(frozen=True, slots=True)
class Choice:
    """What the reader chooses: the values of a label of a metric."""

    label: str
    metric: str


@dataclass(frozen=True, slots=True)
class Board:
    """A dashboard."""

    uid: str
    title: str
    rows: Sequence[Row]
    choices: Sequence[Choice] = field(default=())

    def as_json(self) -> dict[str, Any]:
        """As Grafana reads it from a file."""
        return {
            "uid": self.uid,
            "title": self.title,
            "tags": ["parley"],
            "schemaVersion": SCHEMA_VERSION,
            "version": 1,
            "editable": False,
            "refresh": "10s",
            "time": {"from": "now-1h", "to": "now"},
            "timezone": "browser",
            "links": [{"type": "dashboards", "tags": ["parley"], "title": "Parley", "asDropdown": True}],
            "templating": {"list": [_choice(choice) for choice in self.choices]},
            "panels": _laid_out(self.rows),
        }


def _choice(choice: Choice) -> dict[str, Any]:
    return {
        "name": choice.label,
        "label": choice.label,
        "type": "query",
        "datasource": DATASOURCE,
        "query": f"label_values({choice.metric}, {choice.label})",
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _laid_out(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Left to right, top to bottom."""
    panels: list[dict[str, Any]] = []
    top = 0
    for row in rows:
        heading = {"type": "row", "title": row.title, "collapsed": False, "panels": []}
        panels.append({**heading, "id": len(panels) + 1, "gridPos": {"x": 0, "y": top, "w": COLUMNS, "h": 1}})
        top, left = top + 1, 0
        for panel in row.panels:
            width = WIDTH * panel.wide
            if left + width > COLUMNS:
                top, left = top + HEIGHT, 0
            place = {"x": left, "y": top, "w": width, "h": HEIGHT}
            panels.append({**_panel(panel), "id": len(panels) + 1, "gridPos": place})
            left += width
        top += HEIGHT
    return panels


def _panel(panel: Panel) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": "transparent", "value": None}]
    if panel.limit is not None:
        steps.append({"color": "red", "value": panel.limit})
    custom = {"fillOpacity": 8, "showPoints": "never"} | (
        {"thresholdsStyle": {"mode": "line"}} if panel.limit is not None else {}
    )
    return {
        "type": "timeseries",
        "title": panel.title,
        "description": panel.description,
        "datasource": DATASOURCE,
        "fieldConfig": {
            "defaults": {"unit": panel.unit, "min": 0, "custom": custom, "thresholds": {"steps": steps}},
            "overrides": [],
        },
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(65 + number), "datasource": DATASOURCE, "expr": query.ask, "legendFormat": query.legend}
            for number, query in enumerate(panel.queries)
        ],
    }
