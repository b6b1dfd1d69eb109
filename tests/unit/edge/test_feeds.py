"""Feeds and those who watch them: late, early, slow, and when nobody does."""

from __future__ import annotations

import asyncio
import json

import pytest

from parley.errors import ParleyError
from parley.ids import Keys, new_response_id, new_session
from producers.edge.feeds import SLICE_BYTES, Cursor, Feed, Feeds, Patience, Place
from producers.edge.handshake import check_origin
from producers.edge.lanes import lanes_of
from producers.edge.projection import PublicEvent
from schemas.routes import Delta, Fence, Opened, Terminal, encode_route_record

USER, SESSION = new_session(), new_session()
RESPONSE = new_response_id(Keys((b"k" * 32,)), USER, SESSION, 3, 10, 1)
OPENED = Opened(session=SESSION, user=USER, created_at=1, waiting=False)
FENCE = Fence(epoch=(1, 1, 1, 1), writer="w")


def put(feed: Feed, *events: Opened | Fence | Delta | Terminal) -> None:
    feed.absorb(encode_route_record(events))
    feed.notify()


def deltas(first: int, count: int) -> tuple[Delta, ...]:
    return tuple(Delta(writer="w", seq=first + n, text=".", tokens=1) for n in range(count))


def terminal(seq: int) -> Terminal:
    return Terminal(writer="w", seq=seq, kind="completed", model="m", ended_at=1)


async def test_joining_late_reads_the_same_as_joining_early() -> None:
    feed = Feed(RESPONSE, USER)
    early = Cursor(feed, 0, Patience(100, 1 << 20))
    put(feed, OPENED, FENCE, *deltas(0, 3))
    late, after = Cursor(feed, 0, Patience(100, 1 << 20)), Cursor(feed, 5, Patience(100, 1 << 20))
    first = await early.take(1)
    put(feed, terminal(3))
    assert first is not None
    rest = await early.take(1)
    assert rest is not None
    assert await late.take(1) == first + rest
    assert await after.take(1) == (first + rest)[5:]
    assert [await early.take(1), await late.take(1)] == [None, None]


@pytest.mark.parametrize("shown", [0, 1, 3])
async def test_what_the_log_lost_is_told_from_where_it_is_kept(shown: int) -> None:
    """The route goes in the middle of the answer; the turn's end holds more than was shown, in the same pieces."""
    whole, feed = Feed(RESPONSE, USER), Feed(RESPONSE, USER)
    put(whole, OPENED, FENCE, *deltas(0, 3), terminal(3))
    put(feed, OPENED, FENCE, *deltas(0, shown))
    reader = Cursor(feed, 0, Patience(100, 1 << 20))
    before = await reader.take(1)
    feed.recover(whole.projection)
    rest = await reader.take(1)
    assert before is not None
    assert rest is not None
    assert before + rest == whole.events
    assert reader.complete
    assert reader.must_tell_recovery()


@pytest.mark.parametrize("shown", [(OPENED, FENCE), (OPENED, FENCE, *deltas(0, 2))])
async def test_an_answer_that_was_kept_otherwise_fails_where_it_stood(
    shown: tuple[Opened | Fence | Delta, ...],
) -> None:
    """A holder that has seen less ended the turn: nobody is shown two texts, and everybody an end."""
    kept, feed = Feed(RESPONSE, USER), Feed(RESPONSE, USER)
    put(
        kept,
        OPENED.model_copy(update={"waiting": True}),
        FENCE,
        Delta(writer="w", seq=0, text="!", tokens=1),
        terminal(1),
    )
    put(feed, *shown)
    before = list(feed.events)
    reader = Cursor(feed, 0, Patience(100, 1 << 20))
    feed.recover(kept.projection)
    told = await reader.take(1)
    assert told is not None
    assert told[: len(before)] == before
    end = json.loads(told[-1].data)
    assert end["type"] == "response.failed"
    assert end["response"]["error"]["code"] == "log_unavailable"
    assert [event.type for event in told].count("response.output_text.delta") == len(shown[2:])
    assert end["sequence_number"] == len(told) - 1
    assert reader.complete


async def test_who_was_shown_more_than_is_kept_is_told_the_end() -> None:
    feed = Feed(RESPONSE, USER)
    put(feed, OPENED, FENCE, terminal(0))
    reader = Cursor(feed, 58, Patience(100, 1 << 20))
    assert not reader.complete
    assert await reader.take(1) == feed.events[-1:]
    assert reader.complete
    assert await reader.take(1) is None
    assert await Cursor(feed, len(feed.events), Patience(100, 1 << 20)).take(1) is None


