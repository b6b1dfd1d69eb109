"""Whether a pool would begin a new turn in time, by what its workers say of their queues.

Load is shed here, before it costs the log and an engine anything, and free turns go first: a turn is refused when those
that would run before it have waited for a part of the start deadline already, on every worker of its pool. A pool that
nobody speaks for is not known to be crowded: its turns wait in the log for a worker to come back.
"""

from __future__ import annotations

from parley.clock import now_ms
from parley.errors import ParleyError
from parley.log.dlq import unreadable
from parley.log.ranges import Record
from parley.settings import ProtocolSettings
from schemas.base import Millis, Tier
from schemas.operations import PoolStatus
from schemas.wire import BadRecord, decoder

_status = decoder(PoolStatus)
FRESH_MS = 5_000
"""Workers report each second; one that has been silent for so long is not asked."""
AHEAD: dict[Tier, tuple[Tier, ...]] = {"paid": ("paid",), "free": ("paid", "free")}
"""Whose requests a worker begins before a new one of the tier."""
PATIENCE: dict[Tier, float] = {"paid": 0.8, "free": 0.5}
"""The part of the start deadline that these may have waited for."""


class Crowding:
    """The last word of each worker."""

    def __init__(self, protocol: ProtocolSettings) -> None:
        self._limit_ms = {tier: 1000 * protocol.start_deadline_s * part for tier, part in PATIENCE.items()}
        self._reports: dict[tuple[str, str], tuple[Millis, PoolStatus]] = {}

    def handle(self, record: Record) -> None:
        """A record of chat.capacity, in order."""
        try:
            status = _status(record.value)
        except BadRecord as error:
            unreadable(record, error)
            return
        self._reports[status.pool, status.worker] = now_ms(), status  # this clock's time: workers' may differ

    def check(self, pool: str, tier: Tier) -> None:
        """A new turn of the tier for the pool.

        Raises:
            ParleyError: overloaded.
        """
        waited = [
            max(status.oldest_queued_ms.get(each, 0) for each in AHEAD[tier])
            for heard, status in self._reports.values()
            if status.pool == pool and now_ms() - heard <= FRESH_MS
        ]
        if waited and min(waited) > self._limit_ms[tier]:
            told = f"Requests for this model wait for {min(waited) / 1000:.0f} s at present: try again later."
            raise ParleyError("overloaded", told)
