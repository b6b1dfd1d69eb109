"""The coordinator of consumer groups, as Kafka's classic protocol has it: it fences by member and generation.

What a design can trip over is kept: JoinGroup and SyncGroup apart, commits accepted while a rebalance gathers, a static
member that comes back under its old assignment without a new generation, followers that rejoin for nothing, members
that are evicted late, a deposed coordinator that still answers reads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aiokafka import TopicPartition
from aiokafka.errors import (
    IllegalGenerationError,
    KafkaError,
    NotCoordinatorForGroupError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from aiokafka.structs import OffsetAndMetadata

from tests.simulation.cluster import Cluster

if TYPE_CHECKING:
    from tests.simulation.membership import Membership

NODES = (1, 2)
CHECK_S = 0.5
"""How often sessions are looked at."""


class FencedInstance(KafkaError):
    """Another process has this instance's place. aiokafka has no name for it and tells the user."""


@dataclass(slots=True, eq=False)
class Member:
    id: str
    client: Membership
    seen: float
    partitions: tuple[TopicPartition, ...] = ()
    join: asyncio.Future[tuple[int, str]] | None = None
    sync: asyncio.Future[tuple[TopicPartition, ...]] | None = None

    @property
    def beats(self) -> bool:
        """Its process lives, is heard, and knows itself under this id."""
        process = self.client.process
        quiet = process.dead or process.stopped or process.cut
        return not quiet and self.client.member_id == self.id and not self.client.closed


@dataclass(slots=True)
class GroupState:
    name: str
    generation: int = 0
    state: str = "stable"
    """preparing: joins are gathered; completing: the leader's assignment is awaited; stable."""
    members: dict[str, Member] = field(default_factory=dict)
    static: dict[str, str] = field(default_factory=dict)
    leader: str = ""
    round: int = 0
    """Counts the preparations."""
    offsets: dict[TopicPartition, OffsetAndMetadata] = field(default_factory=dict)
    past: dict[TopicPartition, OffsetAndMetadata] = field(default_factory=dict)
    """What the node that was deposed last still shows."""


