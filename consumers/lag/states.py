"""Is a group keeping up with a partition? Burrow's rules, with seconds in the place of its windows of records. Pure.

Burrow (linkedin/Burrow, core/internal/evaluator/caching.go) calls a partition OK when its lag is zero, or was at some
commit of the window, and judges the rest by its commits. Here lag that is not old is no lag: a record may wait, and may
run, for as long as the group's patience says. What is late is judged in Burrow's order:

=========  ===========================================================================================
OK         nothing is late; or records are, and the lag has shrunk within the window: it catches up
REWIND     a commit was lower than the one before it and has not come back to it; or it is past the log
STOP       no commits any more: the group is down, or hangs
STALL      commits go on with the same offset: one record keeps the prefix where it is
WARN       commits go on and the offset moves, but the lag does not shrink; or commits can't be read
NO_COMMIT  records are there and the group has never committed: nobody knows what it has done
=========  ===========================================================================================
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise

from consumers.lag.counting import Counts, Look
from consumers.lag.groups import Patience


class State(IntEnum):
    """Ordered by how bad it is: a group's is its worst partition's."""

    OK = 0
    WARN = 1
    NO_COMMIT = 2
    REWIND = 3
    STALL = 4
    STOP = 5


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit of the window."""

    at: int
    """When it was made, in ms, by the coordinator's clock."""
    offset: int
    end: int | None = None
    """What the log's end was then; None: not asked for."""


@dataclass(frozen=True, slots=True)
class Ages:
    """How old the oldest records are, by their append times; None: there is none."""

    running_s: float | None = None
    waiting_s: float | None = None
    commit_s: float | None = None
    """Of the last commit; None: none within the window, or not known."""

    @property
    def unfinished_s(self) -> float:
        """The lag in seconds."""
        return max(self.running_s or 0.0, self.waiting_s or 0.0)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A state and why, in a sentence."""

    state: State
    reason: str = ""


def late(ages: Ages, patience: Patience) -> str:
    """What is late, in words; empty: nothing is."""
    if ages.waiting_s is not None and ages.waiting_s > patience.start_s:
        return f"a record has waited for {ages.waiting_s:.0f} s"
    if ages.running_s is not None and ages.running_s > patience.finish_s:
        return f"a record has run for {ages.running_s:.0f} s"
    return ""


def judge(
    look: Look, counts: Counts, ages: Ages, patience: Patience, commits: Sequence[Commit] | None, members: int
) -> Verdict:
    """The state of one partition. `commits` are those of the window, oldest first; None: they can't be read."""
    if look.committed is None:
        if not counts.unfinished:  # offsets alone are no records: transaction markers, what compaction took
            return Verdict(State.OK)
        return Verdict(State.NO_COMMIT, f"never committed; {counts.unfinished} records can be read")
    if look.committed > look.end:
        return Verdict(State.REWIND, f"committed {look.committed}, but the log ends at {look.end}: was it made anew?")
    why = late(ages, patience)
    if not why:
        return Verdict(State.OK)
    if commits is None:
        return Verdict(State.WARN, f"{why}; commits can't be read")
    if rewound(commits):
        return Verdict(State.REWIND, f"{why}; committed offsets went back")
    if ages.commit_s is None or ages.commit_s > patience.start_s:
        since = "no commit in the window" if ages.commit_s is None else f"no commit for {ages.commit_s:.0f} s"
        return Verdict(State.STOP, f"{why}; {since}" if members else f"{why}; the group has no members")
    if stalled(commits, patience):
        return Verdict(State.STALL, f"{why}; commits go on, the offset stays")
    if shrinks(commits):
        return Verdict(State.OK, f"{why}; it catches up")
    return Verdict(State.WARN, f"{why}; the lag does not shrink")


def rewound(commits: Sequence[Commit]) -> bool:
    """Some commit was lower than the one before it, and none since has come back to that."""
    highest = -1
    for commit in commits:
        highest = max(highest, commit.offset)
    return bool(commits) and any(a.offset > b.offset for a, b in pairwise(commits)) and commits[-1].offset < highest


def stalled(commits: Sequence[Commit], patience: Patience) -> bool:
    """The commits of the last while, at least the last two, all have one offset."""
    if len(commits) < 2:
        return False
    recent = [commit for commit in commits if commit.at > commits[-1].at - 1000 * patience.start_s]
    return len({commit.offset for commit in (*commits[-2:], *recent)}) == 1


def shrinks(commits: Sequence[Commit]) -> bool:
    """The lag was smaller at some commit than at the one before it."""
    lags = [max(0, commit.end - commit.offset) for commit in commits if commit.end is not None]
    return any(after < before for before, after in pairwise(lags))


def worst(states: Iterable[State]) -> State:
    """A group's state: one stuck partition is not hidden among many."""
    return max(states, default=State.OK)
