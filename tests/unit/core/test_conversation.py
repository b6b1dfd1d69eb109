"""A conversation of the orchestrator, and prompts that a healthy log does not hold."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from core_events import ROUTE, SESSION, USER, Member, response, said, started

from consumers.orchestrator.conversation import Conversation, Prompt
from parley.clock import now_ms
from parley.errors import ParleyError
from parley.log.held import Held
from parley.log.producer import TopicUnknown
from parley.ownership import Progress
from parley.session import Session
from parley.settings import Settings
from parley.side_inputs import SideInputs
from parley.topics import PROMPTS
from schemas.prompts import PromptAccepted
from schemas.turns import TurnStarted


async def away(*_: Any) -> int:
    raise ParleyError("log_unavailable", "no leader")


def conversation_of(held: Held, say: Callable[..., Awaitable[int]]) -> Conversation:
    """A session whose state log is away, and whose routes are written by `say`."""
    settings = Settings()
    tools = SimpleNamespace(settings=settings, say=say, log_turn=away, drains=SimpleNamespace(pools=frozenset()))
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
    return conversation


def prompt(*, key: str | None = None, accepted_at: int | None = None) -> PromptAccepted:
    return PromptAccepted(
        response=response(1),
        session=SESSION,
        user=USER,
        tier="free",
        accepted_at=accepted_at or now_ms(),
        model=Settings().topics.pools["synthetic"].model,
        items=(said("hi", of=response(1)),),
        new_session=key is None,
        key_hash=key,
        route=ROUTE,
    )


@pytest.mark.parametrize("key", [None, "k"], ids=["without a key", "with a key"])
async def test_of_a_prompt_that_is_in_the_log_twice_the_first_one_runs_on(key: str | None) -> None:
    """A mirror or a restored archive may leave it so."""
    member, opened = Member(), asyncio.Event()
    held = Held(member, TopicPartition(PROMPTS, 0), 1, Progress(0))

    async def acknowledged(*_: Any) -> int:
        await opened.wait()
        return 0

    conversation = conversation_of(held, acknowledged if key is None else away)
    event = prompt(key=key)
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


@pytest.mark.parametrize(("age_s", "there", "waits"), [(0, False, True), (31, True, True), (31, False, False)])
async def test_an_opened_is_not_written_for_ever_to_a_topic_that_was_deleted(
    age_s: int, there: bool, waits: bool
) -> None:
    """Nobody reads it; the turn goes on to its end in the state log."""
    held = Held(Member(), TopicPartition(PROMPTS, 0), 1, Progress(0))

    async def gone(*_: Any) -> int:
        raise TopicUnknown("chat.tokens.s.1-0")

    async def holds(*_: Any) -> bool:
        return there

    conversation = conversation_of(held, gone)
    conversation.shard.tools.ranges = SimpleNamespace(holds=holds)  # type: ignore[assignment]
    event = prompt(accepted_at=now_ms() - age_s * 1000)
    held.progress.take(0)
    conversation.accept(Prompt(event, 0, now_ms()))
    await asyncio.sleep(0.01)
    assert bool(conversation._opened) == waits
    held.cancel()


@pytest.mark.parametrize("cancelled", [True, False])
async def test_a_cancel_from_before_the_request_comes_after_it_again(cancelled: bool) -> None:
    """Workers read cancels from a little before the oldest request on. This one's could not be sent for a minute."""
    held = Held(Member(), TopicPartition(PROMPTS, 0), 1, Progress(0))
    written: list[str] = []

    async def dispatch(*_: Any) -> None:
        written.append("request")

    async def cancel(turn: TurnStarted, partition: int) -> None:
        written.append(f"cancel of {turn.response}")

    conversation = conversation_of(held, away)
    shard: Any = conversation.shard
    shard.tools.dispatch, shard.tools.cancel = dispatch, cancel
    shard.open_turns = SimpleNamespace(place=lambda _: 5)
    decision = started(1)
    conversation.session.apply(decision)
    if cancelled:
        shard.side._cancels[decision.response] = now_ms()
    await conversation._hand_over(decision, conversation.session.turns[decision.response])
    assert written == ["request", *([f"cancel of {decision.response}"] if cancelled else [])]
    assert shard.requested == {decision.response: decision.dispatch}
