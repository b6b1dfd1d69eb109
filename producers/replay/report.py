"""What a replay found, as one value for all stages: a row for each turn, totals, and what there is to draw. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise

from pydantic import BaseModel, ConfigDict

from producers.replay.manifest import Manifest
from schemas.base import Millis

Figure = str | int | float | None


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True)


class Row(_Value):
    """One turn, as it was and as it would be."""

    response: str
    session: str
    source: str
    """Where its live record lies."""
    at: Millis
    """When the log took that."""
    change: str
    """In the stage's words; `same` when there is none."""
    before: dict[str, Figure]
    after: dict[str, Figure]
    texts: dict[str, str] = {}
    """By name; empty unless contents were asked for."""

    @property
    def changed(self) -> bool:
        """It is not as it was."""
        return self.change != SAME


class Chart(_Value):
    """Two series over the same labels, drawn as pairs of bars."""

    title: str
    labels: tuple[str, ...]
    before: tuple[float, ...]
    after: tuple[float, ...]


class Report(_Value):
    """All of it."""

    manifest: Manifest
    versions: dict[str, tuple[str, str]]
    """What was replaced: (those that the live log names, the replay's)."""
    totals: dict[str, int]
    """Turns by change, then what else the stage counts."""
    charts: tuple[Chart, ...]
    rows: tuple[Row, ...]

    @property
    def changed(self) -> tuple[Row, ...]:
        """Rows that are not as they were."""
        return tuple(row for row in self.rows if row.changed)


SAME = "same"


def count_changes(rows: Iterable[Row]) -> dict[str, int]:
    """How many turns there are, and how many of each change, the most frequent first."""
    counts = Counter(row.change for row in rows)
    return {"turns": counts.total(), **dict(counts.most_common())}


def histogram(title: str, before: Sequence[float], after: Sequence[float], edges: Sequence[float]) -> Chart:
    """How many values of each series are within each two neighbouring edges; the last edge belongs to its bin."""
    labels = tuple(f"{low:g}–{high:g}" for low, high in pairwise(edges))
    return Chart(title=title, labels=labels, before=_binned(before, edges), after=_binned(after, edges))


def spread(title: str, before: Sequence[float], after: Sequence[float], bins: int = 10) -> Chart | None:
    """A histogram over the range of both series; None when there is nothing to draw."""
    values = [*before, *after]
    if not values:
        return None
    low, high = min(values), max(values)
    step = max((high - low) / bins, 1.0 if all(value == int(value) for value in values) else 1e-9)
    edges = [round(low + n * step, 3) for n in range(bins + 1)]
    return histogram(title, before, after, [*edges[:-1], max(edges[-1], high)])


def tally(title: str, before: Iterable[str], after: Iterable[str]) -> Chart:
    """How often each word comes in each series, the most frequent first."""
    old, new = Counter(before), Counter(after)
    labels = tuple(name for name, _ in (old + new).most_common())
    return Chart(
        title=title,
        labels=labels,
        before=tuple(float(old[name]) for name in labels),
        after=tuple(float(new[name]) for name in labels),
    )


def _binned(values: Iterable[float], edges: Sequence[float]) -> tuple[float, ...]:
    counts = [0.0] * (len(edges) - 1)
    for value in values:
        place = sum(value >= edge for edge in edges[1:-1])
        counts[place] += 1
    return tuple(counts)
