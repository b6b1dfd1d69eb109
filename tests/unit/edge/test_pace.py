"""How soon a turn's text comes to its edge: measured for turns that the edge accepted, once for each piece of text."""

from __future__ import annotations

from uuid import UUID

from prometheus_client import REGISTRY

from parley.ids import Keys, new_response_id
from producers.edge.feeds import Feed
from producers.edge.pace import Pace
from schemas.routes import Delta, Fence, Opened, encode_route_record

USER, SESSION = UUID(int=1), UUID(int=2)
RESPONSE = new_response_id(Keys((b"a key of the edges, 32 bytes long",)), USER, SESSION, 3, 7, 1_700_000_000_000)
OPENED = Opened(session=SESSION, user=USER, created_at=5, waiting=False)
FENCE = Fence(epoch=(1, 1, 1, 1), writer="w1")


def delta(seq: int, writer: str = "w1") -> Delta:
    return Delta(writer=writer, seq=seq, text="word ", tokens=1)


def told(name: str, pool: str, **more: str) -> float:
    return REGISTRY.get_sample_value(name, {"pool": pool, "tier": "free", **more}) or 0


def read(feed: Feed, *records: Opened | Fence | Delta) -> None:
    for record in records:
        feed.absorb(encode_route_record((record,)), 1)


def test_the_first_text_and_each_gap_after_it_are_observed() -> None:
    feed = Feed(RESPONSE, USER)
    feed.pace = Pace("pace-a", "free")
    feed.pace.accepted()
    read(feed, OPENED, FENCE)
    assert told("parley_first_text_seconds_count", "pace-a") == 0, "no text yet"
    read(feed, delta(0), delta(1), delta(2))
    assert told("parley_first_text_seconds_count", "pace-a") == 1
    assert told("parley_text_gap_seconds_count", "pace-a") == 2
    assert told("parley_stage_seconds_count", "pace-a", stage="edge") == 1
    assert told("parley_stage_seconds_count", "pace-a", stage="fan-out") == 1
    assert told("parley_stage_seconds_sum", "pace-a", stage="fan-out") > 1_000_000, "since 1970"


def test_what_a_zombie_writes_is_no_text() -> None:
    feed = Feed(RESPONSE, USER)
    feed.pace = Pace("pace-b", "free")
    read(feed, OPENED, FENCE, delta(0), delta(1, writer="w0"), delta(0))
    assert told("parley_first_text_seconds_count", "pace-b") == 1
    assert told("parley_text_gap_seconds_count", "pace-b") == 0


def test_a_response_that_somebody_else_accepted_has_no_pace() -> None:
    feed = Feed(RESPONSE, USER)
    read(feed, OPENED, FENCE, delta(0))
    assert feed.pace is None
