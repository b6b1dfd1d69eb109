"""Brokers and producers: logs that only grow, sends that land late, fail, or fail and land all the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

Where = tuple[str, int]
"""Topic and partition."""


class SendFailed(Exception):
    """A send failed or was not acknowledged; its record may be in the log, or get there later."""


@dataclass(slots=True, eq=False)
class Record:
    """An event on its way to the log, and in it."""

    event: Any
    response: str = ""
    before: tuple[str, ...] | None = None
    """Of a delta or terminal: the answer so far as its writer believed it."""
    context: str | None = None
    """Of a worker's fence: the prompt that the engine gets."""
    where: Where = ("", 0)
    offset: int = -1
    timestamp: int = 0
    """Append time in ms, by the log's clock."""
    at: int = 0
    """Place in the order of all appends to all logs."""
    heard: Literal["nothing", "acknowledged", "failed"] = "nothing"
    """What its sender knows."""
    value: bytes = b""
    """Encoded, where the reader is production's and decodes it."""

    @property
    def topic(self) -> str:
        return self.where[0]

    @property
    def partition(self) -> int:
        return self.where[1]


class Logs:
    """All partitions of all topics, and the producers' queues."""

    def __init__(self) -> None:
        self.now = 1_700_000_000_000
        self.appended = 0
        self.queues: list[Queue] = []
        """Those that hold something."""
        self.on_append: Callable[[Record], None] | None = None
        self._logs: dict[Where, list[Record]] = {}

    def log(self, where: Where) -> list[Record]:
        found = self._logs.get(where)
        if found is None:
            found = self._logs[where] = []
        return found

    def everything(self) -> list[Record]:
        """All records of all logs, in the order in which they were appended."""
        return sorted((record for log in self._logs.values() for record in log), key=lambda record: record.at)

    def append(self, where: Where, record: Record) -> Record:
        log = self.log(where)
        record.where, record.offset, record.timestamp, record.at = where, len(log), self.now, self.appended
        self.appended += 1
        log.append(record)
        if self.on_append is not None:
            self.on_append(record)
        return record


class Queue:
    """One idempotent producer's records for one partition: first in, first out, and of no use after a failure."""

    __slots__ = ("_logs", "dead", "records", "stuck", "where")

    def __init__(self, logs: Logs, where: Where) -> None:
        self._logs = logs
        self.where = where
        self.records: list[Record] = []
        self.dead = False
        self.stuck = False

    def send(self, record: Record) -> Record:
        self.records.append(record)
        if len(self.records) == 1:
            self._logs.queues.append(self)
        return record

    def land(self, *, acknowledge: bool = True) -> None:
        """The first record reaches the log; without an acknowledgement its sender hears of a failure."""
        record = self.records.pop(0)
        if not self.records:
            self._logs.queues.remove(self)
        self._logs.append(self.where, record)
        if not acknowledge:
            record.heard = "failed"
            self.fail(0)
        elif record.heard == "nothing":
            record.heard = "acknowledged"

    def fail(self, on_the_wire: int) -> None:
        """Every sender hears of a failure; the first records were on the wire and may land later."""
        self.dead = True
        for record in self.records:
            record.heard = "failed"
        if self.records and not on_the_wire:
            self._logs.queues.remove(self)
        del self.records[on_the_wire:]
