"""A turn whose end is in the state log, and whose route says nothing of it: readers here are told."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from test_feeds import FENCE, OPENED, RESPONSE, SESSION, USER, deltas, put, terminal
from test_live import ended, started

from parley.errors import failure
from parley.ids import new_session
from producers.edge import turns as module
from producers.edge.feeds import Feed, Feeds
from producers.edge.projection import Projection
from producers.edge.turns import Turns
from schemas.base import Item, Text
from schemas.turns import TurnEnded

STARTED = started(RESPONSE, session=SESSION, user=USER)


def failed(**more: Any) -> TurnEnded:
    """The end of that turn, as who could not write to its route says it."""
    fields: dict[str, Any] = {
        "status": "failed",
        "failure": failure("log_unavailable", "gone"),
        "output": (Item(id="msg_" + "A" * 59, role="assistant", parts=(Text(text="..."),)),),
        "delta_lengths": (1, 1, 1),
    }
    return ended(STARTED, **fields | more)


@pytest.fixture
def open_feed(monkeypatch: pytest.MonkeyPatch) -> tuple[Turns, Feed]:
    """A running turn of which two of three pieces have come."""
    monkeypatch.setattr(module, "ROUTE_IS_LATE_S", 0.02)
    feeds: Any = Feeds()
    settings: Any = SimpleNamespace(keys=None, topics=None)
    nothing: Any = None
    feed = feeds.open(RESPONSE, USER)
    put(feed, OPENED, FENCE, *deltas(0, 2))
    return Turns(settings, nothing, feeds, nothing, nothing, nothing), feed


async def test_the_rest_and_the_end_are_told_after_a_while(open_feed: tuple[Turns, Feed]) -> None:
    turns, feed = open_feed
    turns.ended(STARTED, failed())
    assert not feed.over
    await asyncio.sleep(0.05)
    assert feed.projection.ended
    assert feed.transcript.text == "..."
    assert feed.events[-1].type == "response.failed"


async def test_a_route_that_tells_in_time_is_believed(open_feed: tuple[Turns, Feed]) -> None:
    turns, feed = open_feed
    turns.ended(STARTED, failed())
    put(feed, *deltas(2, 1), terminal(3))
    await asyncio.sleep(0.05)
    assert feed.events[-1].type == "response.completed"
    assert not feed.recovered


async def test_another_users_turn_is_told_to_nobody(open_feed: tuple[Turns, Feed]) -> None:
    turns, feed = open_feed
    turns.ended(STARTED, failed(user=new_session()))
    await asyncio.sleep(0.05)
    assert not feed.over


async def test_a_turn_that_was_too_old_to_run_is_told_at_once(open_feed: tuple[Turns, Feed]) -> None:
    turns, feed = open_feed
    feed.projection = Projection(RESPONSE)
    turns.ended(STARTED, failed(status="expired", output=(), delta_lengths=(), failure=None))
    assert [event.type for event in feed.events] == ["response.created", "response.in_progress", "response.failed"]
