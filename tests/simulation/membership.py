"""A process's side of group membership: what aiokafka's GroupCoordinator does, in its order and with its names.

Written along aiokafka 0.14 (consumer/group_coordinator.py): the revocation callback runs before joining; the new
generation is known from JoinGroup's answer on; the assignment callback runs beside the poll loop; errors of commits
and heartbeats reset the generation, or only ask for another join.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from aiokafka import TopicPartition
from aiokafka.errors import (
    GroupCoordinatorNotAvailableError,
    IllegalGenerationError,
    KafkaError,
    NotCoordinatorForGroupError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from aiokafka.structs import OffsetAndMetadata

from tests.simulation.coordinator import Coordinators, FencedInstance

BACKOFF_S = 0.05


class Membership:
    """One consumer's place in its group."""

    def __init__(
        self,
        coordinators: Coordinators,
        consumer: Any,
        group: str,
        instance: str | None,
        session_timeout_ms: int,
        rebalance_timeout_ms: int,
    ) -> None:
        self.process = consumer.process
        self.name = group
        self.instance = instance
        self.session_timeout_s = session_timeout_ms / 1000
        self.rebalance_timeout_s = rebalance_timeout_ms / 1000
        self.topics: tuple[str, ...] = ()
        self.member_id = ""
        self.generation = -1
        self.coordinator_id: int | None = None
        self.assignment: frozenset[TopicPartition] | None = None
        self.closed = False
        self._coordinators = coordinators
        self._consumer = consumer
        self._listener: Any = None
        self._prepared = False
        self._reassigning = True
        self._beating = False
        self._rejoin = asyncio.Event()
        self._woken = asyncio.Event()
        self._assigned = asyncio.Event()
        self._error: KafkaError | None = None
        self._looking_up = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self.process.members.append(self)

    @property
    def subscription(self) -> Membership:
        """For `_subscription.subscription.assignment`."""
        return self

    def subscribe(self, topics: Iterable[str], listener: Any) -> None:
        self.topics, self._listener = tuple(topics), listener
        self._rejoin.set()
        self._task = asyncio.create_task(self._routine(), name="coordination")

    async def close(self) -> None:
        self.closed = True
        self._woken.set()
        self._assigned.set()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self.generation > 0 and self.instance is None and self.coordinator_id is not None:
            node, id_ = self.coordinator_id, self.member_id
            try:
                await self._consumer.ask(lambda: self._coordinators.leave(node, self.name, id_))
            except KafkaError:
                return

    async def check(self) -> None:
        """Before records are given out: not while partitions change hands.

        Raises:
            KafkaError: something that this member can't mend.
        """
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        if self._reassigning and not self.closed:
            await self._assigned.wait()

    # -- aiokafka's names ---------------------------------------------------------------------------------------------

    def request_rejoin(self) -> None:
        self._rejoin.set()
        self._woken.set()

    def reset_generation(self) -> None:
        self.generation = -1
        self.member_id = ""
        self._beating = False
        self.request_rejoin()

    def coordinator_dead(self) -> None:
        self.coordinator_id = None
        self._woken.set()

    async def _do_fetch_commit_offsets(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        node, wheres = self._node(), tuple(partitions)
        try:
            found: dict[TopicPartition, OffsetAndMetadata] = await self._consumer.ask(
                lambda: self._coordinators.fetch(node, self.name, wheres)
            )
        except KafkaError:
            self.coordinator_dead()
            raise
        return found

    async def _do_commit_offsets(self, assignment: object, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        node, id_, generation = self._node(), self.member_id, self.generation
        try:
            await self._consumer.ask(
                lambda: self._coordinators.commit(node, self.name, id_, generation, offsets), f"commit {self.name}"
            )
        except RebalanceInProgressError:
            self.request_rejoin()
            raise
        except (IllegalGenerationError, UnknownMemberIdError):
            self.reset_generation()
            raise
        except KafkaError:
            self.coordinator_dead()
            raise

    def _node(self) -> int:
        if self.coordinator_id is None:
            raise GroupCoordinatorNotAvailableError
        return self.coordinator_id

    # -- the routine --------------------------------------------------------------------------------------------------

    async def _routine(self) -> None:
        while not self.closed:
            self._woken.clear()
            await self._find_coordinator()
            if self._rejoin.is_set():
                try:
                    await self._rejoin_group()
                except KafkaError as error:
                    self._error = error
                    self._assigned.set()
                    return
            else:
                await self._woken.wait()

    async def _find_coordinator(self) -> None:
        async with self._looking_up:
            while self.coordinator_id is None:
                try:
                    self.coordinator_id = await self._consumer.ask(self._coordinators.lookup)
                except KafkaError:
                    await asyncio.sleep(BACKOFF_S)

    async def _rejoin_group(self) -> None:
        if not self._prepared:
            self._reassigning = True
            self._assigned.clear()
            await self._call(self._listener.on_partitions_revoked, set(self.assignment or ()))
            self._prepared = True
        self._beating = False
        partitions = await self._join_and_sync()
        if partitions is None:
            await asyncio.sleep(BACKOFF_S)
            return
        self.assignment = frozenset(partitions)
        self._consumer.assign(partitions)
        self._reassigning = False
        self._assigned.set()
        await self._call(self._listener.on_partitions_assigned, set(partitions))
        self._prepared = False
        self._beating = True
        loop = asyncio.get_running_loop()
        loop.call_later(0.3, self.beat)

    @staticmethod
    async def _call(callback: Any, partitions: set[TopicPartition]) -> None:
        try:
            await callback(partitions)
        except Exception as error:
            raise AssertionError(f"aiokafka would swallow this: {error!r}") from error

    async def _join_and_sync(self) -> tuple[TopicPartition, ...] | None:
        coordinators, node, id_ = self._coordinators, self._node(), self.member_id
        try:
            self.generation, self.member_id = await self._consumer.ask(
                lambda: coordinators.join(node, self.name, self, id_)
            )
        except FencedInstance:
            raise
        except UnknownMemberIdError:
            self.reset_generation()
            return None
        except KafkaError:
            self.coordinator_dead()
            return None
        self._rejoin.clear()
        generation, id_ = self.generation, self.member_id
        try:
            partitions: tuple[TopicPartition, ...] = await self._consumer.ask(
                lambda: coordinators.sync(node, self.name, id_, generation)
            )
        except RebalanceInProgressError:
            self.request_rejoin()
            return None
        except (UnknownMemberIdError, IllegalGenerationError):
            self.reset_generation()
            return None
        except KafkaError:
            self.request_rejoin()
            self.coordinator_dead()
            return None
        self.generation, self.member_id = generation, id_
        return partitions

    def beat(self) -> None:
        """A heartbeat. Only those that would learn something are sent: the coordinator sees by itself who lives."""
        if self.closed or not self._beating or self.process.cut:
            return
        if self.coordinator_id is None:
            asyncio.get_running_loop().call_later(0.3, self.beat)
            return
        try:
            self._coordinators.heartbeat(self.coordinator_id, self.name, self.member_id, self.generation)
        except NotCoordinatorForGroupError:
            self.coordinator_dead()
            asyncio.get_running_loop().call_later(0.3, self.beat)
        except RebalanceInProgressError:
            self.request_rejoin()
        except (UnknownMemberIdError, IllegalGenerationError):
            self.reset_generation()
