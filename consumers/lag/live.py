"""The live table of `parley lag`: it outlives outages of the brokers, and shows no figure as newer than it is."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field

from consumers.lag.show import age_text
from consumers.lag.survey import Report
from parley.clock import now_ms
from parley.errors import ParleyError
from schemas.base import Millis

REDRAW_S = 1.0
"""How often the age of old figures is shown anew."""
OLD_INTERVALS = 3
"""Figures that are older than so many intervals are marked, also when nothing has failed."""

Looks = Callable[[], AsyncGenerator[Report, None]]
"""A connection to the brokers, and one report after the other over it."""
Show = Callable[[Report | None, str], None]
"""Puts on the screen: the last report, and what is wrong with it, or nothing."""


@dataclass(slots=True)
class Last:
    """The last report, and why there is no newer one."""

    report: Report | None = None
    trouble: str = ""
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, report: Report) -> None:
        """The brokers have answered."""
        self.report, self.trouble = report, ""
        self.changed.set()

    def fail(self, why: str) -> None:
        """They have not."""
        self.trouble = why
        self.changed.set()

    def notice(self, now: Millis, interval_s: float) -> str:
        """What to say above the figures; empty: they are as new as they can be."""
        if self.report is None:
            return f"no figures yet, asking on: {self.trouble}" if self.trouble else "asking the brokers"
        age_s = max(0, now - self.report.at) / 1000
        if self.trouble:
            return f"these figures are {age_text(age_s)} old, asking on: {self.trouble}"
        if age_s > OLD_INTERVALS * interval_s:
            return f"these figures are {age_text(age_s)} old: the brokers have not answered yet"
        return ""


async def watch(looks: Looks, show: Show, interval_s: float) -> None:
    """Look, show, and look again, until cancelled; through every outage of the brokers.

    Raises:
        ParleyError: anything else than log_unavailable.
    """
    last = Last()
    looking = asyncio.create_task(_look_on(looks, last, interval_s))
    looking.add_done_callback(lambda _: last.changed.set())
    try:
        while not looking.done():
            show(last.report, last.notice(now_ms(), interval_s))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(last.changed.wait(), REDRAW_S)
            last.changed.clear()
        await looking
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)


async def _look_on(looks: Looks, last: Last, interval_s: float) -> None:
    while True:
        try:
            async with aclosing(looks()) as reports:
                async for report in reports:
                    last.put(report)
        except ParleyError as error:
            if error.kind.code != "log_unavailable":
                raise
            last.fail(error.message)
        await asyncio.sleep(interval_s)
