"""Clients at edges: each reads its turn's route whenever it likes, loses its connection, and resumes elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from producers.edge.projection import Projection, PublicEvent
from schemas.prompts import PromptAccepted

from .events import LANE

if TYPE_CHECKING:
    from .world import World


class Reader:
    """One client. What it has been shown stays shown; an edge is only a fold and a place in the log."""

    def __init__(self, world: World, prompt: PromptAccepted, *, announces: bool) -> None:
        self._world = world
        self.prompt = prompt
        self._announces = announces
        self.shown: list[PublicEvent] = []
        self.reconnect()

    def reconnect(self) -> None:
        """Another edge reads the route from the turn's start and sends what follows the last event seen."""
        self._edge = Projection(self.prompt.response)
        self._edge.transcript = self._world.transcript()
        self._position = self.prompt.route.start
        if self._announces:
            self._edge.announce(self.prompt.echo)
        if "read-from-start" in self._world.without:
            self._position = len(self._world.logs.log(LANE))

    def step(self) -> None:
        """Read on, as far as chance will have it."""
        log = self._world.logs.log(LANE)
        behind = len(log) - self._position
        self.read(self._world.choices.below(behind + 1) if behind > 0 else 0)

    def read(self, records: int) -> None:
        for record in self._world.logs.log(LANE)[self._position : self._position + records]:
            if record.response == self.prompt.response:
                self._edge.apply(record.event)
        self._position += records
        self.shown += self._edge.events[len(self.shown) :]

    def read_all(self) -> None:
        self.read(len(self._world.logs.log(LANE)) - self._position)
