"""What a worker does with the requests of the partitions it holds: one turn each, and none of them stands still."""

from __future__ import annotations

import asyncio
import itertools
import logging
from dataclasses import dataclass, field

from aiokafka import TopicPartition

from inference_workers.metrics import STALLED, STALLS
from inference_workers.tools import Tools
from inference_workers.turn import Turn
from inference_workers.unread import end_unread
from parley.clock import now_ms
from parley.errors import ParleyError
from parley.health import Health
from parley.log.dlq import dead_letter
from parley.log.follower import Follower
from parley.log.held import Held
from parley.log.partitions import partition_of
from parley.log.ranges import Record
from parley.retrying import until_done, until_done_or_late
from parley.side_inputs import SideInputs, catch_up
from parley.topics import CAPACITY, DLQ
from schemas.base import Dispatch
from schemas.operations import PoolStatus
from schemas.prompts import InferenceRequest
from schemas.wire import REPLAY_HEADER, BadRecord, decoder, encode, header, headers, turn_of

log = logging.getLogger(__name__)

_request = decoder(InferenceRequest)
STATUS_INTERVAL_S = 1.0
WATCH_INTERVAL_S = 1.0


@dataclass(slots=True)
class _Running:
    """A turn under the greatest dispatch seen of it, and the offsets of all its requests."""

    turn: Turn | None
    """None: it has ended. That it did is known for long, what was said in it need not be."""
    dispatch: Dispatch
    task: asyncio.Task[None]
    offsets: list[int]
    stalls: int = 0


@dataclass(slots=True)
class _Partition:
    side: SideInputs
    turns: dict[str, _Running] = field(default_factory=dict)


