"""A process: its place in a group, its committer, its producers and what it follows.

Control flow as in parley/log/group.py, with its names; Progress and Claim are production's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from parley.ownership import Claim, Progress

from .coordinator import Commit, Committed, Coordinator, Outcome
from .log import Queue, Record, SendFailed, Where

if TYPE_CHECKING:
    from .world import World

Task = Generator[None, None, Any]


class Held:
    """A partition under one takeover of this process."""

    def __init__(self, member: Member, partition: int, takeover: int, progress: Progress) -> None:
        self.member = member
        self.partition = partition
        self.log = member.world.logs.log((member.coordinator.topic, partition))
        self.takeover = takeover
        self.progress = progress
        self.lost = False
        self.ready = False
        self.gate = False
        self.committed_version = -1
        self.proofs: list[list[bool]] = []
        self.tasks: set[tuple[Any, ...]] = set()

    def spawn(self, name: str, work: Task) -> None:
        """Run something for as long as the partition is held; what ran under the name ends."""
        if self.lost:
            return
        key = (name, self.partition, self.takeover)
        self.tasks.add(key)
        self.member.tasks[key] = work

    def end(self, offset: int) -> None:
        self.progress.end(offset)

    def prove(self) -> Task:
        """Returns once it is certain that this process held the partition at a moment after the call."""
        if "proof" in self.member.without:
            return
        proof = [False]
        self.proofs.append(proof)
        while not proof[0]:
            yield


class Follower:
    """What a process reads outside of its group: positions and handlers, as parley.log.follower."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._followed: dict[Where, tuple[list[Record], list[int], Callable[[Record], None]]] = {}

    def follow(self, topic: str, partition: int, start: int, handle: Callable[[Record], None]) -> None:
        self._followed[topic, partition] = (self._member.world.logs.log((topic, partition)), [start], handle)

    def unfollow(self, topic: str, partition: int) -> None:
        self._followed.pop((topic, partition), None)

    def reached(self, topic: str, partition: int, offset: int) -> Task:
        while (found := self._followed.get((topic, partition))) is not None and found[1][0] <= offset:
            yield

    def run(self) -> Task:
        choices, world = self._member.choices, self._member.world
        while True:
            yield
            for where, (log, position, handle) in list(self._followed.items()):
                behind = len(log) - position[0]
                if not behind:
                    continue
                for _ in range(behind if world.healing else choices.below(min(behind, 3) + 1)):
                    if where not in self._followed:
                        break
                    position[0] += 1
                    handle(log[position[0] - 1])


