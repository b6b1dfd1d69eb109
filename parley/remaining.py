"""What still runs on a pool, or an engine of it, that is taken out of use: what is known of it, and what is not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from aiokafka import TopicPartition

from parley.log.groups import GroupState
from parley.log.spans import Span
from parley.ownership import Claim
from schemas.operations import PoolStatus


@dataclass(frozen=True, slots=True)
class Remaining:
    """Turns that are not done with, and what keeps anybody from knowing."""

    turns: int
    unknown: tuple[str, ...] = ()
    """In words; with any of them `turns` is the least that there may be."""

    @property
    def nothing(self) -> bool:
        """Known to be none."""
        return not self.turns and not self.unknown


def of_pool(pool: str, group: GroupState, bounds: Mapping[TopicPartition, Span]) -> Remaining:
    """A pool's turns by its requests in Kafka, waiting ones among them: it needs no worker that tells.

    `bounds`: of its request topics, asked for after the group. A commit is half a second old while workers live.
    """
    turns = sum(_unfinished(group.committed.get(where), span) for where, span in bounds.items())
    if turns and not group.members:
        return Remaining(turns, (f"{pool} has no worker that could finish them",))
    return Remaining(turns)


def of_engine(pool: str, engine: str, group: GroupState, reports: Iterable[PoolStatus]) -> Remaining:
    """An engine's turns by the word of every worker of its pool: each may run some on it, also the others' workers.

    Requests that wait in Kafka are none of an engine's: workers take them to engines that are in use. `reports` are
    those that came since the drain could be known.
    """
    told = {one.worker: one for one in reports if one.pool == pool}
    unknown = []
    for name in sorted({member.name.split(":")[0] for member in group.members}):
        if name not in told:
            unknown.append(f"{name} is in {group.name} and does not report")
        elif told[name].runs is None:
            unknown.append(f"{name} is of a version that does not tell which engines its turns are on")
    if told and not any(engine in (one.runs or {engine: 0}) for one in told.values()):
        unknown.append(f"no worker of {pool} has an engine {engine}")
    if not group.members:
        unknown.append(f"no worker of {pool} is there to tell what runs on {engine}")
    return Remaining(sum((one.runs or {}).get(engine, 0) for one in told.values()), tuple(unknown))


def _unfinished(committed: tuple[int, str] | None, span: Span) -> int:
    begin, end = span
    offset, metadata = committed or (begin, "")
    start = min(max(offset, begin), end)
    return end - start - sum(start <= ended < end for ended in Claim.decode(metadata, offset).ended)
