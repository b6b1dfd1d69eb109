"""Schedules written by hand: who moves, what is held back, who dies, and when."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from parley.session import Session, Turn, Void
from parley.transcript import Transcript
from parley.transcript import Void as RouteVoid
from schemas.prompts import PromptAccepted

from .choices import Listed
from .coordinator import Coordinator
from .events import LANE, PROMPTS, TURNS
from .invariants import StateLog, broken
from .log import Record
from .member import Member
from .world import World

T = TypeVar("T")


class Harmless(Listed):
    """Nothing happens by chance; partitions go to the preferred slot, prompts to the preferred pool."""

    def __init__(self) -> None:
        super().__init__(())
        self.preferred: object = 0

    def pick(self, among: Sequence[T]) -> T:
        return next((one for one in among if one == self.preferred), among[0])


class Script:
    """A world with one session, everybody at work, and nothing left to chance."""

    def __init__(self, *without: str) -> None:
        self.choices = Harmless()
        self.world = World(self.choices, frozenset(without), sessions=1)
        self.world.healing = True
        self.world.supervise()
        self.rounds(12)

    # -- who is who ---------------------------------------------------------------------------------------------------

    def holder(self, topic: str) -> Member:
        """The newest process in the place that the topic's partition was given to."""
        group = self.coordinator(topic)
        return next(p for p in self.world.processes[::-1] if p.coordinator is group and p.slot == group.owners[0])

    def coordinator(self, topic: str) -> Coordinator:
        return next(group for group in self.world.coordinators if group.topic == topic)

    @property
    def orchestrator(self) -> Member:
        return self.holder(PROMPTS)

    @property
    def worker(self) -> Member:
        """Of the pool that turns are sent to unless told otherwise."""
        return self.holder("chat.inference.a")

    # -- what happens -------------------------------------------------------------------------------------------------

    def prompt(self, *, allowed: bool = True, **about: str) -> PromptAccepted:
        """A user's prompt, and moderation's word on it."""
        record = self.world.accept(0, **about)
        assert record is not None
        if allowed:
            self.world.moderate(record.event, "allow")
        prompt: PromptAccepted = record.event
        return prompt

    def rounds(self, count: int = 1) -> None:
        for _ in range(count):
            self.world.round()

    def until(self, holds: Callable[[], object], within: int = 60) -> None:
        for _ in range(within):
            if holds():
                return
            self.rounds()
        raise AssertionError("it did not come to that")

    def alone(self, process: Member, moves: int = 1) -> None:
        """A process moves; nothing that anybody sends arrives."""
        for _ in range(moves):
            for key in list(process.tasks):
                process.advance(key)

    def hold_back(self, process: Member, topic: str) -> None:
        """What the process sends to a topic stays on its way."""
        process.held_back.add(topic)
        for where, queue in process.queues.items():
            queue.stuck = queue.stuck or where[0] == topic

    def on_its_way(self, process: Member, topic: str) -> list[Record]:
        return [r for (name, _), queue in process.queues.items() if name == topic for r in queue.records]

    def arrive(self, process: Member, topic: str, *, acknowledge: bool = True) -> None:
        """What was held back reaches the log."""
        process.held_back.discard(topic)
        for (name, _), queue in process.queues.items():
            if name == topic:
                queue.stuck = False
                while queue.records:
                    queue.land(acknowledge=acknowledge)

    def freeze(self, process: Member) -> None:
        """SIGSTOP, or a long pause: it does not know that time passes."""
        process.stalled = True

    def replace(self, process: Member) -> Member:
        """Its session times out, and the other slot's process takes the partition; the old one may live on."""
        group = process.coordinator
        self.choices.preferred = 1 - process.slot
        group.evict(process.slot)
        self.until(lambda: group.owners[0] != process.slot and self.holder(group.topic).open)
        return self.holder(group.topic)

    def kill(self, process: Member, on_the_wire: int = 0) -> None:
        """SIGKILL; so many records of each producer are on the wire."""
        process.dead, process.tasks, self.world.missed = True, {}, True
        for queue in process.queues.values():
            queue.fail(min(on_the_wire, len(queue.records)))
        self.world.supervise()

    def later(self, seconds: float) -> None:
        self.world.logs.now += int(1000 * seconds)

    # -- what is seen -------------------------------------------------------------------------------------------------

    def events(self, prompt: PromptAccepted, kind: type, topic: str = LANE[0]) -> list[Record]:
        log = self.world.logs.log((topic, 0))
        return [r for r in log if r.response == prompt.response and isinstance(r.event, kind)]

    def route(self, prompt: PromptAccepted) -> tuple[Transcript, list[tuple[Record, RouteVoid]]]:
        """The fold of the turn's route, and the records that were void in it."""
        transcript, voids = Transcript(), []
        for record in self.world.logs.log(LANE):
            if record.response == prompt.response and (void := transcript.apply(record.event)) is not None:
                voids.append((record, void))
        return transcript, voids

    def turns(self, prompt: PromptAccepted) -> tuple[Session, list[tuple[Record, Void]]]:
        """The fold of the state log, and the prompt's records that were void in it."""
        session, voids = Session(prompt.session), []
        for record in self.world.logs.log((TURNS, 0)):
            if (void := session.apply(record.event)) is not None and record.response == prompt.response:
                voids.append((record, void))
        return session, voids

    def turn(self, prompt: PromptAccepted) -> Turn | None:
        return StateLog(self.world).turn(prompt)

    def ended(self, prompt: PromptAccepted) -> bool:
        turn = self.turn(prompt)
        return turn is not None and turn.status is not None

    def settle(self) -> None:
        """All troubles are over: everything comes to rest, and every promise holds."""
        for process in self.world.processes:
            process.stalled = False
            for topic in list(process.held_back):
                self.arrive(process, topic)
        self.until(self.world.at_rest, 150)
        assert broken(self.world) is None
