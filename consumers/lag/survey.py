"""Asking the brokers, once: every group's offsets and holders, the log's bounds, and the age of what is unfinished.

Order matters. Committed offsets are asked for before the log's bounds: a lag may be too large by what was appended in
between (milliseconds), and is never negative. All of it is asked from outside, so a dead group has its figures too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from aiokafka import TopicPartition

from consumers.lag.commits import History
from consumers.lag.counting import Counts, Look, count
from consumers.lag.groups import Watched
from consumers.lag.states import Ages, Commit, State, Verdict, judge, late, worst
from parley.clock import now_ms
from parley.log.groups import GroupReader, GroupState
from parley.log.spans import Span, Spans
from parley.ownership import Claim
from parley.topics import CAPACITY
from schemas.operations import PoolStatus
from schemas.wire import BadRecord, decoder

SAMPLES = 5
"""Commits of a window at which the lag is looked up, for partitions that are late."""
REPORT_MS = 10_000
"""A worker that has said nothing for so long is shown no more."""

_status = decoder(PoolStatus)


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """One group and partition."""

    where: TopicPartition
    look: Look
    counts: Counts
    ages: Ages
    verdict: Verdict
    members: tuple[str, ...]
    """Who has it by the coordinator's word: one at most, unless a rebalance runs."""

    @property
    def busy(self) -> bool:
        """There is something to say beyond "all done"."""
        return bool(self.counts.unfinished or self.counts.lost or self.verdict.state)


@dataclass(frozen=True, slots=True)
class GroupLag:
    """One group."""

    name: str
    kafka_state: str
    members: int
    partitions: tuple[PartitionLag, ...]
    missing: tuple[str, ...]
    """Topics that it should read, or has commits for, and that do not exist."""
    left: tuple[str, ...]
    """Topics that it has commits for and reads no more: not counted."""

    @property
    def state(self) -> State:
        """Its worst partition's."""
        return worst(partition.verdict.state for partition in self.partitions)

    @property
    def unfinished(self) -> int:
        """Its lag in records; partitions without a commit are not in it."""
        return sum(p.counts.unfinished for p in self.partitions if p.look.committed is not None)


@dataclass(frozen=True, slots=True)
class Report:
    """Everything at one moment."""

    at: int
    groups: tuple[GroupLag, ...]
    pools: tuple[PoolStatus, ...]
    """What workers say of themselves: requests that they have taken and that wait for a slot of their engine."""


class Survey:
    """Looks again and again; remembers only the commits of the window."""

    def __init__(self, groups: Sequence[Watched], window_s: float) -> None:
        self._watched = groups
        self._history = History((group.name for group in groups), int(1000 * window_s))

    async def look(self, reader: GroupReader, spans: Spans, alive: Callable[[], None] = lambda: None) -> Report:
        """One report. `alive` is called whenever brokers have answered about one more group: some take long.

        Raises:
            ParleyError: log_unavailable.
        """
        states = []
        for watched in self._watched:
            states.append(await reader.read(watched.name))
            alive()
        topics = {t for state in states for t in _topics_of(state)} | {t for w in self._watched for t in w.topics or ()}
        existing = await spans.existing(topics | {CAPACITY})
        scopes = [_scope(watched, state, existing) for watched, state in zip(self._watched, states, strict=True)]
        bounds = await spans.bounds({where for scope in scopes for where in scope.partitions})
        now = now_ms()
        await self._history.read(spans, now)
        groups = []
        for watched, state, scope in zip(self._watched, states, scopes, strict=True):
            groups.append(await self._group(spans, watched, state, scope, bounds, now))
            alive()
        return Report(now, tuple(groups), await _pools(spans, now) if CAPACITY in existing else ())

    async def _group(
        self,
        spans: Spans,
        watched: Watched,
        state: GroupState,
        scope: _Scope,
        bounds: dict[TopicPartition, Span],
        now: int,
    ) -> GroupLag:
        looks = {where: _look(state, where, bounds[where]) for where in scope.partitions}
        counts = {where: count(look) for where, look in looks.items()}
        running = await _oldest(spans, {w: c.running_span for w, c in counts.items() if c.running}, counts)
        waiting = await _oldest(spans, {w: c.waiting_span for w, c in counts.items() if c.waiting}, counts)
        partitions = []
        for where, look in looks.items():
            first_running, first_waiting = running.get(where), waiting.get(where)
            settled = counts[where].settle(
                first_running[0] if first_running else None, first_waiting[0] if first_waiting else None
            )
            commits = self._history.of(state.name, where)
            ages = Ages(
                None if first_running is None else max(0, now - first_running[1]) / 1000,
                None if first_waiting is None else max(0, now - first_waiting[1]) / 1000,
                max(0, now - commits[-1].at) / 1000 if commits else None,
            )
            if commits and late(ages, watched.patience):
                commits = await _with_ends(spans, where, commits, look.end)
            verdict = judge(look, settled, ages, watched.patience, commits, len(state.members))
            partitions.append(PartitionLag(where, look, settled, ages, verdict, tuple(state.holders(where))))
        return GroupLag(state.name, state.state, len(state.members), tuple(partitions), scope.missing, scope.left)


