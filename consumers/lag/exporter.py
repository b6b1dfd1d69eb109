"""`parley lag --serve`: the survey's figures for Prometheus, so that a dead group has its figures, too.

The brokers are asked again and again, and a scrape is given the last answer. When they can't be asked there are no
figures: an old one would look like a group that stands still, or like one that is well. While an answer is only long in
coming the last one stays, with its time beside it, so that no alert begins to wait anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from aiokafka import TopicPartition
from prometheus_client import REGISTRY
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from consumers.lag.states import State
from consumers.lag.survey import GroupLag, PartitionLag, Report, Survey
from parley.errors import ParleyError
from parley.health import Health, serve_health
from parley.log.groups import REBALANCING, GroupReader
from parley.log.spans import Span, Spans, open_spans
from parley.process import until_stopped
from parley.settings import Settings
from parley.topics import DLQ

log = logging.getLogger(__name__)

OLD_INTERVALS = 3
"""A look that takes so many intervals longer than the one before it is not coming, for all that anybody knows."""

_GROUP = ("group",)
_PLACE = ("group", "topic", "partition")
_STAGE = (*_PLACE, "stage")


@dataclass(frozen=True, slots=True)
class Seen:
    """What one look has found."""

    report: Report
    letters: Mapping[TopicPartition, Span]
    """Of each partition of chat.dlq: its oldest offset, and the one that its next record will have."""
    took_s: float
    ended: float = field(default_factory=time.monotonic)
    """When it was done, by this process's own clock."""


class Exporter(Collector):
    """The last look, as metrics. A new one is expected every `interval_s` seconds."""

    def __init__(self, interval_s: float) -> None:
        self.seen: Seen | None = None
        self._interval_s = interval_s

    def collect(self) -> Iterator[Metric]:
        """Asked by the registry at each scrape, in another thread."""
        seen = self.seen
        up = GaugeMetricFamily(
            "parley_lag_up", "1: the brokers answered when they were last asked, and are not long in answering now."
        )
        up.add_metric((), seen is not None and self._fresh(seen))
        yield up
        yield from families(seen)

    def _fresh(self, seen: Seen) -> bool:
        return time.monotonic() - seen.ended <= OLD_INTERVALS * self._interval_s + seen.took_s


def families(seen: Seen | None) -> Iterator[Metric]:
    """All metrics; without a look they have no samples. A figure that isn't known is left out, never 0 or -1."""
    about = _About()
    if seen is not None:
        about.add(seen)
    yield from about.all


