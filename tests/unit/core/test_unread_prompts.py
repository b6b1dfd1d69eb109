"""A prompt that can't be read, and whose headers nobody of ours wrote, is a dead letter and holds nothing up."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.structs import ConsumerRecord
from core_events import ROUTE, SESSION, USER, response

from consumers.orchestrator import shard as shards
from consumers.orchestrator.shard import Shard
from parley.clock import now_ms
from parley.log.held import Held
from parley.log.producer import TopicUnknown
from parley.ownership import Progress
from parley.settings import Settings
from parley.topics import PROMPTS
from schemas.wire import BadRecord, headers

WHERE = TopicPartition(PROMPTS, 0)


@pytest.mark.parametrize(
    "wrong",
    [{"session": "none"}, {"user": b"none"}, {"response": "resp_none"}, {"session": "é"}],
    ids=["session", "user", "response", "no text"],
)
async def test_it_does_not_end_the_orchestrator(wrong: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """It ended it again after each restart, and every other one that took the partition over."""
    await gives_up(monkeypatch, wrong, say=None)


async def test_a_route_that_does_not_exist_is_tried_for_as_long_as_somebody_may_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Then it is let go: the prompts behind it could not be committed for ever."""
    tries: list[str] = []

    async def say(*_: Any) -> int:
        tries.append("")
        raise TopicUnknown("nowhere-0")

    await gives_up(monkeypatch, {}, say, appended=1)
    assert len(tries) == 1
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await gives_up(monkeypatch, {}, say, appended=now_ms())
    assert len(tries) > 2


async def gives_up(monkeypatch: pytest.MonkeyPatch, wrong: dict[str, Any], say: Any, appended: int = 1) -> None:
    letters: list[Any] = []

    async def letter(_producer: Any, record: Any, **_: Any) -> int:
        letters.append(record)
        return 0

    monkeypatch.setattr(shards, "dead_letter", letter)
    group = SimpleNamespace(name="orchestrator", commit_soon=lambda **_: None)
    held = Held(group, WHERE, 1, Progress(0))  # type: ignore[arg-type]
    tools = SimpleNamespace(settings=Settings(), follower=None, producer=None, say=say)
    shard = Shard(tools, held)  # type: ignore[arg-type]
    held.progress.take(0)
    about = {"response": response(1), "session": SESSION.hex, "user": USER.hex.encode()} | wrong
    pairs = headers(
        "prompt.accepted",
        response=about["response"],
        session=about["session"],
        route=ROUTE,
        more=[("user", about["user"])],
    )
    record: Any = ConsumerRecord(*WHERE, 0, appended, 1, b"", b"{", None, 0, 0, pairs)
    await shard.give_up(record, BadRecord("no JSON"))
    assert letters == [record]
    assert held.progress.prefix == 1
