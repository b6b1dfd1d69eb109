"""What members of groups tell of themselves. Figures are read at a scrape: nothing is counted while records flow.

The scrape is another thread's, so what it reads is copied in single steps of the interpreter. How old the oldest record
is that nobody has fetched a member can't know; `parley lag --serve` asks the log for that.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol
from weakref import WeakSet

from aiokafka import AIOKafkaConsumer, TopicPartition
from prometheus_client import REGISTRY, Counter
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from parley.clock import now_ms
from parley.health import Health

Taking = Literal["taking", "closed", "paused", "still"]
"""What a member does with a partition's records: takes them; does not until it may (a rebalance, a takeover); does not
until some have ended, or its store answers; stands still until a restart."""
TAKING: tuple[Taking, ...] = ("taking", "closed", "paused", "still")

REBALANCES = Counter("parley_consumer_rebalances", "Assignments that members of a group were given.", ("group",))
TAKEOVERS = Counter("parley_consumer_takeovers", "Partitions that members of a group took over.", ("group",))


@dataclass(frozen=True, slots=True)
class PartitionFigures:
    """One partition that a member has."""

    where: TopicPartition
    taking: Taking
    running: int
    """Records that were taken and are not done."""
    oldest: int | None
    """When the oldest of those was appended, in ms; None: there is none."""
    waiting: int | None
    """Records that were not taken; None: nothing was fetched yet, so the log's end is not known."""


class Member(Protocol):
    """One process's part of a group."""

    @property
    def name(self) -> str:
        """The group's."""

    @property
    def health(self) -> Health:
        """Of the process."""

    def figures(self) -> Iterable[PartitionFigures]:
        """Of each partition that it has. Called from another thread."""


def log_end(consumer: AIOKafkaConsumer, where: TopicPartition) -> int | None:
    """The log's end as of the last fetch; None: not known."""
    with contextlib.suppress(AssertionError, AttributeError, KeyError):  # in a rebalance it is nobody's
        found = consumer.highwater(where)
        return None if found is None else int(found)
    return None


class Members(Collector):
    """The members that this process is."""

    def __init__(self) -> None:
        self._members: WeakSet[Member] = WeakSet()

    def add(self, member: Member) -> None:
        """Tell of it from now on."""
        self._members.add(member)

    def discard(self, member: Member) -> None:
        """It has left its group."""
        self._members.discard(member)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Asked by the registry at each scrape."""
        place = ("group", "topic", "partition")
        running = GaugeMetricFamily(
            "parley_consumer_running_records", "Records that were taken and are not done.", labels=place
        )
        oldest = GaugeMetricFamily(
            "parley_consumer_oldest_running_seconds",
            "Age of the oldest running record; 0: there is none.",
            labels=place,
        )
        waiting = GaugeMetricFamily(
            "parley_consumer_waiting_records", "Records that were not taken, as of the last fetch.", labels=place
        )
        partitions = GaugeMetricFamily(
            "parley_consumer_partitions",
            f"Partitions by what is done with their records: {', '.join(TAKING)}.",
            labels=("group", "taking"),
        )
        poll = GaugeMetricFamily(
            "parley_consumer_poll_age_seconds", "Since the loop has last come round.", labels=("group",)
        )
        now = now_ms()
        for member in list(self._members):
            figures = list(member.figures())
            for each in figures:
                labels = (member.name, each.where.topic, str(each.where.partition))
                running.add_metric(labels, each.running)
                oldest.add_metric(labels, 0 if each.oldest is None else max(0, now - each.oldest) / 1000)
                if each.waiting is not None:
                    waiting.add_metric(labels, each.waiting)
            for taking in TAKING:
                partitions.add_metric((member.name, taking), sum(each.taking == taking for each in figures))
            if (age := member.health.beat_age) is not None:
                poll.add_metric((member.name,), age)
        yield from (running, oldest, waiting, partitions, poll)


MEMBERS = Members()
REGISTRY.register(MEMBERS)
