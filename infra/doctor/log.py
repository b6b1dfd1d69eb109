"""Kafka: brokers, topics, their settings, what lies in them, clocks, and the groups that should be alive."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import aclosing
from pathlib import Path

from aiokafka import TopicPartition

from consumers.lag.groups import expected
from infra.doctor.findings import Finding, fail, ok, warn
from infra.doctor.here import space
from parley.clock import now_ms
from parley.errors import ParleyError
from parley.log.admin import connect
from parley.log.groups import GroupReader
from parley.log.ranges import RangeReader, Record
from parley.log.spans import Spans, open_spans
from parley.log.topic_plan import Plan, plan
from parley.log.topic_rules import Rule, broken, broker_rules, file_rules
from parley.settings import Settings
from parley.topics import CAPACITY, DLQ, Topics
from schemas.routes import decode_route_record
from schemas.wire import EVENTS, BadRecord, decoder, header

FETCH = 1
"""Kafka's number of the request that reads records."""
OLDEST_FETCH_OF_4_0 = 4
"""Kafka 4.0 was the first to refuse older ones (KIP-896)."""
REPORTS_S = 2.5
"""Workers write to chat.capacity each second."""
SKEW_MS = 500
"""Clocks that differ by more make deadlines wrong that are seconds long."""
NAMED = 5
"""Of many things with the same fault so many are named."""


async def brokers(settings: Settings) -> list[Finding]:
    """They answer, are new enough, and are set up as the protocol needs it."""
    async with connect(settings.kafka) as admin:
        found = await admin.brokers()
        oldest_fetch = (await admin.api_versions())[FETCH][0]
        risks = await admin.at_risk(settings.topics.min_insync_replicas)
    count = f"{len(found)} broker{'s' if len(found) > 1 else ''} behind {settings.kafka.bootstrap}"
    findings = [
        ok("kafka", f"{count}, Kafka 4.0 or newer")
        if oldest_fetch >= OLDEST_FETCH_OF_4_0
        else warn("kafka", f"{count}, older than Kafka 4.0", "Parley is tested with 4.x only: upgrade")
    ]
    if len(found) < settings.topics.replication:
        wanted = f"replication {settings.topics.replication} needs as many"
        findings.append(fail("kafka", f"{count}: {wanted}", "start the missing brokers"))
    if risks:
        named = _some(f"{name} ({why})" for name, why in risks.items())
        findings.append(fail("kafka", f"no acknowledged writes to {named}", "start the brokers that hold them"))
    rules = [rule for name, conf in found.items() for rule in broker_rules(settings.topics, settings.kafka, name, conf)]
    findings += _ruled("brokers", rules, "set it in the brokers' server.properties")
    return [*findings, *_disks(found)]


def _disks(brokers: dict[str, dict[str, str]]) -> Iterator[Finding]:
    """Log folders that this machine can see; the protocol's own figures are not asked for by aiokafka."""
    for name, config in brokers.items():
        for folder in (config.get("log.dirs") or config.get("log.dir") or "").split(","):
            if folder and Path(folder).is_dir():
                yield space(f"disk of broker {name}", Path(folder))


async def topics(settings: Settings) -> list[Finding]:
    """The cluster has what topics.yaml says, and what it says holds together."""
    async with connect(settings.kafka) as admin:
        live = await admin.topics(list(settings.topics.topics))
    wanted = settings.topics
    findings = compared(wanted, plan(wanted, live))
    copies = [t.name for t in live if t.name in wanted.topics and t.replication < wanted.replication]
    if copies:
        found = f"fewer copies than {wanted.replication}: {_some(copies)}"
        findings.append(warn("topics", found, "`kafka-reassign-partitions` adds replicas; apply never does"))
    rules = file_rules(wanted, settings.protocol)
    return findings + _ruled("rules", rules, "`parley topics check` shows the numbers; mend topics.yaml or settings")


def compared(wanted: Topics, difference: Plan) -> list[Finding]:
    """The difference between file and cluster, as findings."""
    findings = [
        fail(
            "topics",
            f"{conflict.topic} has {conflict.live} partitions, topics.yaml says {conflict.wanted}",
            "correct topics.yaml, or make a new cell: a count never changes",
        )
        for conflict in difference.conflicts
    ]
    if difference.create:
        missing = _some(topic.name for topic in difference.create)
        findings.append(fail("topics", f"{len(difference.create)} missing: {missing}", "`parley topics apply`"))
    findings += [
        fail("topics", f"{c.topic}: {c.name} is {c.live}, topics.yaml says {c.wanted}", "`parley topics apply`")
        for c in difference.alter
    ]
    if difference.session_topics >= wanted.session_topics.limit:
        found = f"{difference.session_topics} session topics, as many as allowed"
        findings.append(warn("topics", found, "`parley topics gc` as a job every few minutes"))
    if not findings:
        findings.append(ok("topics", f"{len(wanted.topics)} as topics.yaml has them"))
    return findings


def _ruled(check: str, rules: list[Rule], todo: str) -> list[Finding]:
    """Rules that don't hold, or one line that all do."""
    wrong = broken(rules)
    return [fail(check, f"does not hold: {rule.text}: {rule.numbers}", todo) for rule in wrong] or [
        ok(check, f"{len(rules)} rules hold")
    ]


