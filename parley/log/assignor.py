"""Who of a group holds which partitions: by number, evenly, and as before where that is even.

All topics of a group have the same partitions, and a session is in the same number of each. So a number goes to one
member with all its topics: a pool's tiers share their side inputs, and each member gets its part of every tier.
aiokafka's own sticky assignor gives whole topics away: of two workers one got all free turns, the other all paid ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from aiokafka.cluster import ClusterMetadata
from aiokafka.coordinator.assignors.abstract import AbstractPartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata

VERSION = 0


def share_out(numbers: Iterable[int], held: Mapping[str, Iterable[int]]) -> dict[str, list[int]]:
    """Every number to one member; shares differ by one at most, and as few numbers as possible change hands.

    :param held: what each member says that it has. When two say the same, whoever comes first by name keeps it.
    """
    free = set(numbers)
    every, members = len(free), sorted(held)
    kept: dict[str, list[int]] = {}
    for member in members:
        kept[member] = sorted(free.intersection(held[member]))
        free.difference_update(kept[member])
    base, larger = divmod(every, len(members))
    # Who has most keeps most.
    for place, member in enumerate(sorted(members, key=lambda name: -len(kept[name]))):
        size = base + (place < larger)
        free.update(kept[member][size:])
        del kept[member][size:]
    for place, member in enumerate(sorted(members, key=lambda name: -len(kept[name]))):
        while len(kept[member]) < base:
            kept[member].append(free.pop())
        if place < larger and len(kept[member]) == base:
            kept[member].append(free.pop())
    return {member: sorted(mine) for member, mine in kept.items()}


class ByNumber(AbstractPartitionAssignor):  # type: ignore[misc]
    """The assignor of one consumer: it remembers what that had last. To be given as an object, not as a class."""

    name = "parley-by-number"

    def __init__(self) -> None:
        self._held: list[int] = []

    def assign(
        self, cluster: ClusterMetadata, members: Mapping[str, ConsumerProtocolMemberMetadata]
    ) -> dict[str, ConsumerProtocolMemberAssignment]:
        """The leader's decision for all members."""
        topics = sorted({topic for member in members.values() for topic in member.subscription})
        partitions = {topic: cluster.partitions_for_topic(topic) or set() for topic in topics}
        shares = share_out(set().union(*partitions.values()), {name: _numbers(m) for name, m in members.items()})
        return {
            member: ConsumerProtocolMemberAssignment(
                VERSION, [(topic, [n for n in mine if n in partitions[topic]]) for topic in topics], b""
            )
            for member, mine in shares.items()
        }

    def metadata(self, topics: Iterable[str]) -> ConsumerProtocolMemberMetadata:
        """What this member says when it joins."""
        return ConsumerProtocolMemberMetadata(VERSION, sorted(topics), json.dumps(self._held).encode())

    def on_assignment(self, assignment: ConsumerProtocolMemberAssignment) -> None:
        """It has been told its share."""
        self._held = sorted({where.partition for where in assignment.partitions()})


def _numbers(member: ConsumerProtocolMemberMetadata) -> list[int]:
    return [int(number) for number in json.loads(member.user_data or b"[]")]
