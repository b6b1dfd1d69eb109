"""A prompt that can't be read, and whose headers nobody of ours wrote, is a dead letter and nothing else."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.structs import ConsumerRecord
from core_events import ROUTE, SESSION, USER, response

from consumers.orchestrator import shard as shards
from consumers.orchestrator.shard import Shard
from parley.log.held import Held
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
    letters: list[Any] = []

    async def letter(_producer: Any, record: Any, **_: Any) -> int:
        letters.append(record)
        return 0

    monkeypatch.setattr(shards, "dead_letter", letter)
    group = SimpleNamespace(name="orchestrator", commit_soon=lambda **_: None)
    held = Held(group, WHERE, 1, Progress(0))  # type: ignore[arg-type]
    tools = SimpleNamespace(settings=Settings(), follower=None, producer=None)  # no way to a route
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
    record: Any = ConsumerRecord(*WHERE, 0, 1, 1, b"", b"{", None, 0, 0, pairs)
    await shard.give_up(record, BadRecord("no JSON"))
    assert letters == [record]
    assert held.progress.prefix == 1