async def records(settings: Settings) -> list[Finding]:
    """This version reads the newest record of every partition: whoever reads the topic next will meet them."""
    names = [name for name, topic in settings.topics.topics.items() if set(topic.events) <= set(EVENTS)]
    if unread := await unreadable_records(settings, names):
        todo = "a newer version wrote them: upgrade readers first; or `parley dlq list` tells who gave up"
        return [warn("records", f"{len(unread)} of the newest are unreadable: {_some(unread)}", todo)]
    return [ok("records", f"the newest of each partition of {len(names)} topics can be read")]


async def unreadable_records(settings: Settings, names: list[str]) -> list[str]:
    """Of the newest record of each partition of these topics: the places of those that can't be read, and why."""
    newest = await _newest(settings, names)
    return [f"{r.topic}-{r.partition}@{r.offset}: {why}" for r in newest if (why := unreadable(r))]


def unreadable(record: Record) -> str:
    """Why this version can't read a record; empty when it can."""
    kind = header(record.headers, "type")
    try:
        if record.value is not None and record.value.startswith(b"["):
            decode_route_record(record.value)
        elif kind in EVENTS:
            decoder(EVENTS[kind])(record.value)
        else:
            return f"no event {kind[:40]!r}" if kind else "its headers name no event"
    except BadRecord as error:
        return str(error)
    except ValueError:
        return "no list of route events"
    return ""


async def _newest(settings: Settings, names: list[str]) -> list[Record]:
    async with open_spans(settings.kafka, "parley-doctor") as spans:
        existing = await spans.existing(names)
        bounds = await spans.bounds(TopicPartition(n, p) for n, count in existing.items() for p in range(count))
        last = {where: (end - 1, end) for where, (begin, end) in bounds.items() if begin < end}
        return list((await spans.first(last)).values())


async def dead_letters(settings: Settings) -> list[Finding]:
    """Records that somebody gave up in the last hour."""
    since = now_ms() - 3_600_000
    async with open_spans(settings.kafka, "parley-doctor") as spans:
        count = await _count_since(spans, DLQ, since)
    if count:
        return [warn("dead letters", f"{count} in the last hour", "`parley dlq list --since 1h`")]
    return [ok("dead letters", "none in the last hour")]


async def _count_since(spans: Spans, topic: str, since: int) -> int:
    existing = await spans.existing([topic])
    wheres = [TopicPartition(topic, n) for n in range(existing.get(topic, 0))]
    bounds = await spans.bounds(wheres)
    starts = await spans.at_time(dict.fromkeys(wheres, since))
    return sum(bounds[where][1] - start for where in wheres if (start := starts[where]) is not None)


async def clocks(settings: Settings) -> list[Finding]:
    """The brokers' clock against this machine's: by the next report that a worker writes, since nothing else is."""
    ranges = RangeReader(settings.kafka, "parley-doctor")
    try:
        end = await ranges.end_offset(CAPACITY, 0)
        async with asyncio.timeout(REPORTS_S), aclosing(ranges.follow(CAPACITY, 0, end)) as reports:
            async for report in reports:
                return [compared_clocks("brokers", int(report.timestamp), now_ms())]
    except TimeoutError:
        pass
    except Exception as error:
        if not isinstance(error, ParleyError):
            return [warn("clocks", f"{CAPACITY} can't be read: {error}", "`parley topics apply`")]
        raise
    finally:
        await ranges.stop()
    todo = "start a worker: the clock is read from what it reports each second"
    return [warn("clocks", "brokers: nobody writes, so their clock is not known", todo)]


def compared_clocks(whose: str, theirs: int, ours: int) -> Finding:
    """Two readings of the same moment, in ms."""
    ahead = theirs - ours
    if abs(ahead) > SKEW_MS:
        found = f"{whose}: {abs(ahead) / 1000:.1f} s {'ahead of' if ahead > 0 else 'behind'} this machine"
        return fail("clocks", found, "set both by NTP: deadlines and retention are counted across machines")
    return ok("clocks", f"{whose}: {abs(ahead)} ms from this machine's, or less")


async def groups(settings: Settings) -> list[Finding]:
    """Every group that should be there has members that hold partitions."""
    findings = []
    async with GroupReader(settings.kafka) as reader:
        for watched in expected(settings.topics, settings.protocol):
            state = await reader.read(watched.name)
            if not state.members:
                findings.append(
                    fail("groups", f"{watched.name} has no members", "start the role; `parley lag` tells more")
                )
            elif state.state != "Stable":
                todo = "look again; a group that never settles has a member that comes and goes"
                findings.append(warn("groups", f"{watched.name} is {state.state}", todo))
            else:
                held = sum(len(member.assigned) for member in state.members)
                who = f"{len(state.members)} member{'s' if len(state.members) > 1 else ''}"
                findings.append(ok("groups", f"{watched.name}: {who} with {held} partitions"))
    return findings


def _some(names: Iterable[str]) -> str:
    named = list(names)
    rest = f" and {len(named) - NAMED} more" if len(named) > NAMED else ""
    return ", ".join(named[:NAMED]) + rest
