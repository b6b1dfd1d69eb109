"""New turns are refused when those before them wait too long: free ones first, and only by what is known now."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from parley.errors import ParleyError
from parley.settings import ProtocolSettings
from producers.edge import crowding
from producers.edge.crowding import FRESH_MS, Crowding
from schemas.base import Tier
from schemas.operations import PoolStatus
from schemas.wire import encode


class Clock:
    now = 1_000_000


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(crowding, "now_ms", lambda: clock.now)
    return clock


@pytest.fixture
def crowded(clock: Clock) -> Crowding:
    return Crowding(ProtocolSettings(start_deadline_s=10))


def report(crowding: Crowding, worker: str, *, on: str = "smol", **oldest_ms: int) -> None:
    status = PoolStatus(
        pool=on, worker=worker, slots=8, running=8, queued={}, oldest_queued_ms=oldest_ms, at=1, engine="e"
    )
    crowding.handle(SimpleNamespace(value=encode(status)))


def refused(crowding: Crowding, tier: Tier, pool: str = "smol") -> bool:
    try:
        crowding.check(pool, tier)
    except ParleyError as error:
        return (error.kind.code, error.kind.retryable) == ("overloaded", True)
    return False


@pytest.mark.parametrize(
    ("oldest", "free", "paid"),
    [
        ({}, False, False),
        ({"free": 4_900}, False, False),
        ({"free": 5_100}, True, False),
        ({"free": 60_000}, True, False),
        ({"paid": 5_100}, True, False),
        ({"paid": 8_100}, True, True),
    ],
)
def test_free_turns_are_refused_first(crowded: Crowding, oldest: dict[str, int], free: bool, paid: bool) -> None:
    """Paid requests begin before free ones, so only paid ones keep paid ones waiting."""
    report(crowded, "worker-0", on="smol", **oldest)
    assert (refused(crowded, "free"), refused(crowded, "paid")) == (free, paid)


def test_one_worker_with_room_is_enough_and_other_pools_do_not_matter(crowded: Crowding) -> None:
    report(crowded, "worker-0", paid=9_000, free=9_000)
    report(crowded, "worker-0", on="synthetic")
    assert refused(crowded, "paid")
    assert not refused(crowded, "paid", "synthetic")
    report(crowded, "worker-1", free=100)
    assert not refused(crowded, "free")


def test_what_is_not_known_is_no_reason(crowded: Crowding, clock: Clock) -> None:
    """Workers that died say nothing: their turns wait in the log. So do those of a pool that nobody speaks for."""
    assert not refused(crowded, "free")
    report(crowded, "worker-0", free=9_000)
    clock.now += FRESH_MS
    assert refused(crowded, "free")
    clock.now += 1
    assert not refused(crowded, "free")


def test_a_report_that_cannot_be_read_is_passed_over(crowded: Crowding) -> None:
    report(crowded, "worker-0", free=9_000)
    crowded.handle(SimpleNamespace(value=b"{", topic="chat.capacity", partition=0, offset=5))
    assert refused(crowded, "free")
