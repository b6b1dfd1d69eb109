"""Which turns run, as an edge folds it from the state log; what follows a session hears of each turn once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from parley.ids import Keys, new_response_id, new_session
from parley.log.follower import Follower
from parley.settings import KafkaSettings, ProtocolSettings
from producers.edge.following import LONGEST_LINE, Following
from producers.edge.live import Live
from schemas.base import Item, Route, Text
from schemas.turns import SessionDeleted, TurnEnded, TurnStarted
from schemas.wire import TurnsEvent, encode

USER, SESSION = new_session(), new_session()
ROUTE = Route(topic="chat.tokens", partition=0, start=0)


def response(n: int) -> str:
    return new_response_id(Keys((b"k" * 32,)), USER, SESSION, 0, n, n)


def started(response: str, turn: int = 1, count: int = 1, **more: Any) -> TurnStarted:
    fields: dict[str, Any] = {
        "response": response,
        "session": SESSION,
        "user": USER,
        "tier": "free",
        "turn": turn,
        "parent": None,
        "items": (Item(id="msg_" + "A" * 59, role="user", parts=(Text(text="Hi"),)),),
        "pool": "synthetic",
        "model": "synthetic",
        "dispatch": (1, count),
        "route": ROUTE,
        "deadline": 0,
        "moderation_deadline": 0,
        "accepted_at": 1,
    }
    return TurnStarted.model_validate(fields | more)


def ended(start: TurnStarted, **more: Any) -> TurnEnded:
    same = ("response", "session", "user", "tier", "turn", "parent", "dispatch", "model", "accepted_at")
    fields: dict[str, Any] = {name: getattr(start, name) for name in same}
    fields |= {"epoch": (1, 1, 1, 1), "status": "completed", "output": (), "code": "test", "ended_at": 1}
    return TurnEnded.model_validate(fields | more)


@dataclass
class Log:
    """The state log, read into a Live."""

    live: Live
    ended: list[TurnEnded]

    def put(self, *events: TurnsEvent | bytes) -> None:
        for event in events:
            value = event if isinstance(event, bytes) else encode(event)
            self.live._absorb(SimpleNamespace(value=value, topic="chat.turns", partition=0, offset=0))  # type: ignore[arg-type]

    async def running(self, session: UUID = SESSION) -> list[str]:
        return [turn.response for turn in await self.live.follow(session, Heard([]))]


@dataclass(eq=False)
class Heard:
    """A listener that notes what it hears."""

    turns: list[str]
    gone: bool = False

    def began(self, turn: TurnStarted) -> None:
        self.turns.append(turn.response)

    def deleted(self) -> None:
        self.gone = True


@pytest.fixture
async def log() -> AsyncIterator[Log]:
    ends: list[TurnEnded] = []
    follower = Follower(KafkaSettings(), "test")
    yield Log(Live(follower, 1, ProtocolSettings(), lambda _, end: ends.append(end)), ends)
    await follower.stop()


async def test_turns_run_from_their_start_to_their_end_in_their_order(log: Log) -> None:
    one, two = started(response(1), 1), started(response(2), 2, count=2)
    log.put(two, one)
    assert await log.running() == [one.response, two.response]
    log.put(ended(one))
    assert await log.running() == [two.response]
    assert await log.running(new_session()) == []


async def test_a_listener_hears_of_a_turn_once_and_of_a_deletion(log: Log) -> None:
    heard, turn = Heard([]), started(response(1))
    await log.live.follow(SESSION, heard)
    log.put(turn, turn, started(turn.response, count=2))
    assert heard.turns == [turn.response]
    log.put(SessionDeleted(session=SESSION, user=USER, at=1))
    assert heard.gone
    assert log.live.is_deleted(SESSION, USER)
    assert not log.live.is_deleted(SESSION, new_session())
    log.live.unfollow(SESSION, heard)
    log.put(started(response(2), 2))
    assert heard.turns == [turn.response]


async def test_void_records_change_nothing(log: Log) -> None:
    first, raised = started(response(1), count=1), started(response(1), count=2)
    raised = raised.model_copy(update={"response": first.response})
    log.put(first, raised, ended(first), b"\xff")
    assert await log.running() == [first.response]
    log.put(ended(raised), first, raised)
    assert await log.running() == []


async def test_a_turn_that_never_runs_is_shown_to_nobody_and_its_end_is_told(log: Log) -> None:
    heard, turn = Heard([]), started(response(1), pool=None, why="expired")
    await log.live.follow(SESSION, heard)
    log.put(turn)
    assert heard.turns == []
    assert await log.running() == []
    log.put(ended(turn, status="expired", epoch=(0, 0, 0, 0)))
    assert [end.response for end in log.ended] == [turn.response]


def test_a_line_holds_so_many_turns_and_only_those_of_its_user() -> None:
    following = Following("conv_x", SESSION, USER, lambda: None, lambda: None)
    following.began(started(response(0), user=new_session()))
    assert following.next() is None
    for n in range(LONGEST_LINE):
        following.began(started(response(n), n + 1))
    assert not following.overrun
    following.began(started(response(99), 99))
    assert following.overrun
