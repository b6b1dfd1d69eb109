"""Asking the brokers where a group is, and moving it."""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from aiokafka import TopicPartition
from aiokafka.errors import (
    IllegalGenerationError,
    KafkaError,
    RebalanceInProgressError,
    UnknownMemberIdError,
    for_code,
)
from aiokafka.protocol.commit import OffsetCommitRequest

from parley.clock import now_ms
from parley.errors import ParleyError
from parley.log.groups import DEAD, GroupReader, GroupState
from parley.log.spans import Spans, open_spans
from parley.offsets.consequences import require_empty
from parley.offsets.plan import At, Commit, Place, Plan, Target, name, plan
from parley.ownership import Claim
from parley.settings import KafkaSettings, Settings
from parley.timeline.audit import operator, record_moves
from schemas.operations import OffsetsMoved, PartitionMoved

COMMAND = "parley group reset"
CHANGELOG = "-changelog"
"""What Faust's own topics end with: commits of them mean nothing."""
HELD = (IllegalGenerationError, RebalanceInProgressError, UnknownMemberIdError)
"""How Kafka refuses a commit from outside of a group that has members."""


async def look(
    settings: KafkaSettings, group: str, topic: str | None, partitions: Sequence[int], target: Target
) -> tuple[GroupState, Plan]:
    """The group as it is, and the move resolved by what the brokers have now.

    Raises:
        ParleyError: not_found: no such group or topic; invalid_request: the group isn't there, or the offset;
            log_unavailable.
    """
    async with GroupReader(settings) as reader, open_spans(settings, "parley-group") as spans:
        state = await reader.read(group)
        if not state.committed:
            raise await _unknown(reader, state)
        wheres = await _chosen(spans, state, topic, partitions)
        # Bounds first: records that come between the two are after a time that had none, and are not skipped.
        bounds = await spans.bounds(wheres)
        found = await spans.at_time(dict.fromkeys(wheres, target.ms)) if isinstance(target, At) else {}
    places = [Place(where, *bounds[where], state.committed.get(where), found.get(where)) for where in wheres]
    claimed = any(Claim.decode(metadata, offset).takeover for offset, metadata in state.committed.values())
    return state, plan(group, target, places, claimed=claimed)


async def move(settings: Settings, planned: Plan) -> tuple[dict[TopicPartition, Commit], dict[TopicPartition, Commit]]:
    """Do it, if the group is empty: what was committed, and what the brokers then say is committed.

    Raises:
        ParleyError: invalid_request: the group has members; log_unavailable: it can't be recorded, or Kafka refuses.
    """
    commits = planned.commits(f"{operator()}:{secrets.token_hex(6)}")
    async with Mover(settings.kafka) as mover:
        require_empty(await mover.read(planned.group))
        await record_moves(settings, list(_events(planned)))
        await mover.commit(planned.group, commits)
        return commits, (await mover.read(planned.group)).committed


class Mover(GroupReader):
    """Commits from outside of a group, which Kafka allows only while it has no members."""

    async def commit(self, group: str, commits: Mapping[TopicPartition, Commit]) -> None:
        """Once, never again: a commit that lands late would undo what the group has done since.

        Raises:
            ParleyError: see `move`.
        """
        topics: dict[str, list[tuple[int, int, str]]] = defaultdict(list)
        for where, (offset, metadata) in commits.items():
            topics[where.topic].append((where.partition, offset, metadata))
        request = OffsetCommitRequest(
            group,
            OffsetCommitRequest.DEFAULT_GENERATION_ID,
            "",
            OffsetCommitRequest.DEFAULT_RETENTION_TIME,
            list(topics.items()),
        )
        try:
            node = await self._client.find_coordinator(group)
            # aiokafka knows the request, but its client has no method for it.
            answer = await self._client._send_request(request, node)
        except (KafkaError, OSError, TimeoutError) as error:
            raise ParleyError(
                "log_unavailable",
                f"whether {group} was moved isn't known ({error!r}): look again, without --yes, before it is started",
            ) from error
        refused = {
            TopicPartition(topic, partition): for_code(code)
            for topic, parts in answer.topics
            for partition, code in parts
            if code
        }
        if any(issubclass(kind, HELD) for kind in refused.values()):
            require_empty(await self.read(group))
        if refused:
            told = ", ".join(f"{name(where)}: {kind.__name__}" for where, kind in refused.items())
            raise ParleyError("log_unavailable", f"Kafka refused {len(refused)} of {len(commits)} partitions: {told}")


async def _unknown(reader: GroupReader, state: GroupState) -> ParleyError:
    if state.state == DEAD:
        names = await reader.names()
        return ParleyError("not_found", f"there is no group {state.name}: there are {', '.join(names) or 'none'}")
    begins = "it begins with the oldest record by itself"
    return ParleyError("invalid_request", f"{state.name} is {state.state} and has never committed an offset: {begins}")


async def _chosen(
    spans: Spans, state: GroupState, topic: str | None, partitions: Sequence[int]
) -> list[TopicPartition]:
    """The partitions that are meant: all of the topics that the group has commits in, or those that are asked for."""
    has = {where.topic for where in state.committed}
    if topic is not None and topic not in has:
        raise ParleyError("not_found", f"{state.name} has no offsets in {topic}: it has some in {_listed(has)}")
    wanted = {topic} if topic is not None else {each for each in has if not each.endswith(CHANGELOG)} or has
    existing = await spans.existing(wanted)
    if not existing:
        raise ParleyError("not_found", f"{_listed(wanted)} {spans.missing}")
    chosen = [TopicPartition(each, n) for each in sorted(existing) for n in range(existing[each])]
    if not partitions:
        return chosen
    fewest = min(existing.values())
    if missing := sorted(n for n in set(partitions) if n >= fewest):
        raise ParleyError("invalid_request", f"{_listed(existing)}: {fewest} partitions, so none numbered {missing[0]}")
    return [where for where in chosen if where.partition in partitions]


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


def _events(planned: Plan) -> Iterable[OffsetsMoved]:
    moved: dict[str, list[PartitionMoved]] = defaultdict(list)
    for one in planned.needed:
        place = one.place
        moved[place.where.topic].append(
            PartitionMoved(partition=place.where.partition, before=place.committed, after=one.target)
        )
    for topic, parts in moved.items():
        yield OffsetsMoved(
            who=operator(), command=COMMAND, group=planned.group, topic=topic, moved=tuple(parts), at=now_ms()
        )