@dataclass(frozen=True, slots=True)
class _Scope:
    """Which partitions of a group count."""

    partitions: tuple[TopicPartition, ...]
    missing: tuple[str, ...]
    left: tuple[str, ...]


def _topics_of(state: GroupState) -> set[str]:
    return {where.topic for where in state.committed} | state.subscribed


def _scope(watched: Watched, state: GroupState, existing: dict[str, int]) -> _Scope:
    """The wanted topics' partitions. A topic that the group has left is named and not counted."""
    has = _topics_of(state) - watched.aside
    wanted = set(watched.topics if watched.topics is not None else state.subscribed or has)
    partitions = [TopicPartition(topic, n) for topic in sorted(wanted & set(existing)) for n in range(existing[topic])]
    missing = sorted((wanted | has) - set(existing))
    return _Scope(tuple(partitions), tuple(missing), tuple(sorted((has - wanted) & set(existing))))


def _look(state: GroupState, where: TopicPartition, bounds: Span) -> Look:
    commit = state.committed.get(where)
    claim = Claim() if commit is None else Claim.decode(commit[1], commit[0])
    # A claim and the coordinator differ while a takeover is under way: then nobody is known to hold the partition.
    held = bool(claim.holder) and state.holds(claim.holder, where)
    return Look(*bounds, commit[0] if commit else None, claim, held)


async def _oldest(
    spans: Spans, parts: dict[TopicPartition, Span], counts: dict[TopicPartition, Counts]
) -> dict[TopicPartition, tuple[int, int]]:
    """(offset, append time) of the first record of each part that has not ended."""
    found = await spans.first(
        parts, lambda record: record.offset not in counts[TopicPartition(record.topic, record.partition)].ended
    )
    return {where: (int(record.offset), int(record.timestamp)) for where, record in found.items()}


async def _with_ends(spans: Spans, where: TopicPartition, commits: Sequence[Commit], end: int) -> list[Commit]:
    """The commits, some of them with what the log's end was then: the offset of the first record appended later."""
    step = max(1, (len(commits) - 1) // SAMPLES)
    asked = {number: commits[number] for number in range(len(commits) - 1, -1, -step)}
    ends = {number: (await spans.at_time({where: commit.at}))[where] for number, commit in asked.items()}
    return [
        Commit(c.at, c.offset, (ends[number] if ends[number] is not None else end) if number in ends else None)
        for number, c in enumerate(commits)
    ]


async def _pools(spans: Spans, now: int) -> tuple[PoolStatus, ...]:
    """Each worker's newest report."""
    where = TopicPartition(CAPACITY, 0)
    start = (await spans.at_time({where: now - REPORT_MS}))[where]
    if start is None:
        return ()
    newest: dict[tuple[str, str], PoolStatus] = {}

    def take(record: object) -> None:
        try:
            status = _status(getattr(record, "value", None))
        except BadRecord:
            return
        newest[status.pool, status.worker] = status

    bounds = await spans.bounds([where])
    await spans.read({where: (start, bounds[where][1])}, take)
    return tuple(newest[key] for key in sorted(newest))
