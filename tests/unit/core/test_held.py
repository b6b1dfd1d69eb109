"""What runs for a partition ends, is let go, or is missed."""

from __future__ import annotations

import asyncio

from aiokafka import TopicPartition
from core_events import Member

from parley.log.held import Held
from parley.ownership import Progress


def held_by(member: Member) -> Held:
    return Held(member, TopicPartition("chat.prompts", 3), 1, Progress(0))


async def forever() -> None:
    await asyncio.Event().wait()


async def cancelled_by_a_library() -> None:
    raise asyncio.CancelledError


async def test_a_cancellation_that_nobody_asked_for_is_a_failure() -> None:
    """They come out of aiokafka's `stop` now and then. The record would stay open, and its turn without an end."""
    member = Member()
    held_by(member).spawn(cancelled_by_a_library(), "turn-7")
    await asyncio.sleep(0.01)
    [failure] = member.failures
    assert "turn-7" in str(failure)


async def test_what_is_let_go_is_not_missed() -> None:
    member = Member()
    held = held_by(member)
    task = held.spawn(forever(), "turn-7")
    await asyncio.sleep(0)
    held.let_go(task)
    await asyncio.sleep(0.01)
    assert task.cancelled()
    assert not member.failures


async def test_nor_is_what_ran_for_a_partition_that_is_gone() -> None:
    member = Member()
    held = held_by(member)
    running = held.spawn(forever(), "turn-7")
    await asyncio.sleep(0)
    held.cancel()
    late = held.spawn(forever(), "turn-8")
    await asyncio.sleep(0.01)
    assert running.cancelled()
    assert late.cancelled()
    assert not member.failures
