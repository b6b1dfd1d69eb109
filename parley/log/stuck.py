"""A watch over partitions that are held: alive, heartbeating and stuck is what no timeout of Kafka's finds.

A partition gets on while its oldest open record changes. One that stays for longer than its role may need keeps the
committed offset where it is; whoever looks at the process shall find its name.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from aiokafka import TopicPartition
from prometheus_client import Counter

from parley.health import Health
from parley.log.held import Held

log = logging.getLogger(__name__)

STUCK = Counter(
    "parley_consumer_stuck_records",
    "Records that ran for longer than their role may need, each counted once.",
    ("group",),
)
LOOK_S = 1.0
"""How often is looked: the poll loop comes round far more often."""


@dataclass(slots=True)
class _Oldest:
    held: Held
    offset: int
    since: float
    told: bool = False


class Stuck:
    """What one member of a group has that does not get on. `patience_s`: how long a record may be the oldest."""

    def __init__(self, group: str, patience_s: float, health: Health) -> None:
        self._group = group
        self._patience_s = patience_s
        self._health = health
        self._oldest: dict[TopicPartition, _Oldest] = {}
        self._due = float("-inf")

    def look(self, held: Mapping[TopicPartition, Held], now: float) -> None:
        """At each round of the loop. `now`: its clock, in seconds."""
        if now < self._due:
            return
        self._due = now + LOOK_S
        for where in self._oldest.keys() - held.keys():
            self._forget(where, now)
        for where, holding in held.items():
            open_ = holding.progress.open and not holding.still  # what stands still has been told already
            offset = holding.progress.prefix if open_ else None
            oldest = self._oldest.get(where)
            if oldest is not None and (oldest.held, oldest.offset) != (holding, offset):
                self._forget(where, now)
                oldest = None
            if oldest is None and offset is not None:
                self._oldest[where] = _Oldest(holding, offset, now)
            elif oldest is not None and not oldest.told and now - oldest.since > self._patience_s:
                self._tell(where, oldest, now)

    def _tell(self, where: TopicPartition, oldest: _Oldest, now: float) -> None:
        oldest.told = True
        STUCK.labels(self._group).inc()
        about = f"{where.topic}-{where.partition} offset {oldest.offset} does not get on"
        log.error(
            "%s: %s: it runs for %.0f s; `parley log %s --partition %d --offsets %d` has it",
            self._group,
            about,
            now - oldest.since,
            *where,
            oldest.offset,
        )
        self._health.trouble(_key(where), about)

    def _forget(self, where: TopicPartition, now: float) -> None:
        oldest = self._oldest.pop(where)
        if oldest.told:
            self._health.trouble(_key(where), "")
            what = f"{where.topic}-{where.partition} offset {oldest.offset}"
            log.warning("%s: %s is no longer open here, after %.0f s", self._group, what, now - oldest.since)


def _key(where: TopicPartition) -> str:
    return f"{where.topic}-{where.partition} stuck"
