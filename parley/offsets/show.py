"""A move for people at a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

from aiokafka import TopicPartition
from rich.table import Table

from parley.log.groups import GroupState
from parley.offsets.plan import At, Commit, Move, Plan, Target, name


def title(state: GroupState, plan: Plan) -> str:
    """The group as it is, and what is asked for."""
    members = len(state.members)
    return (
        f"{state.name}: {state.state}, {members or 'no'} member{'' if members == 1 else 's'}; to {_target(plan.target)}"
    )


def table(plan: Plan) -> Table:
    """A line for each partition."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    made.add_column("partition", overflow="fold")
    for column in ("log", "committed", "target", "read again", "skipped"):
        made.add_column(column, justify="right")
    made.add_column("", overflow="fold")
    for move in plan.moves:
        place = move.place
        made.add_row(
            name(place.where),
            f"{place.begin}–{place.end}",
            "none" if place.committed is None else str(place.committed),
            str(move.target),
            f"{move.again:,}",
            f"{move.skipped:,}",
            "; ".join(_notes(plan, move)),
        )
    return made


def done(
    plan: Plan, commits: Mapping[TopicPartition, Commit], found: Mapping[TopicPartition, Commit]
) -> tuple[list[str], int]:
    """What the brokers say of each partition that was moved, and how many are not where they should be."""
    lines, wrong = [], 0
    for move in plan.needed:
        where, before = move.place.where, move.place.committed
        now = found.get(where)
        line = f"{name(where)}  {'none' if before is None else before} -> {'none' if now is None else now[0]}"
        if now != commits[where]:
            wrong += 1
            line += "  WRONG: " + (f"not {move.target}" if now is None or now[0] != move.target else "another's claim")
        lines.append(line)
    return lines, wrong


def _notes(plan: Plan, move: Move) -> Iterator[str]:
    place = move.place
    if not move.needed:
        yield "stays"
    if place.committed is not None and place.committed > place.end:
        yield f"its commit is {place.committed - place.end:,} past the log's end"
    elif place.committed is not None and place.committed < place.begin:
        yield f"retention took {place.begin - place.committed:,} before they were done"
    if isinstance(plan.target, At) and place.found is None:
        yield "no record since then: the end"
    if plan.claimed and move.needed:
        yield f"takeover {place.claim.takeover} -> {place.claim.takeover + 1}"


def _target(target: Target) -> str:
    match target:
        case "earliest":
            return "the oldest record"
        case "latest":
            return "the end"
        case At(ms):
            when = datetime.fromtimestamp(ms / 1000, UTC)
            return f"the first record from {when:%Y-%m-%d %H:%M:%S}.{ms % 1000:03d} UTC on"
        case _:
            return f"offset {target}"