class Member(ABC):
    """One process of a role."""

    endless = ("client", "poll", "committer", "follower")
    """Tasks that never come to an end: a process that has only these is at rest."""

    def __init__(self, world: World, coordinator: Coordinator, slot: int) -> None:
        self.world = world
        self.choices = world.choices
        self.without = world.without
        self.coordinator = coordinator
        self.slot = slot
        self.id = world.fresh()
        self.holder = f"{slot}:{self.id}"
        self.generation = 0
        self.assignment = 0
        self.open = False
        self.rejoin = False
        self.dead = False
        self.stalled = False
        self.in_flight: list[Commit] = []
        self.held: dict[int, Held] = {}
        self.queues: dict[Where, Queue] = {}
        self.held_back: set[str] = set()
        """Topics that what is sent to does not reach, for scripts."""
        self.follower = Follower(self)
        self.tasks: dict[tuple[Any, ...], Task] = {
            ("client",): self._client(),
            ("poll",): self._poll(),
            ("committer",): self._committer(),
            ("follower",): self.follower.run(),
        }

    # -- what a role adds ---------------------------------------------------------------------------------------------

    @abstractmethod
    def take(self, taken: list[Held]) -> Task:
        """Partitions were taken anew: get ready, before their first records."""

    @abstractmethod
    def record(self, held: Held, record: Record) -> None:
        """A record, in order, once for each holding."""

    @abstractmethod
    def drop(self, held: Held) -> None:
        """The partition is no longer held; its tasks have ended."""

    # -- life ---------------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """A burst of moves of its tasks."""
        for _ in range(1 + self.choices.below(8)):
            if self.dead:
                return
            self.advance(self.choices.pick(list(self.tasks)))

    def advance(self, key: tuple[Any, ...]) -> None:
        task = self.tasks.get(key)
        if task is None:
            return
        try:
            next(task)
        except StopIteration:
            if self.tasks.get(key) is task:
                del self.tasks[key]

    def at_rest(self) -> bool:
        return not self.dead and self.open and all(key[0] in self.endless for key in self.tasks)

    def die(self) -> None:
        """Records in flight may still land: any prefix of each queue."""
        self.dead, self.tasks, self.world.missed = True, {}, True
        for queue in self.queues.values():
            queue.fail(self.choices.below(len(queue.records) + 1))

    # -- the group's client -------------------------------------------------------------------------------------------

    def _evicted(self) -> bool:
        return self.coordinator.members.get(self.slot) != self.id

    def _client(self) -> Task:
        group, choices = self.coordinator, self.choices
        group.join(self)
        while True:
            yield
            while self.id not in group.answers:  # JoinGroup's answer
                if self._evicted():
                    self.die()  # a static member that loses its id exits
                    return
                yield
            self.generation = group.answers.pop(self.id)
            while choices.chance(0.7):  # the new generation, the old assignment
                yield
            if self._evicted():
                self.die()
                return
            if group.generation == self.generation and not group.preparing:  # SyncGroup's answer
                self._assigned({p for p, slot in group.owners.items() if slot == self.slot})
                beats = 0  # heartbeats that were not answered as a member's
                while not (self.rejoin or group.preparing) or choices.chance(0.6):
                    yield
                    beats += self._evicted()
                    if beats and (beats > 20 or choices.chance(0.1)):
                        self.die()
                        return
            self.rejoin = False
            if "close-at-revoke" not in self.without:
                self.open = False
                self.assignment += 1
                for held in self.held.values():
                    held.gate = False
                while self.in_flight and "wait-in-flight" not in self.without:
                    yield
            group.join(self)

    def _assigned(self, assigned: set[int]) -> None:
        self.assignment += 1
        self.open = False
        for held in list(self.held.values()):
            held.gate = False
            if held.partition not in assigned and "drop-lost" not in self.without:
                self._lose(held)
        self.tasks["opening", self.assignment] = self._open_gates(assigned, self.assignment)

    def _lose(self, held: Held) -> None:
        held.lost = True
        self.held.pop(held.partition, None)
        for key in held.tasks:
            self.tasks.pop(key, None)
        self.drop(held)

    def _open_gates(self, assigned: set[int], mine: int) -> Task:
        """Read the claims; keep what is still ours; take over the rest, and open the gates."""
        if not assigned:
            self.open = True
        while mine == self.assignment and assigned:
            claims = self._read_claims()
            yield
            if mine != self.assignment:
                return
            taken: list[Held] = []
            for partition in sorted(assigned):
                offset, metadata = claims[partition]
                claim = Claim.decode(metadata, offset) if metadata else Claim()
                held = self.held.get(partition)
                if held is not None:
                    same = (claim.holder, claim.takeover) == (self.holder, held.takeover)
                    if same or "keep-if-same" in self.without:
                        continue
                    self._lose(held)
                taken.append(Held(self, partition, claim.takeover + 1, Progress(offset, claim.ended)))
            if "gate" in self.without:
                for held in taken:
                    self.held[held.partition] = held
                    held.gate = held.ready = True
                yield from self.take(taken)
            if taken and "takeover-commit" not in self.without:
                outcome = yield from self._send({held.partition: self._offset(held) for held in taken}, mine)
                if outcome == "refused":
                    return
                if outcome == "unknown":
                    continue
            if mine != self.assignment:
                return
            self.held |= {held.partition: held for held in taken}
            self.open = True
            for held in self.held.values():
                held.gate = held.ready
            if "gate" not in self.without:
                yield from self.take(taken)
            for held in taken:
                held.ready = True
                held.gate = self.open and not held.lost
            return

    def _read_claims(self) -> Committed:
        """Whoever is no longer a current member may be answered by a deposed coordinator."""
        group, choices = self.coordinator, self.choices
        deposed = group.generation != self.generation
        if "read-where-joined" in self.without and not self.world.healing:
            deposed = deposed or choices.chance(0.2)
        if deposed:
            return group.past[-1 - min(len(group.past) - 1, choices.below(4))]
        return dict(group.committed)

    def _poll(self) -> Task:
        while True:
            yield
            for held in list(self.held.values()):
                progress = held.progress
                if not held.gate or progress.position >= len(held.log) or progress.span >= self.world.window:
                    continue
                record = held.log[progress.position]
                if held.progress.take(record.offset):
                    self.record(held, record)

    # -- the committer ------------------------------------------------------------------------------------------------

    def _committer(self) -> Task:
        while True:
            yield
            if not self.open:
                continue
            due = [
                held
                for held in self.held.values()
                if held.gate and (held.proofs or held.committed_version != held.progress.version)
            ]
            if not due or (not any(held.proofs for held in due) and self.choices.chance(0.8)):
                continue
            mine = self.assignment
            waiting = {held: held.proofs for held in due}
            versions = {held: held.progress.version for held in due}
            for held in due:
                held.proofs = []
            if (yield from self._send({held.partition: self._offset(held) for held in due}, mine)) == "accepted":
                for held in due:
                    held.committed_version = versions[held]
                    for proof in waiting[held]:
                        proof[0] = True
                continue
            for held in due:
                held.proofs = waiting[held] + held.proofs
            if mine == self.assignment:
                self.open, self.rejoin = False, "rejoin" not in self.without

    def _offset(self, held: Held) -> tuple[int, str]:
        prefix, claim = held.progress.claim(self.holder, held.takeover)
        return prefix, claim.encode(prefix)

    def _send(self, offsets: Committed, mine: int) -> Generator[None, None, Outcome]:
        """Sends one commit of assignment `mine`. One is in flight at most; revocation waits for it."""
        while self.in_flight:
            yield
        if mine != self.assignment:
            return "refused"
        commit = Commit(self, offsets)
        self.in_flight.append(commit)
        self.world.commits.append(commit)
        while commit.outcome is None:
            yield
        return commit.outcome

    # -- producers ----------------------------------------------------------------------------------------------------

    def send(self, where: Where, record: Record) -> Record:
        """Send without waiting. After a failure a fresh producer has the partition."""
        queue = self.queues.get(where)
        if queue is None or queue.dead:
            queue = self.queues[where] = Queue(self.world.logs, where)
            queue.stuck = where[0] in self.held_back
        return queue.send(record)

    def acknowledged(self, *records: Record) -> Generator[None, None, int]:
        """Waits for the acknowledgements; gives the last offset.

        Raises:
            SendFailed: one of them failed.
        """
        for record in records:
            while record.heard == "nothing":
                yield
            if record.heard == "failed":
                raise SendFailed
        return records[-1].offset
