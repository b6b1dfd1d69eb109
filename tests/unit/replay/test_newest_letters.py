"""Listing dead letters: the newest, and how many there are, however large chat.dlq is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import pytest
from aiokafka import TopicPartition
from aiokafka.structs import ConsumerRecord

from parley.log.dlq import PREFIX
from parley.log.ranges import Record
from parley.log.spans import Span
from parley.topics import DLQ
from producers.replay.redrive import Wanted, newest_letters

EVERY = 1_000


def letter(partition: int, offset: int, group: str = "worker-smol") -> Record:
    """Partitions take turns in time."""
    headers = ((PREFIX + "group", group.encode()), ("type", b"turn.ended"))
    at = EVERY * offset + partition
    return ConsumerRecord(DLQ, partition, offset, at, 1, b"key", b"x" * 40, None, 3, 40, headers)


class Dlq:
    """Two partitions in memory, read one after the other."""

    missing = "does not exist"

    def __init__(self, *records: Record) -> None:
        self.records = records

    async def existing(self, topics: Iterable[str]) -> dict[str, int]:
        return dict.fromkeys(topics, 2)

    async def bounds(self, wheres: Iterable[TopicPartition]) -> dict[TopicPartition, Span]:
        ends = {w: [r.offset + 1 for r in self.records if r.partition == w.partition] for w in wheres}
        return {where: (0, max(found, default=0)) for where, found in ends.items()}

    async def at_time(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        return {where: -(-ms // EVERY) for where, ms in times.items()}

    async def read(self, spans: Mapping[TopicPartition, Span], handle: Callable[[Record], bool | None]) -> None:
        for one in self.records:
            low, high = spans[TopicPartition(DLQ, one.partition)]
            if low <= one.offset < high:
                handle(one)


@pytest.fixture
def dlq() -> Dlq:
    return Dlq(*(letter(0, n) for n in range(5)), *(letter(1, n, "orchestrator") for n in range(5)))


async def test_the_newest_are_shown_the_oldest_of_them_first_and_all_are_counted(dlq: Dlq) -> None:
    shown, count = await newest_letters(dlq, Wanted(), 3)
    assert [one.name for one in shown] == ["1@3", "0@4", "1@4"]
    assert count == 10


async def test_what_they_are_about_is_not_held(dlq: Dlq) -> None:
    shown, _ = await newest_letters(dlq, Wanted(), 3)
    assert [(one.value, one.key, one.headers, one.size) for one in shown] == [(None, None, (), 40)] * 3


async def test_only_what_is_wanted_counts(dlq: Dlq) -> None:
    shown, count = await newest_letters(dlq, Wanted(groups=frozenset({"orchestrator"}), since=2 * EVERY), 50)
    assert [one.name for one in shown] == ["1@2", "1@3", "1@4"]
    assert count == 3
    assert await newest_letters(dlq, Wanted(groups=frozenset({"nobody"})), 50) == ([], 0)
