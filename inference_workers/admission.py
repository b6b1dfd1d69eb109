"""Which waiting turn gets the engine's next free slot: paid before free, then the nearest deadline, then first come.

Pure. The engine's own queue has no bound and knows no tiers: the worker is the admission.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from schemas.base import TIERS, Tier


@dataclass(order=True, slots=True)
class _Waiting:
    rank: int
    deadline: int
    place: int
    response: str = field(compare=False)
    tier: Tier = field(compare=False)
    since_ms: int = field(compare=False)
    admit: Callable[[], None] = field(compare=False)
    gone: bool = field(default=False, compare=False)


class Admission:
    """The slots of one engine and the turns that wait for one."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.running = 0
        self._heap: list[_Waiting] = []
        self._waiting: dict[str, _Waiting] = {}
        self._places = count()

    def enter(self, response: str, tier: Tier, deadline: int, now_ms: int, admit: Callable[[], None]) -> None:
        """Ask for a slot; `admit` is called when there is one, perhaps at once."""
        waiting = _Waiting(TIERS.index(tier), deadline, next(self._places), response, tier, now_ms, admit)
        heapq.heappush(self._heap, waiting)
        self._waiting[response] = waiting
        self._admit()

    def withdraw(self, response: str) -> None:
        """No longer wait."""
        if (waiting := self._waiting.pop(response, None)) is not None:
            waiting.gone = True

    def leave(self) -> None:
        """Give a slot back."""
        self.running -= 1
        self._admit()

    def resize(self, slots: int) -> None:
        """Have so many slots from now on; what runs beyond them runs on."""
        self.slots = slots
        self._admit()

    def queued(self) -> dict[str, int]:
        """Waiting turns by tier. Asked for by another thread as well, hence the copy in one step."""
        waiting = list(self._waiting.values())
        return {tier: sum(w.tier == tier for w in waiting) for tier in TIERS}

    def oldest_ms(self, now_ms: int) -> dict[str, int]:
        """Age of the oldest waiting turn by tier, in ms."""
        return {
            tier: max((now_ms - w.since_ms for w in self._waiting.values() if w.tier == tier), default=0)
            for tier in TIERS
        }

    def _admit(self) -> None:
        while self.running < self.slots and self._heap:
            waiting = heapq.heappop(self._heap)
            if not waiting.gone:
                del self._waiting[waiting.response]
                self.running += 1
                waiting.admit()
