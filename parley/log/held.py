"""A partition that is held, and what is done with its records."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol

from aiokafka import TopicPartition

from parley.clock import now_ms
from parley.log.losses import Losses
from parley.log.ranges import RangeReader, Record, RouteGone
from parley.ownership import Progress
from schemas.wire import BadRecord


class Committer(Protocol):
    """What a holding asks of the member that holds it."""

    name: str
    """The group's."""

    def commit_soon(self, *, urgent: bool = False, proof: bool = False) -> None:
        """Something has ended or must be proved."""

    def fail(self, error: BaseException) -> None:
        """Something went wrong that the process can't go on after."""


class Role(Protocol):
    """What is done with the records of held partitions."""

    async def take(self, taken: list[Held]) -> None:
        """Partitions were taken anew: get ready, before their first records.

        Raises:
            ParleyError: it is tried again.
        """

    def record(self, held: Held, record: Record) -> None:
        """A record, in order, once for each holding. Must not block; ends with `held.end(record.offset)`, some time.

        Raises:
            BadRecord: it can't be used, now or ever. `give_up` follows, unless there are too many of them.
        """

    async def give_up(self, held: Held, record: Record, error: BadRecord) -> None:
        """End the turn that the record belongs to, keep the record as a dead letter, then end it."""

    def drop(self, held: Held) -> None:
        """The partition is no longer held; its tasks have been cancelled."""


class Held:
    """A partition under one takeover of this process."""

    def __init__(
        self, group: Committer, where: TopicPartition, takeover: int, progress: Progress, floor: int = 0
    ) -> None:
        self.where = where
        self.takeover = takeover
        self.progress = progress
        self.floor = floor
        """Where a successor must begin, at the latest, to fold the role's state. The role raises it."""
        self.losses = Losses()
        self.still = False
        """Too many records can't be used: no more are taken before a restart."""
        self.lost = False
        """Another process may have the partition: nothing may be done for it any more."""
        self.ready = False
        """The role has made itself ready for the partition."""
        self.gate = False
        """Open: records are taken and commits are sent."""
        self.opened = 0
        """Counts the openings of the gate."""
        self.paused = False
        self.committed_version = -1
        self.proofs: list[asyncio.Future[None]] = []
        self._group = group
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def group(self) -> str:
        """The group's name."""
        return self._group.name

    @property
    def partition(self) -> int:
        """The partition's number: that of every session-keyed topic."""
        return int(self.where.partition)

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run something for as long as the partition is held."""
        task = asyncio.create_task(work, name=name)
        if self.lost:
            task.cancel()
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def let_go(self, task: asyncio.Task[None]) -> None:
        """Cancel something that runs."""
        self._tasks.discard(task)
        task.cancel()

    def end(self, offset: int) -> None:
        """A record needs nothing more: its offset may be committed."""
        self.progress.end(offset)
        self._group.commit_soon()

    async def prove(self, *, urgent: bool = False) -> None:
        """Returns once it is certain that this process held the partition at a moment after the call.

        It waits through rebalances for as long as it takes; when the partition is lost the caller is cancelled. Turns
        that end within a tick share one commit; `urgent` does not wait for the tick.
        """
        proof = asyncio.get_running_loop().create_future()
        self.proofs.append(proof)
        self._group.commit_soon(urgent=urgent, proof=True)
        await proof

    def cancel(self) -> None:
        """End everything that runs for this holding, and whatever is started later."""
        self.lost = True
        for task in self._tasks:
            task.cancel()
        for proof in self.proofs:
            proof.cancel()

    async def oldest_ms(self, ranges: RangeReader, end: int) -> int:
        """When the oldest record that is still to be done was appended; now, if none is before `end`.

        Raises:
            ParleyError: log_unavailable.
        """
        now, prefix = now_ms(), self.progress.prefix
        if prefix >= end:
            return now
        try:
            records = await ranges.read(self.where.topic, self.partition, prefix, prefix)
        except RouteGone:
            return 0  # retention has passed by the committed offset: what is left may be as old as it likes
        return int(records[0].timestamp) if records else 0

    def _finished(self, task: asyncio.Task[None]) -> None:
        unasked = task in self._tasks and not self.lost
        self._tasks.discard(task)
        if task.cancelled():
            if unasked:  # by a cancellation that came out of a library: its record would stay open for ever
                self._group.fail(RuntimeError(f"{task.get_name()} of {self.where} was cancelled, and nobody had asked"))
        elif (error := task.exception()) is not None:
            self._group.fail(error)
