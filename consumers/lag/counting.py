"""What a group has done of one partition: finished, running and waiting, from offsets alone. Pure.

What can be known from outside: the committed offset, and beside it (a holder's claim) which records above it have ended
and which one it would take next. All three are as old as the last commit, half a second while records come. A group
that leaves no claim (views) has done what it has committed, and nothing else is known of it: all else waits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from parley.ownership import Claim

NOBODY = Claim()


@dataclass(frozen=True, slots=True)
class Look:
    """One partition as the brokers tell of it. Committed offsets are asked for before the log's bounds."""

    begin: int
    """The oldest offset that retention has left."""
    end: int
    """The offset that the next record will have."""
    committed: int | None
    """None: the group has never committed here."""
    claim: Claim = NOBODY
    held: bool = False
    """A member of the group holds the partition now, and it is the one that the claim names."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Offsets of a partition by what is done of them. Holes count as records until `settle` has looked."""

    start: int
    """The first offset that may be unfinished and can still be read."""
    position: int
    """Records below it were taken by the holder; start, when none is known to be."""
    end: int
    running: int
    waiting: int
    lost: int
    """Offsets that retention took away unfinished, at most."""
    ended: frozenset[int]

    @property
    def unfinished(self) -> int:
        """Records that are not done with: the lag."""
        return self.running + self.waiting

    @property
    def running_span(self) -> tuple[int, int]:
        """Where running records are: from the first one to the position."""
        return (self._next(self.start), self.position)

    @property
    def waiting_span(self) -> tuple[int, int]:
        """Where waiting records are: from the first one to the end."""
        return (self._next(self.position), self.end)

    def settle(self, running: int | None, waiting: int | None) -> Counts:
        """The same without the holes before the first running and waiting record; None: there is none in its span."""
        return replace(
            self,
            running=self._without_holes(self.running, self.running_span[0], running),
            waiting=self._without_holes(self.waiting, self.waiting_span[0], waiting),
        )

    def _next(self, offset: int) -> int:
        while offset in self.ended:
            offset += 1
        return offset

    def _without_holes(self, count: int, first: int, found: int | None) -> int:
        if found is None:
            return 0
        return count - (found - first - _inside(self.ended, first, found))


def count(look: Look) -> Counts:
    """What is done of a partition. Never negative: a commit past the end counts as nothing to do (see states)."""
    committed = look.begin if look.committed is None else look.committed
    start = min(max(committed, look.begin), look.end)
    ended = frozenset(offset for offset in look.claim.ended if start <= offset < look.end)
    position = start
    if look.held:  # what a dead holder had taken is taken anew
        told = look.claim.position
        if told is None:
            told = max(ended, default=start - 1) + 1  # records are taken in order
        position = min(max(told, start), look.end)
    gone = range(committed, max(committed, look.begin))
    return Counts(
        start=start,
        position=position,
        end=look.end,
        running=position - start - _inside(ended, start, position),
        waiting=look.end - position - _inside(ended, position, look.end),
        lost=len(gone) - _inside(look.claim.ended, gone.start, gone.stop),
        ended=ended,
    )


def _inside(offsets: Iterable[int], start: int, end: int) -> int:
    return sum(start <= offset < end for offset in offsets)
