"""Consumer groups as their coordinators tell of them: members, what they hold, what is committed.

aiokafka's admin client gives answers of brokers as they are; this turns them into values.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata
from aiokafka.errors import (
    GroupCoordinatorNotAvailableError,
    GroupLoadInProgressError,
    KafkaError,
    NotCoordinatorForGroupError,
    for_code,
)

from parley.log.admin import started_client, unreachable
from parley.retrying import pause_s
from parley.settings import KafkaSettings

DEAD = "Dead"
"""Kafka's word for a group that it doesn't know."""
REBALANCING = ("PreparingRebalance", "CompletingRebalance")
"""Its words for a group whose partitions are being given out: its members are told of, what they hold is not."""
COORDINATOR_S = 10.0
"""How long to ask again for a group's coordinator: a young cluster makes its offsets topic first, a failed-over one
reads it."""
_NO_COORDINATOR = (
    GroupCoordinatorNotAvailableError,
    GroupLoadInProgressError,
    NotCoordinatorForGroupError,
)
CONSUMERS = "consumer"
"""Kafka's word for the kind of group that reads topics."""
UUID_TAIL = len("-00000000-0000-0000-0000-000000000000")
"""What Kafka appends to a member's name to make its id."""


@dataclass(frozen=True, slots=True)
class Member:
    """One process in a group."""

    name: str
    """Its static name, or the name that its client gives itself; see `holds`."""
    host: str
    subscribed: frozenset[str]
    assigned: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class GroupState:
    """A group at one moment."""

    name: str
    state: str
    """Kafka's: Stable, PreparingRebalance, CompletingRebalance, Empty, Dead."""
    members: tuple[Member, ...]
    committed: dict[TopicPartition, tuple[int, str]]
    """(offset, metadata) of each partition that has a commit."""

    @property
    def subscribed(self) -> frozenset[str]:
        """Topics that some member wants."""
        return frozenset().union(*(member.subscribed for member in self.members))

    def holders(self, where: TopicPartition) -> list[str]:
        """Members that a partition is assigned to: one at most, unless the answer was taken during a rebalance."""
        return [member.name for member in self.members if where in member.assigned]

    def holds(self, holder: str, where: TopicPartition) -> bool:
        """Whether a claim's holder (`NAME:NONCE`) has the partition by the coordinator's word.

        Of a static member only the name can be compared: which process it is, the coordinator does not tell. While
        partitions are being given out it tells of nobody's: who is still a member has what it had, since turns go on
        through a rebalance. Otherwise each long answer would look like a record that waits.
        """
        rebalancing = self.state in REBALANCING
        names = [member.name for member in self.members] if rebalancing else self.holders(where)
        return any(name in (holder, holder.split(":")[0]) for name in names)


class GroupReader:
    """Asks for groups over a connection of its own."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._bootstrap = settings.bootstrap
        self._client: AIOKafkaAdminClient

    async def __aenter__(self) -> Self:
        """Connects.

        Raises:
            ParleyError: log_unavailable.
        """
        self._client = await started_client(self._settings, "parley-groups")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    async def names(self) -> list[str]:
        """Every group that the cluster knows, also those without members."""
        try:
            return sorted(name for name, *_ in await self._client.list_consumer_groups())
        except (KafkaError, OSError) as error:
            raise unreachable(self._bootstrap, error) from error

    async def read(self, name: str) -> GroupState:
        """A group; one that never was is Dead, without members and commits.

        Raises:
            ParleyError: log_unavailable.
        """
        deadline = time.monotonic() + COORDINATOR_S
        attempt = 0
        while True:
            try:
                return await self._read(name)
            except (KafkaError, OSError) as error:
                if not isinstance(error, _NO_COORDINATOR) or time.monotonic() > deadline:
                    raise unreachable(self._bootstrap, error) from error
            await asyncio.sleep(pause_s(attempt))
            attempt += 1

    async def _read(self, name: str) -> GroupState:
        node = await self._client.find_coordinator(name)
        [answer] = await self._client.describe_consumer_groups([name], node)
        code, _, state, kind, _, members, *_ = answer.groups[0]
        if code:  # of the offsets' answer aiokafka drops it: none at all would look like a group that never committed
            raise for_code(code)(f"group {name}")
        offsets = await self._client.list_consumer_group_offsets(name, node)
        committed = {where: (int(found.offset), found.metadata or "") for where, found in offsets.items()}
        return GroupState(
            name,
            state,
            members_of(kind, members),
            {where: commit for where, commit in committed.items() if commit[0] >= 0},
        )


def members_of(kind: str, told: Iterable[Sequence[Any]]) -> tuple[Member, ...]:
    """Members as DescribeGroups tells of them; those of another kind of group (Kafka Connect) hold no partitions."""
    read = kind == CONSUMERS
    return tuple(_member(*about[:3], *(about[3:5] if read else (b"", b""))) for about in told)


def _member(member_id: str, _client: str, host: str, metadata: bytes, assignment: bytes) -> Member:
    """Its name is what its id begins with, before a hyphen and a UUID.

    The client's own name won't do: when a static member comes back in time, Kafka keeps that of the process before it.
    Both byte strings are empty while the group rebalances.
    """
    wanted = ConsumerProtocolMemberMetadata.decode(metadata).subscription if metadata else ()
    held = ConsumerProtocolMemberAssignment.decode(assignment).partitions() if assignment else ()
    return Member(member_id[:-UUID_TAIL], host.lstrip("/"), frozenset(wanted), frozenset(held))