async def test_a_feed_that_is_over_stays_as_it_is() -> None:
    feed, other = Feed(RESPONSE, USER), Feed(RESPONSE, USER)
    put(feed, OPENED, FENCE, terminal(0))
    put(other, OPENED, FENCE, *deltas(0, 1), terminal(1))
    events = list(feed.events)
    feed.recover(other.projection)
    assert feed.events == events
    assert not feed.recovered


async def test_a_wait_ends_with_the_next_event_or_the_timeout() -> None:
    feed = Feed(RESPONSE, USER)
    cursor = Cursor(feed, 0, Patience(100, 1 << 20))
    assert await cursor.take(0.01) == []
    waiting = asyncio.create_task(cursor.take(10))
    await asyncio.sleep(0)
    put(feed, OPENED)
    taken = await waiting
    assert taken is not None
    assert [event.type for event in taken] == ["response.created"]


async def test_a_record_that_says_nothing_new_wakes_nobody() -> None:
    feed = Feed(RESPONSE, USER)
    feed.announce({})
    cursor = Cursor(feed, 1, Patience(100, 1 << 20))
    waiting = asyncio.create_task(cursor.take(10))
    await asyncio.sleep(0)
    put(feed, OPENED)
    await asyncio.sleep(0.01)
    assert not waiting.done()
    put(feed, FENCE)
    assert await waiting


async def test_another_users_route_is_refused_before_anything_is_said() -> None:
    feed = Feed(RESPONSE, new_session())
    cursor = Cursor(feed, 0, Patience(100, 1 << 20))
    put(feed, OPENED, FENCE, *deltas(0, 3))
    with pytest.raises(ParleyError, match="no such response"):
        await cursor.take(1)
    assert feed.events == []


async def test_a_reader_that_does_not_read_is_sent_away_and_the_others_go_on() -> None:
    feed = Feed(RESPONSE, USER)
    put(feed, OPENED, FENCE, *deltas(0, 50))
    slow, good = Cursor(feed, 0, Patience(10, 1 << 20)), Cursor(feed, 0, Patience(10, 1 << 20))
    for n in range(20):
        put(feed, *deltas(50 + n, 1))
        assert await good.take(1)
    with pytest.raises(ParleyError) as error:
        await slow.take(1)
    assert error.value.kind.code == "slow_reader"


async def test_what_was_there_before_makes_nobody_slow() -> None:
    feed = Feed(RESPONSE, USER)
    feed.backlog = 10**6
    cursor = Cursor(feed, 0, Patience(10, 1 << 20))
    put(feed, OPENED, FENCE, *deltas(0, 500))
    taken: list[PublicEvent] = []
    while len(taken) < 504:
        taken += await cursor.take(0.1) or []


async def test_a_feed_that_nobody_watches_ends_and_so_does_its_reader() -> None:
    feeds, stopped = Feeds(), []
    feed = feeds.open(RESPONSE, USER)
    feeds.on_release(feed, lambda: stopped.append(True))
    one, two = Cursor(feed, 0, Patience(10, 1 << 20)), Cursor(feed, 0, Patience(10, 1 << 20))
    one.close()
    assert feeds.get(RESPONSE) is feed
    two.close()
    assert feeds.get(RESPONSE) is None
    assert stopped == [True]


async def test_a_route_that_is_read_for_one_feed_alone_gives_it_nothing_from_the_lanes() -> None:
    """Beside the lanes' reader it may be behind: a fence from there would void the text that it has yet to bring."""
    feeds = Feeds()
    feed = feeds.open(RESPONSE, USER)
    assert feeds.by_key(feed.key) is feed
    feeds.on_release(feed, lambda: None)
    put(feed, OPENED, FENCE, *deltas(0, 2))
    if (from_lane := feeds.by_key(feed.key)) is not None:
        put(from_lane, Fence(epoch=(1, 1, 1, 2), writer="next"))
    end = terminal(3).model_copy(update={"writer": "next"})
    put(feed, *deltas(2, 1), Fence(epoch=(1, 1, 1, 2), writer="next"), end)
    assert feed.transcript.text == "..."
    assert feed.over


