"""When a group committed what: read from Kafka's own log of commits, since no request tells it.

`__consumer_offsets` is compacted, so what is older than its active segment is incomplete; a window of minutes is whole.
Keys are (version, group, topic, partition), values begin with (version, offset) in every version that Kafka has written
(org.apache.kafka.coordinator.group, OffsetCommitKey and OffsetCommitValue).
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable

from aiokafka import TopicPartition
from aiokafka.errors import TopicAuthorizationFailedError

from consumers.lag.states import Commit
from parley.errors import ParleyError
from parley.log.ranges import Record
from parley.log.spans import Spans

COMMITS_TOPIC = "__consumer_offsets"
OFFSET_KEYS = (0, 1)
"""Key versions of commits; others are groups' own."""


def commits_partition(group: str, count: int) -> int:
    """Where a group's commits are: Java's String.hashCode over the number of partitions."""
    hashed = 0
    for character in group:
        hashed = (31 * hashed + ord(character)) & 0xFFFFFFFF
    magnitude = (1 << 32) - hashed if hashed >> 31 else hashed
    return magnitude % (1 << 31) % count  # Kafka takes 0 for the one number that has no positive counterpart


def decode_commit(key: bytes | None, value: bytes | None) -> tuple[str, TopicPartition, int] | None:
    """(group, partition, committed offset) of a record; None: it is none, or the commit was removed."""
    if not key or not value:
        return None
    try:
        (version,) = struct.unpack_from(">h", key)
        if version not in OFFSET_KEYS:
            return None
        group, at = _string(key, 2)
        topic, at = _string(key, at)
        (partition,) = struct.unpack_from(">i", key, at)
        (offset,) = struct.unpack_from(">q", value, 2)
    except (struct.error, UnicodeDecodeError):
        return None
    return group, TopicPartition(topic, partition), offset


def _string(data: bytes, at: int) -> tuple[str, int]:
    (length,) = struct.unpack_from(">h", data, at)
    end = at + 2 + length
    return data[at + 2 : end].decode(), end


class History:
    """The commits of some groups within a window; each reading goes on where the last one ended."""

    def __init__(self, groups: Iterable[str], window_ms: int) -> None:
        self._groups = frozenset(groups)
        self._window_ms = window_ms
        self._commits: dict[tuple[str, TopicPartition], list[Commit]] = defaultdict(list)
        self._read_to: dict[TopicPartition, int] = {}
        self.readable = False
        """The cluster lets this user read its log of commits."""

    def of(self, group: str, where: TopicPartition) -> list[Commit] | None:
        """The window's commits of a partition, oldest first; None: they can't be read."""
        return self._commits.get((group, where), []) if self.readable else None

    async def read(self, spans: Spans, now_ms: int) -> None:
        """Catch up with the log of commits.

        Raises:
            ParleyError: log_unavailable.
        """
        count = (await spans.existing([COMMITS_TOPIC])).get(COMMITS_TOPIC)
        if count is None:  # before the first commit of a cluster, and where it may not be seen
            return
        wheres = {TopicPartition(COMMITS_TOPIC, commits_partition(group, count)) for group in self._groups}
        bounds = await spans.bounds(wheres)
        fresh = await spans.at_time({w: now_ms - self._window_ms for w in wheres if w not in self._read_to})
        starts = {
            w: end if (found := fresh.get(w)) is None else found for w, (_, end) in bounds.items()
        } | self._read_to
        try:
            await spans.read({where: (starts[where], bounds[where][1]) for where in wheres}, self._take)
        except ParleyError as error:
            if isinstance(error.__cause__, TopicAuthorizationFailedError):
                return
            raise
        self.readable = True
        self._read_to |= {where: bounds[where][1] for where in wheres}
        for commits in self._commits.values():
            commits[:] = [commit for commit in commits if commit.at >= now_ms - self._window_ms]

    def _take(self, record: Record) -> None:
        found = decode_commit(record.key, record.value)
        if found is not None and found[0] in self._groups:
            group, where, offset = found
            self._commits[group, where].append(Commit(int(record.timestamp), offset))
