"""A member of a consumer group that holds partitions: takeover, gates, the committer, proofs (protocol.md, section 1).

The rules live in parley.ownership; this is the shell around aiokafka. What it leans on is pinned by
tests/integration/test_aiokafka_facts.py: rebalances are eager and run beside the poll loop, records are delivered while
`on_partitions_assigned` still runs, and a commit that aiokafka retries goes out under a new generation. So commits are
sent once, through the coordinator that the member is joined at, and only while the committer is open.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Iterable

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import IllegalGenerationError, KafkaError, RebalanceInProgressError, UnknownMemberIdError
from aiokafka.structs import OffsetAndMetadata

from parley.errors import ParleyError
from parley.health import Health
from parley.log.assignor import ByNumber
from parley.log.figures import MEMBERS, REBALANCES, TAKEOVERS, PartitionFigures, Taking, log_end
from parley.log.held import Held, Role
from parley.log.members import member_options
from parley.log.ranges import Record
from parley.log.stuck import Stuck
from parley.ownership import Claim, Progress
from parley.settings import Settings
from schemas.wire import BadRecord

__all__ = ["Group", "Held", "MemberLost", "Role"]

log = logging.getLogger(__name__)

REFUSED = (IllegalGenerationError, RebalanceInProgressError, UnknownMemberIdError)
"""Errors of a commit that surely was not accepted."""
POLL_MS = 200
"""How long one poll waits for records: bounds how fast the loop notices that it shall end."""

LEAVE_S = 5.0
"""How long leaving the group may take."""
LOST_S = 0.1
"""The same for a process that can't go on: every moment more is one in which nobody has its partitions."""


class MemberLost(Exception):
    """A static member has lost its id: another process has its place, or its session ran out. It must exit."""


