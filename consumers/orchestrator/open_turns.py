"""Where the turns without an end stand in the state log of a partition. Pure.

A turn has one who answers for its end, so whoever takes the partition over must find every turn that is still open:
it folds the log from the oldest one's first decision on. That offset, the floor, is kept in the claim.
"""

from __future__ import annotations

from dataclasses import dataclass

from parley.session import Void
from schemas.turns import TurnEnded, TurnStarted
from schemas.wire import TurnsEvent


@dataclass(slots=True)
class _Place:
    first: int
    """Offset of the first TurnStarted that was seen of the turn: whether it may have run is known from all of them."""
    standing: int


class OpenTurns:
    """The open turns of a partition, by response."""

    def __init__(self) -> None:
        self._position = 0
        self._places: dict[str, _Place] = {}  # in the order of their first offsets

    @property
    def floor(self) -> int:
        """Every turn whose first decision is below this offset has ended."""
        first = next(iter(self._places.values()), None)
        return self._position if first is None else first.first

    def fold(self, event: TurnsEvent, void: Void | None, offset: int) -> None:
        """An event at `offset` was applied to its session, or was void there."""
        self._position = offset + 1
        if void is not None:
            return
        if isinstance(event, TurnStarted):
            place = self._places.setdefault(event.response, _Place(offset, offset))
            place.standing = offset
        elif isinstance(event, TurnEnded):
            self.close(event.response)

    def close(self, response: str) -> None:
        """The turn has ended."""
        self._places.pop(response, None)

    def place(self, response: str) -> int | None:
        """Offset of the standing TurnStarted of an open turn."""
        found = self._places.get(response)
        return found.standing if found else None