class _About:
    """The families, filled group by group."""

    def __init__(self) -> None:
        self.all: list[Metric] = []
        self._looked = self._gauge("parley_lag_looked_timestamp_seconds", "When the brokers were last asked.", ())
        self._took = self._gauge("parley_lag_look_seconds", "How long the last asking took.", ())
        self._members = self._gauge("parley_lag_members", "Members by the coordinator's word.", _GROUP)
        self._rebalancing = self._gauge("parley_lag_rebalancing", "1: partitions are being given out.", _GROUP)
        self._missing = self._gauge("parley_lag_missing_topics", "Topics that it should read and do not exist.", _GROUP)
        words = ", ".join(f"{state.value} {state.name}" for state in State)
        self._state = self._gauge("parley_lag_state", f"State of a partition: {words}.", _PLACE)
        self._records = self._gauge(
            "parley_lag_records", "Records that are not done with, running (taken) or waiting.", _STAGE
        )
        self._oldest = self._gauge(
            "parley_lag_oldest_seconds", "Age of the oldest running or waiting record; 0: there is none.", _STAGE
        )
        self._seconds = self._gauge(
            "parley_lag_seconds", "The lag in seconds: age of the oldest record that is not done with.", _PLACE
        )
        self._late = self._gauge("parley_lag_commit_age_seconds", "Age of the last commit.", _PLACE)
        self._held = self._gauge("parley_lag_held", "1: a member of the group has the partition.", _PLACE)
        self._lost = self._gauge("parley_lag_lost_records", "Records that retention took undone, at most.", _PLACE)
        self._committed = self._gauge("parley_lag_committed_offset", "Committed offset.", _PLACE)
        self._end = self._gauge("parley_lag_end_offset", "Offset of the next record.", _PLACE)
        self._takeovers = self._counter("parley_lag_takeovers", "Times that the partition changed its holder.", _PLACE)
        self._letters = self._counter("parley_dlq_records", "Records ever written to chat.dlq.", ("partition",))
        self._kept = self._gauge("parley_dlq_kept_records", "Records that chat.dlq holds now.", ("partition",))

    def add(self, seen: Seen) -> None:
        """All of a look."""
        self._looked.add_metric((), seen.report.at / 1000)
        self._took.add_metric((), seen.took_s)
        for group in seen.report.groups:
            self._add_group(group)
        for where, (begin, end) in seen.letters.items():
            self._letters.add_metric((str(where.partition),), end)
            self._kept.add_metric((str(where.partition),), end - begin)

    def _add_group(self, group: GroupLag) -> None:
        of = (group.name,)
        self._members.add_metric(of, group.members)
        self._rebalancing.add_metric(of, group.kafka_state in REBALANCING)
        self._missing.add_metric(of, len(group.missing))
        for partition in group.partitions:
            self._add_partition(partition, (group.name, partition.where.topic, str(partition.where.partition)))

    def _add_partition(self, p: PartitionLag, place: tuple[str, str, str]) -> None:
        look, counts, ages = p.look, p.counts, p.ages
        self._state.add_metric(place, p.verdict.state)
        self._end.add_metric(place, look.end)
        self._lost.add_metric(place, counts.lost)
        self._held.add_metric(place, look.held if look.claim.holder else bool(p.members))
        if look.claim.holder:
            self._takeovers.add_metric(place, look.claim.takeover)
        if ages.commit_s is not None:
            self._late.add_metric(place, ages.commit_s)
        if look.committed is None:  # nobody knows what the group has done
            return
        self._committed.add_metric(place, look.committed)
        self._seconds.add_metric(place, ages.unfinished_s)
        for stage, records, oldest in (
            ("running", counts.running, ages.running_s),
            ("waiting", counts.waiting, ages.waiting_s),
        ):
            self._records.add_metric((*place, stage), records)
            self._oldest.add_metric((*place, stage), oldest or 0.0)

    def _gauge(self, name: str, help_: str, labels: tuple[str, ...]) -> GaugeMetricFamily:
        self.all.append(made := GaugeMetricFamily(name, help_, labels=labels))
        return made

    def _counter(self, name: str, help_: str, labels: tuple[str, ...]) -> CounterMetricFamily:
        self.all.append(made := CounterMetricFamily(name, help_, labels=labels))
        return made


async def serve(settings: Settings, survey: Survey, host: str, port: int, interval_s: float) -> None:
    """Serve /metrics, /health/live and /health/ready until SIGTERM or SIGINT.

    Raises:
        OSError: the port is taken.
    """
    exporter, health, stop = Exporter(interval_s), Health(), asyncio.Event()
    REGISTRY.register(exporter)
    serve_health(health, host, port)
    log.info("figures at http://%s:%d/metrics", host, port)
    await until_stopped(look_on(settings, survey, exporter, health, stop, interval_s), stop.set)


async def look_on(
    settings: Settings, survey: Survey, exporter: Exporter, health: Health, stop: asyncio.Event, interval_s: float
) -> None:
    """Look, show what was seen, and look again, until `stop`; through every outage of the brokers."""
    while not stop.is_set():
        try:
            async with GroupReader(settings.kafka) as reader, open_spans(settings.kafka, "parley-lag") as spans:
                while not stop.is_set():
                    exporter.seen = await look(survey, reader, spans, health)
                    health.beat()
                    health.ready()
                    await _pause(stop, interval_s)
        except ParleyError as error:
            exporter.seen = None
            health.beat()
            health.unready(error.message)
            log.warning("no figures: %s", error.message)
            await _pause(stop, interval_s)


async def look(survey: Survey, reader: GroupReader, spans: Spans, health: Health) -> Seen:
    """Ask the brokers, once. One that takes long lives: to be restarted for it would leave everybody without figures.

    Raises:
        ParleyError: log_unavailable.
    """
    began = time.monotonic()
    report = await survey.look(reader, spans, health.beat)
    count = (await spans.existing([DLQ])).get(DLQ, 0)
    letters = await spans.bounds(TopicPartition(DLQ, number) for number in range(count))
    return Seen(report, letters, time.monotonic() - began)


async def _pause(stop: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), seconds)
