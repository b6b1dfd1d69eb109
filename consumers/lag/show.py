"""A report for people (a table) and for scripts (JSON)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from rich.table import Table
from rich.text import Text

from consumers.lag.states import State
from consumers.lag.survey import GroupLag, PartitionLag, Report

COLOURS = {
    State.OK: "green",
    State.WARN: "yellow",
    State.NO_COMMIT: "magenta",
    State.REWIND: "red",
    State.STALL: "red",
    State.STOP: "red",
}
EXIT_CODES = {State.OK: 0, State.WARN: 3, State.NO_COMMIT: 4, State.REWIND: 5, State.STALL: 5, State.STOP: 5}
"""Of `--check`. 1 and 2 are errors of the command itself."""
GONE = 5
"""Of lost records, and of a topic that does not exist: it has no partition that could be in a state."""


def exit_code(report: Report) -> int:
    """The greatest of all partitions' and topics'."""
    if any(group.missing for group in report.groups):
        return GONE
    partitions = [partition for group in report.groups for partition in group.partitions]
    return max((GONE if p.counts.lost else EXIT_CODES[p.verdict.state] for p in partitions), default=0)


def as_json(report: Report) -> dict[str, Any]:
    """Everything that is known; times in seconds. A figure that isn't known is null, never 0 or -1."""
    return {
        "at": datetime.fromtimestamp(report.at / 1000, UTC).isoformat(timespec="milliseconds"),
        "groups": [_group_json(group) for group in report.groups],
        "pools": [status.model_dump(exclude={"v", "type"}) for status in report.pools],
    }


def table(report: Report, every: bool = False) -> Table:
    """A line for each partition that is busy or not OK, one for each group and topic that is neither."""
    made = Table(box=None, pad_edge=False, header_style="bold", title=_summary(report), title_justify="left")
    made.add_column("group")
    made.add_column("partition")
    made.add_column("state")
    made.add_column("holder")
    for name in ("committed", "end", "running", "waiting", "commit"):
        made.add_column(name, justify="right")
    made.add_column("why", overflow="fold")
    for group in report.groups:
        for row in _rows(group, every):
            made.add_row(*row)
    return made


def pool_lines(report: Report) -> list[str]:
    """What workers say: requests that a worker has taken wait for a slot of its engine, and the log can't tell."""
    return [
        f"pool {s.pool} ({s.worker}): {s.running} of {s.slots} slots busy, "
        + ", ".join(f"{n} {tier} queued" + _oldest(s.oldest_queued_ms.get(tier, 0)) for tier, n in s.queued.items())
        for s in report.pools
    ]


def _oldest(ms: int) -> str:
    return f" (oldest {age_text(ms / 1000)})" if ms else ""


def _summary(report: Report) -> str:
    unfinished = sum(group.unfinished for group in report.groups)
    at = datetime.fromtimestamp(report.at / 1000, UTC)
    return f"{at:%H:%M:%S} UTC  {len(report.groups)} groups, {unfinished} records unfinished"


def _rows(group: GroupLag, every: bool) -> Iterator[list[str | Text]]:
    quiet = [p for p in group.partitions if not p.busy and not every]
    for partition in group.partitions:
        if partition not in quiet:
            yield _row(group, partition)
    for topic in sorted({partition.where.topic for partition in quiet}):
        of_topic = [p for p in quiet if p.where.topic == topic]
        holders = sorted({name.split(":")[0] for p in of_topic for name in p.members})
        word = f"{topic} × {len(of_topic)}"
        yield [group.name, word, _state(State.OK), _shortened(", ".join(holders) or "nobody"), *[""] * 5, ""]
    for topic in group.missing:
        yield [group.name, topic, Text("missing", "dim"), *[""] * 6, "the topic does not exist"]
    for topic in group.left:
        yield [group.name, topic, Text("left", "dim"), *[""] * 6, "committed once, read no more: not counted"]


def _row(group: GroupLag, p: PartitionLag) -> list[str | Text]:
    counts, ages = p.counts, p.ages
    lost = f"retention took up to {counts.lost} unfinished records" if counts.lost else ""
    return [
        group.name,
        f"{p.where.topic}-{p.where.partition}",
        _state(p.verdict.state),
        _holder(p),
        "none" if p.look.committed is None else str(p.look.committed),
        str(p.look.end),
        _records(counts.running, ages.running_s),
        _records(counts.waiting, ages.waiting_s),
        "" if ages.commit_s is None else age_text(ages.commit_s),
        "; ".join(part for part in (p.verdict.reason, lost) if part),
    ]


def _state(state: State) -> Text:
    return Text(state.name, COLOURS[state])


def _holder(p: PartitionLag) -> str:
    claim = p.look.claim
    if not claim.holder:
        return _shortened(", ".join(p.members) or "nobody")
    name = claim.holder.split(":")[0]
    if p.look.held:
        return f"{_shortened(name)} #{claim.takeover}"
    return f"nobody (was {_shortened(name)} #{claim.takeover})"


def _shortened(name: str, limit: int = 28) -> str:
    return name if len(name) <= limit else name[: limit - 1] + "…"


def _records(count: int, oldest_s: float | None) -> str:
    return "0" if not count else str(count) if oldest_s is None else f"{count} ({age_text(oldest_s)})"


def age_text(seconds: float) -> str:
    """As people say it."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7_200 else f"{seconds / 3_600:.0f} h"


def _group_json(group: GroupLag) -> dict[str, Any]:
    return {
        "group": group.name,
        "state": group.state.name,
        "kafka_state": group.kafka_state,
        "members": group.members,
        "unfinished": group.unfinished,
        "oldest_unfinished_s": max((p.ages.unfinished_s for p in group.partitions), default=0.0),
        "no_commit": sum(p.verdict.state is State.NO_COMMIT for p in group.partitions),
        "missing_topics": list(group.missing),
        "topics_left": list(group.left),
        "partitions": [_partition_json(partition) for partition in group.partitions],
    }


def _partition_json(p: PartitionLag) -> dict[str, Any]:
    look, counts, ages, committed = p.look, p.counts, p.ages, p.look.committed is not None
    claim = look.claim
    return {
        "topic": p.where.topic,
        "partition": p.where.partition,
        "state": p.verdict.state.name,
        "reason": p.verdict.reason,
        "holder": claim.holder or None,
        "held": look.held if claim.holder else bool(p.members),
        "takeover": claim.takeover if claim.holder else None,
        "members": list(p.members),
        "begin": look.begin,
        "committed": look.committed,
        "position": counts.position if look.held else None,
        "end": look.end,
        "available": counts.end - counts.start,
        "lag": counts.unfinished if committed else None,
        "lag_s": round(ages.unfinished_s, 3) if committed else None,
        "running": counts.running if committed else None,
        "waiting": counts.waiting if committed else None,
        "oldest_running_s": ages.running_s,
        "oldest_waiting_s": ages.waiting_s,
        "lost": counts.lost,
        "commit_age_s": ages.commit_s,
    }