async def test_an_ended_feed_is_forgotten_though_somebody_still_reads() -> None:
    feeds = Feeds()
    feed = feeds.open(RESPONSE, USER)
    cursor = Cursor(feed, 0, Patience(10, 1 << 20))
    put(feed, OPENED, FENCE, terminal(0))
    assert len(feeds) == 0
    taken = await cursor.take(1)
    assert taken is not None
    assert taken[-1].type == "response.completed"


def test_unreadable_records_are_skipped() -> None:
    feed = Feed(RESPONSE, USER)
    for garbage in (b"\xff\xfe{", b"null", b"{}", b'[{"v": 99, "type": "opened"}]', None):
        feed.absorb(garbage)
    put(feed, OPENED)
    assert len(feed.events) == 1


def test_lanes_are_spread_over_edges_and_stay() -> None:
    chosen = [lanes_of(f"edge-{n}", 16) for n in range(200)]
    assert chosen == [lanes_of(f"edge-{n}", 16) for n in range(200)]
    assert {len(set(lanes)) for lanes in chosen} == {4}
    load = [sum(lane in lanes for lanes in chosen) for lane in range(16)]
    assert min(load) > 25
    assert max(load) < 80


@pytest.mark.parametrize(
    ("origin", "allowed", "fine"),
    [
        (None, (), True),
        ("http://chat.example:8080", (), True),
        ("https://chat.example:8080", (), True),  # TLS may end in front of the edge
        ("http://chat.example", (), False),
        ("https://evil.example", (), False),
        ("null", (), False),
        ("http://[chat.example:8080", (), False),  # no address at all
        ("https://other.example", ("https://other.example",), True),
        ("https://evil.example", ("*",), True),
    ],
)
def test_origins(origin: str | None, allowed: tuple[str, ...], fine: bool) -> None:
    if fine:
        check_origin(origin, "chat.example:8080", allowed)
    else:
        with pytest.raises(ParleyError) as error:
            check_origin(origin, "chat.example:8080", allowed)
        assert error.value.kind.code == "origin_not_allowed"


async def test_a_connection_is_given_a_slice_at_a_time() -> None:
    feed = Feed(RESPONSE, USER)
    cursor = Cursor(feed, 0, Patience(10_000, 1 << 30))
    put(feed, OPENED, FENCE, *(Delta(writer="w", seq=n, text="x" * 10_000, tokens=1) for n in range(20)))
    slices = []
    while events := await cursor.take(0.01):
        slices.append(sum(len(event.data) for event in events))
    assert len(slices) >= 3
    assert max(slices) < SLICE_BYTES + 11_000


async def test_a_reader_is_slow_by_bytes_too_and_reading_clears_the_count() -> None:
    feed = Feed(RESPONSE, USER)
    put(feed, OPENED, FENCE)
    place = Place(feed, 2)
    patience = Patience(events=10_000, bytes=50_000)
    for seq in range(4):
        put(feed, Delta(writer="w", seq=seq, text="x" * 10_000, tokens=1))
        assert not place.is_too_far_behind(patience)
    assert len(place.new()) == 6
    assert not place.is_too_far_behind(patience)
    for seq in range(4, 10):
        put(feed, Delta(writer="w", seq=seq, text="x" * 10_000, tokens=1))
    assert place.is_too_far_behind(patience)


async def test_a_burst_makes_nobody_slow_who_has_just_read() -> None:
    feed = Feed(RESPONSE, USER)
    put(feed, OPENED, FENCE)
    place = Place(feed, 2)
    put(feed, *deltas(0, 100))
    assert not place.is_too_far_behind(Patience(events=10, bytes=10, stall_s=30))
    assert place.is_too_far_behind(Patience(events=10, bytes=10, stall_s=0))


async def test_a_running_response_is_read_on_for_a_while_so_that_who_was_lost_finds_it() -> None:
    feeds = Feeds(linger_s=0.05)
    feed = feeds.open(RESPONSE, USER)
    put(feed, OPENED, FENCE)
    Cursor(feed, 0, Patience(10, 1 << 20)).close()
    assert feeds.get(RESPONSE) is feed
    back = Cursor(feed, 1, Patience(10, 1 << 20))
    await asyncio.sleep(0.1)
    assert feeds.get(RESPONSE) is feed
    back.close()
    await asyncio.sleep(0.1)
    assert feeds.get(RESPONSE) is None
    feed = feeds.open(RESPONSE, USER)
    put(feed, OPENED, FENCE, *deltas(0, 1), terminal(1))
    assert feeds.get(RESPONSE) is None
