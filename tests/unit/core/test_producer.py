"""Producers that are given up: which one a partition's records go to, and that no more are kept than are used."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiokafka.errors import KafkaError
from aiokafka.structs import RecordMetadata

from parley.errors import ParleyError
from parley.log.producer import Producer
from parley.settings import KafkaSettings


class Sending:
    """aiokafka's producer on a cluster where some partitions have no leader."""

    leaderless: set[int]
    living: list[Sending]

    def __init__(self, **_: Any) -> None:
        self.partitions: list[int] = []

    async def start(self) -> None:
        self.living.append(self)

    async def stop(self) -> None:
        self.living.remove(self)

    async def send(self, topic: str, value: bytes, *, partition: int, **_: Any) -> asyncio.Future[RecordMetadata]:
        self.partitions.append(partition)
        done = asyncio.get_running_loop().create_future()
        if partition in self.leaderless:
            done.set_exception(KafkaError("expired"))
        else:
            done.set_result(RecordMetadata(topic, partition, None, len(self.partitions), 0, 0, 0))
        return done


@pytest.fixture
async def producer(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Producer]:
    Sending.leaderless, Sending.living = set(), []
    monkeypatch.setattr("parley.log.producer.AIOKafkaProducer", Sending)
    made = Producer(KafkaSettings(), "test")
    await made.start()
    yield made
    await made.stop()


async def fails(producer: Producer, partition: int, times: int = 1) -> None:
    for _ in range(times):
        with pytest.raises(ParleyError):
            await producer.send("t", b"", key=None, partition=partition)
        await asyncio.sleep(0)  # what is given up is stopped beside


async def test_a_partition_without_a_leader_does_not_pile_producers_up(producer: Producer) -> None:
    """Each attempt uses one up: an hour's outage left hundreds, each with its connections, until the next restart."""
    Sending.leaderless = {1}
    await fails(producer, 1, times=30)
    Sending.leaderless = set()
    await producer.send("t", b"", key=None, partition=1)
    await asyncio.sleep(0)
    assert len(Sending.living) == 2


async def test_other_partitions_go_on_by_the_one_they_have(producer: Producer) -> None:
    first = Sending.living[0]
    Sending.leaderless = {1}
    await fails(producer, 1)
    await producer.send("t", b"", key=None, partition=0)
    assert first.partitions == [1, 0]
    assert producer.generation("t", 1) == 1


async def test_one_that_a_partition_uses_is_not_stopped_for_another_s_sake(producer: Producer) -> None:
    Sending.leaderless = {1}
    await fails(producer, 1)
    Sending.leaderless = set()
    await producer.send("t", b"", key=None, partition=1)
    used = Sending.living[-1]
    Sending.leaderless = {2}
    await fails(producer, 2, times=5)
    Sending.leaderless = set()
    await producer.send("t", b"", key=None, partition=1)
    assert used in Sending.living
    assert used.partitions.count(1) == 2


async def test_a_partition_moves_to_the_newest_that_there_is(producer: Producer) -> None:
    """One between may have been stopped, and the newest has never failed it."""
    Sending.leaderless = {1}
    await fails(producer, 1, times=4)
    Sending.leaderless = {2}
    await fails(producer, 2)
    newest = producer.generation("t", 2)
    Sending.leaderless = set()
    await producer.send("t", b"", key=None, partition=2)
    assert newest == 3
