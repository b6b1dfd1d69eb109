"""A role that comes back to a backlog goes on living while it works it off."""

from __future__ import annotations

import asyncio
from typing import Any

from aiokafka import TopicPartition

from consumers.moderation.main import AT_ONCE, Moderation
from parley.clock import now_ms
from parley.log.held import Held
from parley.ownership import Progress
from parley.safety.classifier import Classifier
from parley.safety.policy import Policy
from parley.settings import Settings
from parley.topics import PROMPTS
from tests.unit.replay.replay_parts import prompt, record

BACKLOG = 400


class Member:
    """A group that commits nothing."""

    name = "moderation"

    def commit_soon(self, *, urgent: bool = False, proof: bool = False) -> None: ...

    def fail(self, error: BaseException) -> None:
        raise error


class Log:
    """Takes every verdict at once: all the time that is spent is spent on scoring."""

    def __init__(self) -> None:
        self.verdicts = 0

    async def send(self, *_: Any, **__: Any) -> int:
        self.verdicts += 1
        return self.verdicts


async def test_while_hundreds_of_prompts_wait_heartbeats_and_fetches_get_their_turns() -> None:
    """The loop comes round at least once for so many prompts as are scored at once."""
    settings, log = Settings(), Log()
    moderation = settings.moderation
    role = Moderation(settings, log, Classifier.load(moderation.model), Policy.load(moderation.policy))  # type: ignore[arg-type]
    held = Held(Member(), TopicPartition(PROMPTS, 3), 1, Progress(0))
    given = record(prompt(text="What is a good soup for a cold evening?"))
    given.timestamp = now_ms()
    for offset in range(BACKLOG):
        given.offset = offset
        held.progress.take(offset)
        role.record(held, given)
    rounds = 0
    while log.verdicts < BACKLOG:
        await asyncio.sleep(0)
        rounds += 1
    assert rounds >= BACKLOG / AT_ONCE
    assert held.progress.prefix >= BACKLOG - AT_ONCE
