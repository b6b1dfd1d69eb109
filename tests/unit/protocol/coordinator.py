"""The group coordinator as Kafka has it: it fences commits by member id and generation, never by partition."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from .choices import Choices

if TYPE_CHECKING:
    from .member import Member

Committed = dict[int, tuple[int, str]]
"""Offset and metadata of each partition."""
Outcome = Literal["accepted", "refused", "unknown"]


class Commit:
    """A commit request in flight. A live client's retry goes out under the generation that it has by then."""

    __slots__ = ("_lost_in", "_member", "offsets", "outcome")

    def __init__(self, member: Member, offsets: Committed) -> None:
        self._member = member
        self._lost_in: int | None = None
        self.offsets = offsets
        self.outcome: Outcome | None = None

    @property
    def lost(self) -> bool:
        return self._lost_in is not None

    def process(self) -> None:
        """It reaches the coordinator, which may be long after its sender has given it up."""
        member = self._member
        group = member.coordinator
        generation = member.generation if self._lost_in is None else self._lost_in
        accepted = group.members.get(member.slot) == member.id and generation == group.generation
        if accepted:
            group.keep(self.offsets)
        if self._lost_in is None:
            self.outcome = "accepted" if accepted else "refused"
            member.in_flight.remove(self)

    def lose(self) -> None:
        """Its sender hears of no answer."""
        self._lost_in, self.outcome = self._member.generation, "unknown"
        self._member.in_flight.remove(self)


class Coordinator:
    """One group over the partitions of one topic; its members are static, known by their slots."""

    def __init__(self, choices: Choices, topic: str, partitions: range) -> None:
        self._choices = choices
        self.topic = topic
        self.partitions = partitions
        self.generation = 0
        self.members: dict[int, int] = {}
        """Member id by slot (the group instance id)."""
        self.owners: dict[int, int] = {}
        """Slot by partition."""
        self.preparing = False
        self.answers: dict[int, int] = {}
        """JoinGroup's answers that are on their way: the new generation, by member id."""
        self._joined: set[int] = set()
        self.committed: Committed = dict.fromkeys(partitions, (0, ""))
        self.past: list[Committed] = [dict(self.committed)]
        """What deposed coordinators may still answer with, newest last."""

    def keep(self, offsets: Committed) -> None:
        self.committed |= offsets
        self.past = [*self.past[-3:], dict(self.committed)]

    def join(self, member: Member) -> None:
        """JoinGroup. A static member that comes back to a stable group takes its old place and generation."""
        if member.generation == 0:
            known = member.slot in self.members
            self.members[member.slot] = member.id
            if known and not self.preparing:
                self.answers[member.id] = self.generation
                return
        elif self.members.get(member.slot) != member.id:
            return
        self.prepare()
        self._joined.add(member.slot)

    def prepare(self) -> None:
        """A rebalance begins."""
        if not self.preparing:
            self.preparing, self._joined = True, set()

    def evict(self, slot: int) -> None:
        """A session has timed out."""
        if self.members.pop(slot, None) is not None:
            self.prepare()
            self._joined.discard(slot)

    def complete(self, *, timeout: bool = False) -> None:
        """All have joined, or the rebalance's time is over and the rest is out: a new generation, new owners."""
        if self.preparing and self._joined and (timeout or self._joined >= set(self.members)):
            self.members = {slot: member for slot, member in self.members.items() if slot in self._joined}
            self.generation += 1
            self.preparing = False
            slots = sorted(self.members)
            self.owners = {p: self._choices.pick(slots) for p in self.partitions}
            self.answers = dict.fromkeys(self.members.values(), self.generation)
