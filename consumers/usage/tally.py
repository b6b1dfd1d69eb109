"""Counting each turn once, whatever is read twice: a pure function of two small records.

An end of a turn is a record of chat.turns at an offset. It belongs to one user and to one hour, that of the turn's
acceptance, which is part of the response id: so all ends of a turn, however late and whoever wrote them, concern the
same `Hour`. (The hour of the append time would differ between two ends of one turn; a writer's clock that is wrong
moves a turn to a neighbouring hour here, and changes no sum.)

- `Hour.through` is the offset of the newest end that is in its numbers. Ends of a partition are counted in the order
  of the log, so an end at or below it is in the numbers, and reading it again changes nothing.
- `Counted` is what an end contributed. Those of a turn are remembered for another end of it: of the same or a smaller
  epoch it adds nothing; of a greater epoch its numbers replace those of the end that stood so far. They are forgotten
  when no end can follow any more.

The two are written one after the other, and either write may be lost with the process before the end's own offset is
committed; the end is then read again. So all ends that stood for a while are remembered (the epoch rises at most a few
times): those above `Hour.through` are ones whose hour was lost and don't count as counted; the greatest epoch of the
others is what is in the hour. tests/unit/test_usage_tally.py loses writes at random.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from parley.ids import response_address
from schemas.base import Epoch, Usage
from schemas.turns import TurnEnded

HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Counted:
    """What one end of a turn contributed."""

    epoch: Epoch
    input: int
    output: int
    generated: int
    offset: int
    """Of the end that was counted, in its partition of chat.turns."""
    at_ms: int
    """Append time of that end."""

    @classmethod
    def of(cls, end: TurnEnded, offset: int, at_ms: int) -> Counted:
        """The contribution of an end read at this offset."""
        used: Usage = end.usage
        return cls(end.epoch, used.input_tokens, used.output_tokens, used.generated_tokens, offset, at_ms)

    def json(self) -> list[Any]:
        """For the changelog."""
        return [list(self.epoch), self.input, self.output, self.generated, self.offset, self.at_ms]

    @classmethod
    def from_json(cls, value: list[Any]) -> Counted:
        """Back from the changelog."""
        (dispatch_takeover, dispatch_count, takeover, run), *numbers = value
        return cls((dispatch_takeover, dispatch_count, takeover, run), *numbers)


Turn = tuple[Counted, ...]
"""The ends of one turn that stood for a while, or stand."""


@dataclass(frozen=True, slots=True)
class Hour:
    """What the sessions of one partition used of one user's hour."""

    turns: int = 0
    input: int = 0
    output: int = 0
    generated: int = 0
    through: int = -1
    """Offset of the newest end that is in these numbers."""

    def plus(self, turn: Counted, sign: int = 1) -> Hour:
        """With a turn's contribution added, or taken away."""
        return replace(
            self,
            turns=self.turns + sign,
            input=self.input + sign * turn.input,
            output=self.output + sign * turn.output,
            generated=self.generated + sign * turn.generated,
        )

    def json(self) -> list[int]:
        """For the changelog."""
        return [self.turns, self.input, self.output, self.generated, self.through]

    @classmethod
    def from_json(cls, value: list[int]) -> Hour:
        """Back from the changelog."""
        return cls(*value)


def count(hour: Hour, remembered: Turn, end: Counted) -> tuple[Hour, Turn]:
    """The hour, and what is remembered of the turn, after one more end of it."""
    known = tuple(one for one in remembered if one.offset <= hour.through)
    standing = max(known, key=lambda one: one.epoch, default=None)
    new = standing is None or end.epoch > standing.epoch
    if end.offset > hour.through:
        if new:
            hour = (hour if standing is None else hour.plus(standing, -1)).plus(end)
        hour = replace(hour, through=end.offset)
    return hour, (*known, end) if new else known


def hour_of(response: str) -> int:
    """Hours from the Unix epoch to the hour in which a turn was accepted."""
    return response_address(response).accepted_ms // HOUR_MS


def hour_key(partition: int, user: UUID, hour: int) -> str:
    """Key of an `Hour`. With the partition: one process holds several, and their numbers must not mix."""
    return f"{partition}:{user.hex}:{hour}"


def parse_hour_key(key: str) -> tuple[int, UUID, int]:
    """(partition, user, hour).

    Raises:
        ValueError: not such a key.
    """
    partition, user, hour = key.split(":")
    return int(partition), UUID(hex=user), int(hour)


def turn_key(partition: int, response: str) -> str:
    """Key of a `Turn`."""
    return f"{partition}:{response}"