class Coordinators:
    """The coordinators of all groups: one node leads them, another may believe that it does."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.node = NODES[0]
        self.confused_until = 0.0
        """Until then a lookup may lead to the deposed node."""
        self.groups: dict[str, GroupState] = {}
        self.on_commit = lambda group, where, committed: None  # type: ignore[var-annotated]
        self._made = 0
        cluster.loop.outside(CHECK_S, self._check_sessions)

    def move(self, confusion_s: float) -> None:
        """Another node leads from now on."""
        self.node = NODES[1] if self.node == NODES[0] else NODES[0]
        self.confused_until = self.cluster.loop.time() + confusion_s
        for group in self.groups.values():
            group.past = dict(group.offsets)
            for member in group.members.values():
                self._call(member)

    def lookup(self) -> int:
        confused = self.cluster.loop.time() < self.confused_until and self.cluster.rng.random() < 0.5
        return next(node for node in NODES if (node == self.node) != confused)

    def group(self, name: str) -> GroupState:
        return self.groups.setdefault(name, GroupState(name))

    def _at(self, node: int, name: str) -> GroupState:
        if node != self.node:
            raise NotCoordinatorForGroupError
        return self.group(name)

    # -- requests ---------------------------------------------------------------------------------------------------

    def fetch(self, node: int, name: str, wheres: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        """OffsetFetch: also answered by a node that does not know of its end."""
        group = self.group(name)
        if node == self.node:
            shown: Mapping[TopicPartition, OffsetAndMetadata] = group.offsets
        elif self.cluster.loop.time() < self.confused_until:
            shown = group.past
        else:
            raise NotCoordinatorForGroupError
        return {where: shown[where] for where in wheres if where in shown}

    def commit(
        self, node: int, name: str, id_: str, generation: int, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> None:
        """OffsetCommit: of a member and its generation, whatever partitions it has."""
        group = self._at(node, name)
        if id_ or generation >= 0 or group.members:
            self._member(group, id_, generation)
            if group.state == "completing":
                raise RebalanceInProgressError
        for where, committed in offsets.items():
            self.on_commit(name, where, committed)
        group.offsets |= offsets

    def heartbeat(self, node: int, name: str, id_: str, generation: int) -> None:
        group = self._at(node, name)
        member = self._member(group, id_, generation)
        member.seen = self.cluster.loop.time()
        if group.state == "preparing":
            raise RebalanceInProgressError

    def join(self, node: int, name: str, client: Membership, id_: str) -> asyncio.Future[tuple[int, str]]:
        """JoinGroup: answered with the generation and the member's id when all have joined."""
        group, loop, instance = self._at(node, name), self.cluster.loop, client.instance
        rebalance = self.cluster.happens(0.5)  # whether its metadata has changed since it last joined
        if not id_ and instance is not None and instance in group.static:
            member = self._replace(group, client, instance)
            rebalance = self.cluster.happens(0.3)
        elif not id_:
            member = Member(self._new_id(client), client, loop.time())
            group.members[member.id] = member
            rebalance = True
            if instance is not None:
                group.static[instance] = member.id
        elif instance is not None and group.static.get(instance, id_) != id_:
            raise FencedInstance(instance)
        elif id_ not in group.members:
            raise UnknownMemberIdError
        else:
            member = group.members[id_]
        member.seen = loop.time()
        answer: asyncio.Future[tuple[int, str]] = loop.create_future()
        if group.state == "stable" and not rebalance and member.id != group.leader:
            answer.set_result((group.generation, member.id))
            return answer
        if member.join is not None and not member.join.done():
            member.join.set_exception(UnknownMemberIdError())  # an older request of its own: nobody waits for it
            member.join.exception()
        member.join = answer
        if group.state != "preparing":
            self._prepare(group)
        self._complete_if_all(group)
        return answer

    def sync(self, node: int, name: str, id_: str, generation: int) -> asyncio.Future[tuple[TopicPartition, ...]]:
        """SyncGroup: answered with the member's partitions when the leader has spoken."""
        group = self._at(node, name)
        member = self._member(group, id_, generation)
        if group.state == "preparing":
            raise RebalanceInProgressError
        member.sync = self.cluster.loop.create_future()
        if group.state == "completing" and id_ == group.leader:
            self._assign(group)
            group.state = "stable"
        if group.state == "stable":
            for each in group.members.values():
                if each.sync is not None and not each.sync.done():
                    each.sync.set_result(each.partitions)
        return member.sync

    def leave(self, node: int, name: str, id_: str) -> None:
        group = self._at(node, name)
        if id_ in group.members:
            self._remove(group, group.members[id_])

    # -- membership -------------------------------------------------------------------------------------------------

    def _member(self, group: GroupState, id_: str, generation: int) -> Member:
        if id_ not in group.members:
            raise UnknownMemberIdError
        if generation != group.generation:
            raise IllegalGenerationError
        return group.members[id_]

    def _new_id(self, client: Membership) -> str:
        self._made += 1
        return f"{client.name}#{self._made}"

    def _replace(self, group: GroupState, client: Membership, instance: str) -> Member:
        """A static member is back: it has a new id, and its old one is nobody's."""
        old = group.members.pop(group.static[instance])
        if old.join is not None and not old.join.done():
            old.join.set_exception(FencedInstance(instance))
            old.join.exception()
        self._call(old)
        id_ = self._new_id(client)
        member = group.members[id_] = Member(id_, client, self.cluster.loop.time(), old.partitions)
        group.static[instance] = id_
        if group.leader == old.id:
            group.leader = id_
        return member

    def _remove(self, group: GroupState, member: Member) -> None:
        del group.members[member.id]
        if group.static.get(member.client.instance or "") == member.id:
            del group.static[member.client.instance or ""]
        self._call(member)
        if group.state != "preparing":
            self._prepare(group)
        self._complete_if_all(group)

    def _check_sessions(self) -> None:
        now = self.cluster.loop.time()
        for group in self.groups.values():
            for member in list(group.members.values()):
                if member.beats or (member.join is not None and not member.join.done()):
                    member.seen = now
                elif now - member.seen > member.client.session_timeout_s:
                    self._remove(group, member)
        self.cluster.loop.outside(CHECK_S, self._check_sessions)

    # -- rebalances -------------------------------------------------------------------------------------------------

    def rebalance(self, name: str) -> None:
        """For whatever reason."""
        group = self.group(name)
        if group.state == "stable" and group.members:
            self._prepare(group)

    def _prepare(self, group: GroupState) -> None:
        group.state = "preparing"
        group.round += 1
        longest = max((member.client.rebalance_timeout_s for member in group.members.values()), default=0.0)
        self.cluster.loop.outside(longest, self._give_up_waiting, group, group.round)
        for member in group.members.values():
            if member.sync is not None and not member.sync.done():
                member.sync.set_exception(RebalanceInProgressError())
                member.sync.exception()
            self._call(member)

    def _call(self, member: Member) -> None:
        """Its next heartbeat tells it that something is new."""
        self.cluster.loop.inside(member.client.process, 0.3 * self.cluster.rng.random(), member.client.beat)

    def _give_up_waiting(self, group: GroupState, round_: int) -> None:
        """Who has not joined goes, unless it is static: that one goes when its session ends."""
        if group.state != "preparing" or group.round != round_:
            return
        for member in list(group.members.values()):
            if member.join is None and member.client.instance is None:
                del group.members[member.id]
                self._call(member)
        self._complete(group)

    def _complete_if_all(self, group: GroupState) -> None:
        if group.state == "preparing" and all(member.join is not None for member in group.members.values()):
            self._complete(group)

    def _complete(self, group: GroupState) -> None:
        group.generation += 1
        group.state = "completing" if group.members else "stable"
        joined = [member for member in group.members.values() if member.join is not None]
        if joined and group.leader not in {member.id for member in joined}:
            group.leader = joined[0].id
        for member in joined:
            assert member.join is not None
            if not member.join.done():
                member.join.set_result((group.generation, member.id))
            member.join = None

    def _assign(self, group: GroupState) -> None:
        """Fair; mostly sticky, sometimes not at all."""
        members, rng = list(group.members.values()), self.cluster.rng
        topics = dict.fromkeys(topic for member in members for topic in member.client.topics)
        free = [where for where in self.cluster.partitions if where.topic in topics]
        most = -(-len(free) // len(members))
        if rng.random() < 0.3:
            rng.shuffle(free)
            for member in members:
                member.partitions = ()
        taken: set[TopicPartition] = set()
        for member in members:
            kept = [where for where in member.partitions if where in free and where not in taken][:most]
            member.partitions = tuple(kept)
            taken |= set(kept)
        for where in free:
            if where not in taken:
                least = min(members, key=lambda member: len(member.partitions))
                least.partitions = (*least.partitions, where)
