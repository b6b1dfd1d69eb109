"""Nothing accepted is lost, nothing is said twice, whatever dies: a short run and a long one.

The long one is `make chaos`: 50 users, 200 kills and more. The short one has 10 users and short answers: two cores
are shared by three brokers, two stores, two engines, eleven roles and the users.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.trial import Plan, Report, run

pytestmark = pytest.mark.stack

SHORT = Plan(users=10, seconds=110, every_s=5, stores=5, words=20)
LONG = Plan()


def check(report: Report) -> None:
    print(report)
    assert [str(wrong) for wrong in report.wrong] == []
    assert report.troubles == []


@pytest.mark.storm
async def test_a_short_storm(tmp_path: Path) -> None:
    """Five minutes with start and end: each kind of fault once, and a planned restart of every role."""
    report = await run(SHORT, tmp_path)
    check(report)
    assert sum(report.kills.values()) >= 10
    assert report.turns >= 100


@pytest.mark.long
async def test_a_long_storm(tmp_path: Path) -> None:
    """At least 2,000 turns and 200 kills, of which 40 at most of brokers and stores."""
    report = await run(LONG, tmp_path)
    check(report)
    assert sum(report.kills.values()) >= 200
    assert report.turns >= 2_000
    stores = ("SIGKILL Kafka node", "SIGKILL message store", "SIGKILL PostgreSQL")
    assert sum(report.kills[kind] for kind in stores) <= LONG.stores
