"""Where a group's offsets go, how many records are read again or skipped by it, and what is committed. Pure.

Groups whose members take partitions over (protocol.md, section 1) keep a claim beside each offset, and it must outlive
the move: takeover numbers stand in dispatches and epochs, so a number that began at 1 again would make void whatever
the next holder writes about a turn that a holder before it had. So a move is a takeover: the next number, under the
operator's name. Under the old holder's name a process of it that was cut off, and comes back, would take the offsets
for its own and put its old ones in their place. Which records above the offset have ended is forgotten, since records
are to be read; so is the floor, as offsets that had to be moved by hand prove nothing about the log of turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from aiokafka import TopicPartition

from parley.errors import ParleyError
from parley.ownership import Claim
from schemas.base import Millis


@dataclass(frozen=True, slots=True)
class At:
    """The first record that was appended at this time or later; after the last record it is the end."""

    ms: Millis


Target: TypeAlias = Literal["earliest", "latest"] | int | At
"""What somebody asks for: the log's oldest record, its end, an offset, a time."""
Commit: TypeAlias = tuple[int, str]
"""A committed offset and the metadata beside it."""


@dataclass(frozen=True, slots=True)
class Place:
    """One partition, before the move."""

    where: TopicPartition
    begin: int
    """Its oldest offset."""
    end: int
    """The offset that its next record will have."""
    commit: Commit | None
    found: int | None = None
    """If a time is asked for: the offset of its first record, by the broker's index. None: there is none."""

    @property
    def committed(self) -> int | None:
        """The committed offset, if there is one."""
        return None if self.commit is None else self.commit[0]

    @property
    def claim(self) -> Claim:
        """What the last holder says beside it."""
        return Claim() if self.commit is None else Claim.decode(self.commit[1], self.commit[0])

    @property
    def next(self) -> int:
        """Where the group would go on without the move. One without a commit begins with the oldest record."""
        return self.begin if self.committed is None else min(max(self.committed, self.begin), self.end)


@dataclass(frozen=True, slots=True)
class Move:
    """One partition, and the offset that it is moved to."""

    place: Place
    target: int

    @property
    def again(self) -> int:
        """Records that are done and would be read once more; holes in the log are counted."""
        above = max(self.target, self.place.next)
        ended = sum(above <= offset < self.place.end for offset in self.place.claim.ended)
        return max(0, self.place.next - self.target) + ended

    @property
    def skipped(self) -> int:
        """Records that are not done and would never be read; holes in the log are counted."""
        ended = sum(self.place.next <= offset < self.target for offset in self.place.claim.ended)
        return max(0, self.target - self.place.next) - ended

    @property
    def needed(self) -> bool:
        """There is something to commit."""
        return self.place.committed != self.target or bool(self.again)


@dataclass(frozen=True, slots=True)
class Plan:
    """A group's move."""

    group: str
    target: Target
    moves: tuple[Move, ...]
    claimed: bool
    """Its members take partitions over, and leave claims."""

    @property
    def needed(self) -> tuple[Move, ...]:
        """Those that change something."""
        return tuple(move for move in self.moves if move.needed)

    @property
    def again(self) -> int:
        """Records that would be read once more."""
        return sum(move.again for move in self.moves)

    @property
    def skipped(self) -> int:
        """Records that would never be read."""
        return sum(move.skipped for move in self.moves)

    def commits(self, holder: str) -> dict[TopicPartition, Commit]:
        """What is to be committed by `holder` (NAME:NONCE, as members call themselves)."""
        return {move.place.where: self._commit(move, holder) for move in self.needed}

    def _commit(self, move: Move, holder: str) -> Commit:
        if not self.claimed:
            return move.target, ""
        claim = Claim(holder, move.place.claim.takeover + 1, position=move.target)
        return move.target, claim.encode(move.target)


def plan(group: str, target: Target, places: Sequence[Place], *, claimed: bool) -> Plan:
    """The move of these partitions.

    Raises:
        ParleyError: invalid_request: an offset that a partition's log doesn't have.
    """
    if isinstance(target, int):
        wrong = [place for place in places if not place.begin <= target <= place.end]
        if wrong:
            told = ", ".join(f"{name(place.where)} has {place.begin} to {place.end}" for place in wrong[:5])
            more = f" and {len(wrong) - 5} more are like it" if len(wrong) > 5 else ""
            raise ParleyError("invalid_request", f"no offset {target}: {told}{more}; --partition takes single ones")
    return Plan(group, target, tuple(Move(place, _resolved(target, place)) for place in places), claimed)


def _resolved(target: Target, place: Place) -> int:
    match target:
        case "earliest":
            return place.begin
        case "latest":
            return place.end
        case At():
            return place.end if place.found is None else place.found
        case _:
            return target


def name(where: TopicPartition) -> str:
    """TOPIC-PARTITION."""
    return f"{where.topic}-{where.partition}"