class Group(ConsumerRebalanceListener):  # type: ignore[misc]
    """One process's membership in a group. `patience_s`: how long a record may run before that is told."""

    def __init__(
        self,
        settings: Settings,
        group: str,
        topics: Iterable[str],
        role: Role,
        health: Health,
        *,
        patience_s: float = float("inf"),
    ) -> None:
        self._settings = settings
        self.health = health
        """Of the process: what this member says of itself."""
        self._role = role
        self._topics = list(topics)
        self.name = group
        self.holder = f"{settings.instance or group}:{secrets.token_hex(6)}"
        self.held: dict[TopicPartition, Held] = {}
        self._stuck = Stuck(group, patience_s, health)
        kafka = settings.kafka
        self._consumer = AIOKafkaConsumer(
            **member_options(settings, group),
            client_id=self.holder,
            partition_assignment_strategy=(ByNumber(),),
            fetch_max_wait_ms=kafka.fetch_max_wait_ms,
        )
        self._assignment = 0
        self._open = False
        """The committer: open between the opening of the gates and revocation."""
        self._in_flight: asyncio.Task[None] | None = None
        self._opening: asyncio.Task[None] | None = None
        self._doubtful_until = 0.0
        """Loop time until which a commit with an unknown outcome may land."""
        self._tried: dict[TopicPartition, int] = {}
        """Takeover numbers that were claimed, and under which nothing was done."""
        self._wake = asyncio.Event()
        self._proof_due: float | None = None
        self._failure: asyncio.Future[None] | None = None
        self._joined = False
        self._joined_at: int | None = None
        """Node of the coordinator that gave the assignment."""
        self._stopping = False

    # -- life -------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Hold partitions and take records until `stop`.

        Raises:
            MemberLost: the process must exit.
            Exception: whatever a task of a holding failed with.
        """
        self._failure = asyncio.get_running_loop().create_future()
        await self._consumer.start()
        self._consumer.subscribe(self._topics, listener=self)
        MEMBERS.add(self)
        loops = [asyncio.create_task(self._poll(), name="poll"), asyncio.create_task(self._commits(), name="commits")]
        try:
            await asyncio.wait([*loops, self._failure], return_when=asyncio.FIRST_COMPLETED)
            for done in (self._failure, *loops):
                if done.done() and not done.cancelled() and done.exception() is not None:
                    raise done.exception()  # type: ignore[misc]
        finally:
            MEMBERS.discard(self)
            await self._close(loops)

    def stop(self) -> None:
        """Take no more records; `run` returns when what has ended is committed."""
        self._stopping = True
        self._wake.set()

    def fail(self, error: BaseException) -> None:
        """Something went wrong that this process can't go on after."""
        if self._failure is not None and not self._failure.done():
            self._failure.set_exception(error)

    async def _close(self, loops: list[asyncio.Task[None]]) -> None:
        lost = self._failure is not None and self._failure.done() and self._failure.exception() is not None
        if self._failure is not None and not self._failure.done():
            self._failure.cancel()
        self._stopping = True
        self._wake.set()
        if self._open and not lost:
            await self._commit_now()
        for held in self.held.values():
            held.cancel()
        for task in (*loops, self._opening):
            if task is not None:
                task.cancel()
        await asyncio.gather(*loops, return_exceptions=True)
        # Who has lost its place has nothing to leave, and its coordinator waits for ever (`on_partitions_revoked`).
        leaving = asyncio.wait_for(self._consumer.stop(), LOST_S if lost else LEAVE_S)
        # aiokafka's own cancellations come out of `stop` now and then: they must not hide why this ended.
        await asyncio.gather(leaving, return_exceptions=True)

    # -- the poll loop ------------------------------------------------------------------------------------------------

    async def _poll(self) -> None:
        window, loop = self._settings.protocol.window, asyncio.get_running_loop()
        while not self._stopping:
            opened = {where: held.opened for where, held in self.held.items() if held.gate}
            batches = await self._consumer.getmany(timeout_ms=POLL_MS)
            self.health.beat()
            self._stuck.look(self.held, loop.time())
            for where, records in batches.items():
                held = self.held.get(where)
                if held is None or not held.gate:
                    continue  # read again once the gate is open
                if opened.get(where) != held.opened:
                    # Read before the gate opened, from a position that the opening has changed.
                    self._consumer.seek(where, held.progress.position)
                    continue
                for record in records:
                    if held.still or held.progress.span >= window:
                        break
                    if held.progress.take(record.offset, record.timestamp):
                        self._hand_over(held, record)
                if held.still:
                    self._consumer.pause(where)  # again after a reassignment, which forgets it
                    continue
                if held.progress.span >= window and not held.paused:
                    held.paused = True
                    self._consumer.pause(where)
                    self._consumer.seek(where, held.progress.position)  # what is left of the batch is read again
                    log.warning("%s-%d waits: %d records are open", where.topic, where.partition, held.progress.open)
            self._resume(max(1, window // 2))

    def _hand_over(self, held: Held, record: Record) -> None:
        try:
            self._role.record(held, record)
        except BadRecord as error:
            if held.losses.too_many:  # the record stays open: whoever is better at it finds it
                self._stand_still(held, record, error)
                return
            held.losses.lost()
            held.spawn(self._role.give_up(held, record, error), f"give-up-{record.offset}")
        else:
            held.losses.kept()

    def _stand_still(self, held: Held, record: Record, error: BadRecord) -> None:
        held.still = True
        where = f"{record.topic}-{record.partition}"
        log.error(
            "%s stands still at %s offset %d: too many records can't be used (%s); see chat.dlq, then restart",
            self.name,
            where,
            record.offset,
            error,
        )
        self.health.trouble(where, f"{where} stands still: too many of its records can't be used")

    def _resume(self, below: int) -> None:
        for where, held in self.held.items():
            if held.paused and held.gate and not held.still and held.progress.span < below:
                held.paused = False
                self._consumer.resume(where)

    # -- rebalances ---------------------------------------------------------------------------------------------------

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        """Closes the committer and waits for the commit in flight, and nothing else: turns go on."""
        self._open = False
        self._assignment += 1
        for held in self.held.values():
            held.gate = False
        while self._in_flight is not None:
            await asyncio.wait([self._in_flight])
        if self._joined and self._settings.instance and not self._consumer._coordinator.member_id:
            self.fail(MemberLost(f"{self._settings.instance} has lost its place in {self.name}"))
            await asyncio.Event().wait()  # not to rejoin: two processes of one name would evict each other for ever

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        """Gates are closed; each partition's is opened in its own time."""
        REBALANCES.labels(self.name).inc()
        self._joined = True
        self._joined_at = self._consumer._coordinator.coordinator_id
        self._assignment += 1
        assigned = set(assigned)
        # Nothing is fetched before the gates open: it would be dropped, and the fetch after it, which waits for new
        # records, would keep back the first one that counts for up to `fetch_max_wait_ms`.
        self._consumer.pause(*assigned)
        try:
            for where in [where for where in self.held if where not in assigned]:
                self._lose(where)
        except Exception as error:  # aiokafka would only log it
            self.fail(error)
            return
        self._opening = asyncio.create_task(self._open_gates(assigned, self._assignment), name="opening")
        self._opening.add_done_callback(self._opened)

    def _opened(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)

    def _lose(self, where: TopicPartition) -> None:
        held = self.held.pop(where)
        held.cancel()
        if held.still:
            self.health.trouble(f"{where.topic}-{where.partition}", "")
        self._role.drop(held)

    async def _open_gates(self, assigned: set[TopicPartition], mine: int) -> None:
        """Read the claims; keep what is still ours; take over the rest, and open the gates."""
        if not assigned:
            self.health.ready()  # a spare
        while mine == self._assignment and assigned:
            if self._consumer._coordinator.coordinator_id != self._joined_at:
                # A lookup may have led to a deposed coordinator, which still answers reads; joining finds the true one.
                self._consumer._coordinator.request_rejoin()
                return
            try:
                offsets = await self._claims(assigned)
            except KafkaError as error:
                log.info("%s: claims can't be read yet: %r", self.name, error)
                await asyncio.sleep(0.1)
                continue
            if mine != self._assignment:
                return
            taken: dict[TopicPartition, Held] = {}
            for where, (offset, claim) in offsets.items():
                held = self.held.get(where)
                if held is not None and (claim.holder, claim.takeover) == (self.holder, held.takeover):
                    continue
                if held is not None:
                    self._lose(where)
                number = self._tried[where] = self._number(where, claim)
                taken[where] = Held(self, where, number, Progress(offset, claim.ended), claim.floor)
            try:
                if taken:
                    await self._commit({where: self._offset(held) for where, held in taken.items()}, mine)
            except REFUSED:
                return  # another assignment is coming
            except (KafkaError, OSError) as error:
                log.info("%s: a takeover's outcome is unknown, asking again: %r", self.name, error)
                self._doubt()
                await asyncio.sleep(0.05)
                continue
            if mine != self._assignment:
                return  # the next opening finds these claims, and no holder that has such a number
            self.held |= taken
            TAKEOVERS.labels(self.name).inc(len(taken))
            for where in taken:
                del self._tried[where]
            self._open = True
            for held in self.held.values():
                self._open_gate(held)
            await self._get_ready(list(taken.values()))
            log.info("%s holds %d partitions, %d of them taken over now", self.name, len(assigned), len(taken))
            self.health.ready()
            return

    def _number(self, where: TopicPartition, claim: Claim) -> int:
        """The next, or the one that this process has tried to claim and never used.

        That one is nobody else's. A commit whose outcome is unknown may land when a later one has: with another number
        it would take the partition back to a number that the next holder would then use a second time.
        """
        unused = claim.holder == self.holder and claim.takeover == self._tried.get(where)
        return claim.takeover if unused else claim.takeover + 1

    async def _get_ready(self, taken: list[Held]) -> None:
        while taken := [held for held in taken if not held.lost]:
            try:
                await self._role.take(taken)
                break
            except ParleyError as error:
                log.warning("%s can't take its partitions yet: %s", self.name, error)
                await asyncio.sleep(0.2)
        for held in taken:
            held.ready = True
            if self._open and not held.lost:
                self._open_gate(held)

    def _open_gate(self, held: Held) -> None:
        if not held.ready:
            return
        held.opened += 1
        held.gate = True
        held.paused = False
        self._consumer.seek(held.where, held.progress.position)
        self._consumer.resume(held.where)
        log.debug("%s holds %s-%d, takeover %d", self.name, held.where.topic, held.partition, held.takeover)
        if held.proofs:
            self.commit_soon(urgent=True)

    async def _claims(self, assigned: set[TopicPartition]) -> dict[TopicPartition, tuple[int, Claim]]:
        """Committed offsets and claims, read where this member is joined: a deposed coordinator still answers reads.

        aiokafka's `committed()` drops the metadata, hence the coordinator's own method.
        """
        found = await self._consumer._coordinator._do_fetch_commit_offsets(assigned)
        fresh = [where for where in assigned if where not in found]
        begin = await self._consumer.beginning_offsets(fresh) if fresh else {}
        claims = {where: (begin[where], Claim()) for where in fresh}
        for where, committed in found.items():
            claims[where] = (committed.offset, Claim.decode(committed.metadata, committed.offset))
        return claims

    # -- the committer ------------------------------------------------------------------------------------------------

    def commit_soon(self, *, urgent: bool = False, proof: bool = False) -> None:
        """Something has ended or must be proved."""
        loop = asyncio.get_running_loop()
        tick = 0.0 if urgent else self._settings.protocol.proof_tick_ms / 1000
        if urgent or proof:
            due = loop.time() + tick
            if self._proof_due is None or due < self._proof_due:
                self._proof_due = due
                self._wake.set()

    async def _commits(self) -> None:
        loop = asyncio.get_running_loop()
        interval = self._settings.protocol.commit_interval_ms / 1000
        while not self._stopping:
            pause = interval if self._proof_due is None else min(interval, self._proof_due - loop.time())
            if pause > 0:
                self._wake.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), pause)
                if self._proof_due is not None and self._proof_due > loop.time():
                    continue
            self._proof_due = None
            if self._open:
                await self._commit_now()

    async def _commit_now(self) -> None:
        """One commit for everything that has ended or waits for a proof."""
        due = [h for h in self.held.values() if h.gate and (h.proofs or h.committed_version != h.progress.version)]
        if not due:
            return
        mine = self._assignment
        waiting = {held: held.proofs for held in due}
        versions = {held: held.progress.version for held in due}
        for held in due:
            held.proofs = []
        try:
            await self._commit({held.where: self._offset(held) for held in due}, mine)
        except (KafkaError, OSError) as error:
            # Unknown, or refused: nothing can be proved before the next assignment, and none may be coming.
            log.info("%s: a commit failed, rejoining: %r", self.name, error)
            if not isinstance(error, REFUSED):
                self._doubt()
            for held in due:
                held.proofs = waiting[held] + held.proofs
            if mine == self._assignment:
                self._open = False
                self._consumer._coordinator.request_rejoin()
            return
        doubtful = asyncio.get_running_loop().time() < self._doubtful_until
        for held in due:
            held.committed_version = -1 if doubtful else versions[held]
            for proof in waiting[held]:
                if not proof.done():
                    proof.set_result(None)

    def _doubt(self) -> None:
        """A commit may land later and undo what has been committed since: for a while all is committed again."""
        self._doubtful_until = asyncio.get_running_loop().time() + self._settings.kafka.request_timeout_ms / 1000

    def _offset(self, held: Held) -> OffsetAndMetadata:
        prefix, claim = held.progress.claim(self.holder, held.takeover, held.floor)
        return OffsetAndMetadata(prefix, claim.encode(prefix))

    async def _commit(self, offsets: dict[TopicPartition, OffsetAndMetadata], mine: int) -> None:
        """Sends one commit of assignment `mine`, never again. One is in flight at most; revocation waits for it."""
        while self._in_flight is not None:
            await asyncio.wait([self._in_flight])
        if mine != self._assignment:
            raise RebalanceInProgressError(self.name)
        flight = self._in_flight = asyncio.create_task(self._send_commit(offsets), name="commit")
        flight.add_done_callback(self._landed)
        await asyncio.shield(flight)

    async def _send_commit(self, offsets: dict[TopicPartition, OffsetAndMetadata]) -> None:
        coordinator = self._consumer._coordinator
        if coordinator.generation < 0:
            # Without a generation it would be a commit from outside of the group, which an empty group accepts.
            raise UnknownMemberIdError(self.name)
        await coordinator._do_commit_offsets(self._consumer._subscription.subscription.assignment, offsets)

    def _landed(self, flight: asyncio.Task[None]) -> None:
        self._in_flight = None
        if not flight.cancelled():
            flight.exception()  # seen by whoever waits, if anybody still does

    # -- what it tells ------------------------------------------------------------------------------------------------

    def figures(self) -> list[PartitionFigures]:
        """Of each partition that is held."""
        return [self._figures(held) for held in list(self.held.values())]

    def _figures(self, held: Held) -> PartitionFigures:
        taking: Taking = "still" if held.still else "closed" if not held.gate else "paused" if held.paused else "taking"
        progress, end = held.progress, log_end(self._consumer, held.where)
        waiting = None if end is None else max(0, end - progress.position)
        return PartitionFigures(held.where, taking, progress.open, progress.oldest, waiting)
