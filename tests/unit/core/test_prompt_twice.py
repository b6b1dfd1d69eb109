"""A prompt that is in the log twice, as a mirror or a restored archive may leave it, is one turn."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from core_events import ROUTE, SESSION, USER, response, said

from consumers.orchestrator.conversation import Conversation, Prompt
from parley.clock import now_ms
from parley.errors import ParleyError
from parley.log.held import Held
from parley.ownership import Progress
from parley.session import Session
from parley.settings import Settings
from parley.side_inputs import SideInputs
from parley.topics import PROMPTS
from schemas.prompts import PromptAccepted


class Member:
    """A group whose commits nobody looks at."""

    name = "group"

    def __init__(self) -> None:
        self.failures: list[BaseException] = []

    def commit_soon(self, *, urgent: bool = False, proof: bool = False) -> None:
        """Nothing to commit."""

    def fail(self, error: BaseException) -> None:
        self.failures.append(error)


@pytest.mark.parametrize("key", [None, "k"], ids=["without a key", "with a key"])
async def test_the_second_one_is_let_go_and_the_first_one_runs_on(key: str | None) -> None:
    member, settings = Member(), Settings()
    held = Held(member, TopicPartition(PROMPTS, 0), 1, Progress(0))
    opened = asyncio.Event()

    async def acknowledged(*_: Any) -> int:
        await opened.wait()
        return 0

    async def away(*_: Any) -> int:
        raise ParleyError("log_unavailable", "no leader")

    tools = SimpleNamespace(
        settings=settings,
        say=acknowledged if key is None else away,
        log_turn=away,
        drains=SimpleNamespace(pools=frozenset()),
    )
    shard: Any = SimpleNamespace(
        tools=tools,
        held=held,
        side=SideInputs(SimpleNamespace(), 0, settings.protocol),  # type: ignore[arg-type]
        live=True,
        requested={},
        raised=lambda: (1, 1),
    )
    conversation = Conversation(shard, Session(SESSION))
    conversation.past.known = True
    model = settings.topics.pools["synthetic"].model
    event = PromptAccepted(
        response=response(1),
        session=SESSION,
        user=USER,
        tier="free",
        accepted_at=now_ms(),
        model=model,
        items=(said("hi", of=response(1)),),
        new_session=key is None,
        key_hash=key,
        route=ROUTE,
    )
    for offset in (0, 1):
        held.progress.take(offset)
        conversation.accept(Prompt(event, offset, now_ms()))
        await asyncio.sleep(0)
    opened.set()
    await asyncio.sleep(0.01)
    assert not member.failures
    assert (held.progress.open, held.progress.prefix) == (1, 0)
    held.end(0)
    assert held.progress.prefix == 2
    held.cancel()
