"""The simulated brokers: partitions in memory, and a network that is late, loses requests, or loses answers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from aiokafka import TopicPartition
from aiokafka.errors import KafkaConnectionError, OffsetOutOfRangeError, RequestTimedOutError
from aiokafka.structs import ConsumerRecord

from tests.simulation.loop import Process, SimLoop

Record = ConsumerRecord[Any, Any]
START_S = 1_800_000_000
"""The brokers' wall clock when virtual time is 0, in seconds."""


@dataclass(slots=True)
class Trouble:
    """How likely each thing is to go wrong, each time it may. All zero: a fault-free world."""

    send_slow: float = 0
    send_fails: float = 0
    """The producer is told of a failure, and the record never comes."""
    send_fails_and_lands: float = 0
    """The producer is told of a failure; the record is in the log, or will be seconds later."""
    send_without_offset: float = 0
    request_lost: float = 0
    answer_lost: float = 0
    """The broker has done what was asked; nobody is told."""
    request_lingers: float = 0
    """The client is told of a failure; the request arrives later all the same."""
    fetch_stalls: float = 0
    engine_refuses: float = 0
    engine_breaks: float = 0
    engine_silent: float = 0
    store_down: float = 0


@dataclass(frozen=True, slots=True)
class Fate:
    """What becomes of one request or send, by decree."""

    lands_s: float | None
    """When it is in the log, or served; None: never."""
    fails_s: float | None = None
    """When its sender is told of a failure; None: it is told of the success."""


@dataclass(slots=True)
class Partition:
    """One partition's log. `begin` moves when retention takes records away."""

    records: list[Record] = field(default_factory=list)
    order: list[int] = field(default_factory=list)
    """Of each record: its place among all records of the cluster."""
    begin: int = 0

    @property
    def end(self) -> int:
        return self.begin + len(self.records)

    def read(self, start: int, count: int, end: int) -> list[Record]:
        at = start - self.begin
        return self.records[at : min(at + count, end - self.begin)]


class Cluster:
    """All partitions, and the way to them."""

    def __init__(self, loop: SimLoop, rng: random.Random, topics: Mapping[str, int]) -> None:
        self.loop = loop
        self.rng = rng
        self.trouble = Trouble()
        self.partitions = {TopicPartition(name, n): Partition() for name, count in topics.items() for n in range(count)}
        self.watchers: dict[TopicPartition, dict[Any, None]] = {}
        """Consumers that fetch from a partition; they are told of new records."""
        self.fates: dict[str, list[Fate | None]] = {}
        """For scenarios: what becomes of the first, second … send to a topic, or request of a kind; None: the usual."""
        self.on_append: Callable[[Record], None] = lambda record: None
        self._appended = 0

    def now_ms(self) -> int:
        """The brokers' clock."""
        return int((START_S + self.loop.time()) * 1000)

    def count_of(self, topic: str) -> int:
        return sum(where.topic == topic for where in self.partitions)

    def latency(self) -> float:
        """Seconds that something takes through the network, one way."""
        return 0.0005 + 0.003 * self.rng.random() ** 3

    def happens(self, likelihood: float) -> bool:
        return likelihood > 0 and self.rng.random() < likelihood

    def fate(self, what: str) -> Fate | None:
        """The decree for the next one of a kind."""
        decreed = self.fates.get(what)
        return decreed.pop(0) if decreed else None

    # -- the log --------------------------------------------------------------------------------------------------

    def append(
        self, where: TopicPartition, key: bytes | None, value: bytes | None, headers: Iterable[tuple[str, bytes]]
    ) -> int:
        """A record is in the log, on all replicas."""
        partition = self.partitions[where]
        offset = partition.end
        record = ConsumerRecord(
            where.topic, where.partition, offset, self.now_ms(), 1, key, value, None, 0, 0, tuple(headers)
        )
        partition.records.append(record)
        partition.order.append(self._appended)
        self._appended += 1
        self.on_append(record)
        for consumer in self.watchers.get(where, ()):
            consumer.arrived(where)
        return offset

    def check_position(self, where: TopicPartition, position: int) -> None:
        """As a broker answers a fetch."""
        if not self.partitions[where].begin <= position <= self.partitions[where].end:
            raise OffsetOutOfRangeError({where: position})

    def time_offset(self, where: TopicPartition, ms: int) -> int | None:
        """Offset of the first record appended at or after a time."""
        found = (record.offset for record in self.partitions[where].records if record.timestamp >= ms)
        return next(found, None)

    # -- the network ----------------------------------------------------------------------------------------------

    async def ask(self, process: Process, serve: Callable[[], Any], *, what: str = "", timeout_s: float = 10.0) -> Any:
        """A request of a process to a broker. What `serve` gives may be a future: the broker answers later.

        Raises:
            KafkaConnectionError, RequestTimedOutError: whether it was served is not known.
        """
        answer: asyncio.Future[Any] = self.loop.create_future()
        if (fate := self.fate(what)) is not None:
            if fate.lands_s is not None:
                self.loop.outside(fate.lands_s, self._serve_unheard, serve)
            self._fail(answer, timeout_s, after=fate.fails_s)
        elif self.happens(self.trouble.request_lost):
            self._fail(answer, timeout_s)
        elif self.happens(self.trouble.request_lingers):
            self._fail(answer, timeout_s)
            self.loop.outside(4 * self.rng.random(), self._serve_unheard, serve)
        else:
            deaf = self.happens(self.trouble.answer_lost)
            lag = process.lag_s * self.rng.random() if process.lag_s else 0.0
            self.loop.outside(self.latency() + lag, self._serve, process, serve, answer, deaf, timeout_s)
        return await answer

    def _serve(
        self, process: Process, serve: Callable[[], Any], answer: asyncio.Future[Any], deaf: bool, timeout_s: float
    ) -> None:
        if process.cut:
            self._fail(answer, timeout_s)
            return
        try:
            result = serve()
        except Exception as error:
            self.loop.outside(self.latency(), self._answer, process, answer, None, error, timeout_s)
            return
        if deaf:
            self._fail(answer, timeout_s)
        elif isinstance(result, asyncio.Future):
            result.add_done_callback(
                lambda done: self.loop.outside(
                    self.latency(), self._answer, process, answer, done, done.exception(), timeout_s
                )
            )
        else:
            self.loop.outside(self.latency(), self._answer, process, answer, result, None, timeout_s)

    def _answer(
        self,
        process: Process,
        answer: asyncio.Future[Any],
        result: Any,
        error: BaseException | None,
        timeout_s: float,
    ) -> None:
        if process.cut:
            self._fail(answer, timeout_s)
        elif not answer.done():
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(result.result() if isinstance(result, asyncio.Future) else result)

    @staticmethod
    def _serve_unheard(serve: Callable[[], Any]) -> None:
        try:
            result = serve()
        except Exception:
            return
        if isinstance(result, asyncio.Future):
            result.add_done_callback(lambda done: done.exception())

    def _fail(self, answer: asyncio.Future[Any], timeout_s: float, after: float | None = None) -> None:
        """A connection that breaks is noticed at once; one that is mute, after the timeout."""
        quick = self.rng.random() < 0.7
        error = KafkaConnectionError("the connection broke") if quick else RequestTimedOutError("no answer")
        if after is None:
            after = 0.2 * self.rng.random() if quick else timeout_s

        def fail() -> None:
            if not answer.done():
                answer.set_exception(error)

        self.loop.outside(after, fail)
