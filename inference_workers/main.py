"""The batching worker: one process an engine, one group a pool. Keeps the engine's in-flight batch full."""

from __future__ import annotations

import asyncio
import logging
import secrets
from dataclasses import dataclass, field

from aiokafka import TopicPartition

from inference_workers.admission import Admission
from inference_workers.engine.client import EngineClient
from inference_workers.tools import Tools
from inference_workers.turn import Turn
from parley.clock import now_ms
from parley.errors import ParleyError, failure
from parley.log.dlq import dead_letter
from parley.log.follower import Follower
from parley.log.group import Group, Held
from parley.log.partitions import partition_of
from parley.log.producer import Producer
from parley.log.ranges import RangeReader, Record, RouteGone
from parley.log.taking import take_turn
from parley.process import HEALTH, until_stopped
from parley.retrying import until_done
from parley.safety.classifier import Classifier
from parley.safety.policy import Policy
from parley.settings import Settings
from parley.side_inputs import SideInputs, catch_up
from parley.tokenizers import load_tokenizer
from parley.topics import CAPACITY
from schemas.base import TIERS, Dispatch, Route, epoch_of
from schemas.operations import PoolStatus
from schemas.prompts import InferenceRequest
from schemas.routes import Fence, Terminal, encode_route_record
from schemas.wire import REPLAY_HEADER, BadRecord, decoder, encode, header, headers, turn_of

log = logging.getLogger(__name__)

_request = decoder(InferenceRequest)
STATUS_INTERVAL_S = 1.0


@dataclass(slots=True)
class _Running:
    """A turn under the greatest dispatch seen of it, and the offsets of all its requests."""

    dispatch: Dispatch
    task: asyncio.Task[None]
    offsets: list[int]
    finished: bool = False


@dataclass(slots=True)
class _Partition:
    side: SideInputs
    turns: dict[str, _Running] = field(default_factory=dict)


