"""The live table: an outage of the brokers ends nobody's screen, and no old figure passes for a new one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from consumers.lag.live import Last, watch
from consumers.lag.survey import Report
from parley.clock import now_ms
from parley.errors import ParleyError


async def test_an_outage_is_told_beside_the_last_figures_and_the_table_goes_on_by_itself() -> None:
    connections = 0
    seen: list[tuple[Report | None, str]] = []
    ended = asyncio.Event()

    async def looks() -> AsyncGenerator[Report, None]:
        nonlocal connections
        connections += 1
        if connections in (1, 4):
            yield Report(now_ms(), (), ())
            await asyncio.sleep(0.01)
        raise ParleyError("log_unavailable", f"no broker answers ({connections})")

    def show(report: Report | None, notice: str) -> None:
        seen.append((report, notice))
        if connections > 4:
            ended.set()

    watching = asyncio.create_task(watch(looks, show, 0.01))
    await asyncio.wait_for(ended.wait(), 10)
    assert not watching.done(), "it goes on"
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    first, second = dict.fromkeys(report for report, _ in seen if report)
    during = [notice for report, notice in seen if report is first and notice]
    assert during[-1].endswith("old, asking on: no broker answers (3)")
    assert (second, "") in seen, "the mark is gone with the next look"


async def test_another_error_than_an_outage_ends_it() -> None:
    async def looks() -> AsyncGenerator[Report, None]:
        raise ParleyError("invalid_request", "not so")
        yield

    with pytest.raises(ParleyError, match="not so"):
        await asyncio.wait_for(watch(looks, lambda report, notice: None, 0.01), 10)


def test_figures_are_marked_by_their_age_also_when_nothing_has_failed() -> None:
    last = Last()
    assert last.notice(0, 2) == "asking the brokers"
    last.fail("no broker answers")
    assert last.notice(0, 2) == "no figures yet, asking on: no broker answers"
    last.put(Report(1_000, (), ()))
    assert last.notice(7_000, 2) == ""
    assert last.notice(8_000, 2) == "these figures are 7.0 s old: the brokers have not answered yet"
    last.fail("no broker answers")
    assert last.notice(8_000, 2) == "these figures are 7.0 s old, asking on: no broker answers"