class Worker:
    """Holds partitions of a pool's inference topics."""

    def __init__(self, tools: Tools, follower: Follower, health: Health) -> None:
        self._tools = tools
        self._follower = follower
        self._health = health
        tools.engines.on_change = self._engines_changed
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._sides: dict[int, SideInputs] = {}

    async def take(self, taken: list[Held]) -> None:
        """Catch up with the side inputs. Both tiers' partitions of one number share them."""
        ends = await self._follower.bounds(held.where for held in taken)
        oldest: dict[int, int] = {}
        for held in taken:
            since = await held.oldest_ms(self._tools.ranges, ends[held.where][1])
            oldest[held.partition] = min(since, oldest.get(held.partition, since))
            if not held.lost:
                side = self._sides.get(held.partition)
                if side is None:
                    side = SideInputs(self._follower, held.partition, self._tools.settings.protocol)
                    self._sides[held.partition] = side
                # At once: `drop` must know of it, or it would stop side inputs that another tier's partition awaits.
                self._partitions[held.where] = _Partition(side)
        await catch_up(self._follower, self._sides, oldest, self._tools.settings.protocol)

    def drop(self, held: Held) -> None:
        """The partition is somebody else's; its turns have been cancelled."""
        self._partitions.pop(held.where, None)
        if not any(where.partition == held.partition for where in self._partitions):
            side = self._sides.pop(held.partition, None)
            if side is not None:
                side.stop()

    def record(self, held: Held, record: Record) -> None:
        """A request: a new turn, a repetition, or a greater dispatch that replaces the running turn.

        Raises:
            BadRecord: it can't be read.
        """
        age_s = (now_ms() - record.timestamp) / 1000
        if header(record.headers, REPLAY_HEADER) is not None or age_s > self._tools.settings.protocol.max_turn_age_s:
            # Never re-run the past. The orchestrator answers for the end.
            log.warning("a request at offset %d is replayed or too old: let go", record.offset)
            held.end(record.offset)
            return
        request = _request(record.value)
        turns = self._partitions[held.where].turns
        known = turns.get(request.response)
        if known is not None and request.dispatch <= known.dispatch:
            if known.turn is None:
                held.end(record.offset)
            else:
                known.offsets.append(record.offset)
            return
        offsets = [record.offset]
        if known is not None:
            held.let_go(known.task)
            offsets = [*known.offsets, record.offset]
        side = self._partitions[held.where].side
        turn = Turn(self._tools, held, side, request)
        task = held.spawn(self._run(held, turn), f"turn-{record.offset}")
        turns[request.response] = _Running(turn, request.dispatch, task, offsets)

    async def _run(self, held: Held, turn: Turn) -> None:
        await turn.run()
        running = self._partitions[held.where].turns[turn.request.response]
        if running.turn is turn:
            running.turn = None
            for offset in running.offsets:
                held.end(offset)
            keep_s = self._tools.settings.protocol.max_turn_age_s
            asyncio.get_running_loop().call_later(keep_s, self._forget, held, turn.request.response, running)

    def _forget(self, held: Held, response: str, running: _Running) -> None:
        partition = self._partitions.get(held.where)
        if partition is not None and partition.turns.get(response) is running:
            del partition.turns[response]

    async def give_up(self, held: Held, record: Record, error: BadRecord) -> None:
        """A request that can't be read: its turn is ended first, then the record is kept as a dead letter."""
        log.error("no request at %s-%d offset %d: %s", record.topic, record.partition, record.offset, error)
        if not self._known(held, record):
            runs = itertools.count(1)
            # The orchestrator answers for its end; a route that there never was would hold up all that comes after.
            late_ms = record.timestamp + int(self._tools.settings.protocol.max_turn_age_s * 1000)
            await until_done_or_late(
                lambda: end_unread(self._tools, held, record, next(runs)),
                f"the end of request {record.offset}",
                late_ms,
            )
        count = self._tools.settings.topics.topics[DLQ].partitions
        group = held.group
        await until_done(lambda: dead_letter(self._tools.producer, record, group=group, error=error, partitions=count))
        held.end(record.offset)

    def _known(self, held: Held, record: Record) -> bool:
        """It repeats a request that was read: that turn runs or has ended, and must not be taken from itself."""
        turn = turn_of(record.headers)
        known = self._partitions[held.where].turns.get(turn[0]) if turn is not None else None
        return known is not None and turn is not None and turn[2] <= known.dispatch

    def _engines_changed(self) -> None:
        """A guest takes half of its host's slots at most: the host's own worker does not know of it."""
        engines, slots = self._tools.engines, self._tools.pool.slots
        self._tools.admission.resize(slots if engines.at_home else max(1, slots // 2))
        name = self._tools.pool.name
        self._health.trouble("engines", "" if engines.any_alive else f"no engine of the pool {name} answers")

    async def watch(self) -> None:
        """Begin turns anew that do not get on, and name each until it has ended: topic, partition, offset."""
        limit_s, loop = self._tools.settings.worker.stall_s, asyncio.get_running_loop()
        named: set[TopicPartition] = set()
        while True:
            await asyncio.sleep(WATCH_INTERVAL_S)
            stalled: dict[TopicPartition, _Running] = {}
            for where, partition in self._partitions.items():
                for running in partition.turns.values():
                    if (turn := running.turn) is None:
                        continue
                    if turn.course.stalled(loop.time(), limit_s) and turn.begin_anew():
                        running.stalls += 1
                        STALLS.labels(where.topic).inc()
                    if running.stalls:
                        stalled.setdefault(where, running)
            for where in named - stalled.keys():
                STALLED.remove(where.topic, str(where.partition))
            for where, running in stalled.items():
                STALLED.labels(where.topic, str(where.partition)).set(running.offsets[0])
            named = set(stalled)
            self._health.trouble("stalls", "; ".join(_stall(where, running) for where, running in stalled.items()))

    async def report(self, worker: str) -> None:
        """Say each second how full the engine is."""
        topics, admission = self._tools.settings.topics, self._tools.admission
        key = f"{self._tools.pool.name}/{worker}".encode()
        partition = partition_of(key, topics.topics[CAPACITY].partitions)
        while True:
            status = PoolStatus(
                pool=self._tools.pool.name,
                worker=worker,
                slots=admission.slots if self._tools.engines.any_alive else 0,
                running=admission.running,
                queued=admission.queued(),
                oldest_queued_ms=admission.oldest_ms(now_ms()),
                engine=self._tools.engines.own.url,
                drained=self._tools.engines.own.drained,
                runs=self._tools.engines.runs,
                at=now_ms(),
            )
            try:
                await self._tools.producer.post(
                    CAPACITY, encode(status), key=key, partition=partition, headers=headers(status.type)
                )
            except ParleyError as error:
                log.warning("the pool's status is not in the log: %s", error)
            await asyncio.sleep(STATUS_INTERVAL_S)


def _stall(where: TopicPartition, running: _Running) -> str:
    what = f"{where.topic}-{where.partition} offset {running.offsets[0]}"
    stage = running.turn.course.stage if running.turn is not None else "ended"
    return f"{what} does not get on (stage: {stage}; begun anew {running.stalls} times)"