class Worker:
    """Holds partitions of a pool's inference topics."""

    def __init__(self, tools: Tools, follower: Follower) -> None:
        self._tools = tools
        self._follower = follower
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
        """A request: a new turn, a repetition, or a greater dispatch that replaces the running turn."""
        age_s = (now_ms() - record.timestamp) / 1000
        if header(record.headers, REPLAY_HEADER) is not None or age_s > self._tools.settings.protocol.max_turn_age_s:
            # Never re-run the past. The orchestrator answers for the end.
            log.warning("a request at offset %d is replayed or too old: let go", record.offset)
            held.end(record.offset)
            return
        try:
            request = _request(record.value)
        except BadRecord as error:
            held.spawn(self._give_up(held, record, error), "dlq")
            return
        turns = self._partitions[held.where].turns
        known = turns.get(request.response)
        if known is not None and request.dispatch <= known.dispatch:
            if known.finished:
                held.end(record.offset)
            else:
                known.offsets.append(record.offset)
            return
        offsets = [record.offset]
        if known is not None:
            known.task.cancel()
            offsets = [*known.offsets, record.offset]
        side = self._partitions[held.where].side
        task = held.spawn(self._run(held, Turn(self._tools, held, side, request)), f"turn-{record.offset}")
        turns[request.response] = _Running(request.dispatch, task, offsets)

    async def _run(self, held: Held, turn: Turn) -> None:
        await turn.run()
        running = self._partitions[held.where].turns[turn.request.response]
        if running.dispatch == turn.request.dispatch:
            running.finished = True
            for offset in running.offsets:
                held.end(offset)
            keep_s = self._tools.settings.protocol.max_turn_age_s
            asyncio.get_running_loop().call_later(keep_s, self._forget, held, turn.request.response, running)

    def _forget(self, held: Held, response: str, running: _Running) -> None:
        partition = self._partitions.get(held.where)
        if partition is not None and partition.turns.get(response) is running:
            del partition.turns[response]

    async def _give_up(self, held: Held, record: Record, error: BadRecord) -> None:
        """A request that can't be read: its turn is ended first, on its route, as far as the headers tell which.

        The orchestrator, who answers for the end in chat.turns, finds the terminal when it looks.
        """
        log.error("no request at %s-%d offset %d: %s", record.topic, record.partition, record.offset, error)
        if (turn := turn_of(record.headers)) is not None:
            await until_done(lambda: self._end_unread(held, *turn))
        count = self._tools.settings.topics.session_partitions
        group = f"worker-{self._tools.pool.name}"
        await until_done(lambda: dead_letter(self._tools.producer, record, group=group, error=error, partitions=count))
        held.end(record.offset)

    async def _end_unread(self, held: Held, response: str, route: Route, dispatch: Dispatch) -> None:
        tokens = self._tools.tokens
        fence = Fence(epoch=epoch_of(dispatch, held.takeover, 1), writer=secrets.token_hex(4))
        try:
            transcript = await take_turn(tokens, self._tools.ranges, response, route, fence)
        except RouteGone:
            return  # nobody reads it any more
        if transcript is None or transcript.terminal is not None:
            return
        terminal = Terminal(
            writer=fence.writer,
            seq=transcript.seq,
            kind="failed",
            failure=failure("unprocessable", "this turn can't be processed: try again"),
            model=self._tools.pool.model,
            ended_at=now_ms(),
        )
        value = encode_route_record((terminal,))
        await tokens.send(route.topic, value, key=response.encode(), partition=route.partition)

    async def report(self, worker: str) -> None:
        """Say each second how full the engine is."""
        topics, admission = self._tools.settings.topics, self._tools.admission
        key = f"{self._tools.pool.name}/{worker}".encode()
        partition = partition_of(key, topics.topics[CAPACITY].partitions)
        while True:
            status = PoolStatus(
                pool=self._tools.pool.name,
                worker=worker,
                slots=admission.slots,
                running=admission.running,
                queued=admission.queued(),
                oldest_queued_ms=admission.oldest_ms(now_ms()),
                at=now_ms(),
            )
            try:
                await self._tools.producer.post(
                    CAPACITY, encode(status), key=key, partition=partition, headers=headers(status.type)
                )
            except ParleyError as error:
                log.warning("the pool's status is not in the log: %s", error)
            await asyncio.sleep(STATUS_INTERVAL_S)


async def run(settings: Settings, pool_name: str, engine_number: int = 0) -> None:
    """Serve one engine of a pool until told to stop.

    Raises:
        ValueError: no such pool, or it has no engine.
    """
    pool = settings.topics.pools.get(pool_name)
    if pool is None:
        raise ValueError(f"topics.yaml has no pool {pool_name!r}: it has {', '.join(settings.topics.pools)}")
    group_name = f"worker-{pool_name}"
    name = settings.instance or group_name
    producer = Producer(settings.kafka, name)
    tokens = Producer(settings.kafka, f"{name}-tokens", linger_ms=settings.kafka.token_linger_ms)
    follower = Follower(settings.kafka, f"{name}-side")
    ranges = RangeReader(settings.kafka, f"{name}-ranges")
    engine = EngineClient(
        settings.engine_address(pool_name, engine_number),
        pool.engine_model,
        cumulative=pool.output == "cumulative",
        silence_s=settings.worker.silence_limit_s,
    )
    tools = Tools(
        settings,
        pool,
        producer,
        tokens,
        ranges,
        engine,
        Admission(pool.slots),
        Classifier.load(settings.moderation.model),
        Policy.load(settings.moderation.policy),
        load_tokenizer(pool.tokenizer, settings.tokenizers_dir),
    )
    await producer.start()
    await tokens.start()
    await follower.start()
    worker = Worker(tools, follower)
    topics = [settings.topics.inference_topic(pool_name, tier) for tier in TIERS]
    group = Group(settings, group_name, topics, worker, HEALTH)
    follower.on_failure = group.fail
    reporting = asyncio.create_task(worker.report(name), name="report")
    try:
        await until_stopped(group.run(), group.stop)
    finally:
        reporting.cancel()
        await engine.close()
        await follower.stop()
        await ranges.stop()
        await tokens.stop()
        await producer.stop()
