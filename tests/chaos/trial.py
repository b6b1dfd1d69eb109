"""One run: users chat, things die, all comes to rest, and everybody is asked what there is."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.checker import Wrong, check
from tests.chaos.evidence import Evidence
from tests.chaos.faults import Chaos
from tests.chaos.gaps import Gaps, Struck, gaps
from tests.chaos.gathering import caught_up, late_readings, state_log, until_quiet
from tests.chaos.system import System, suffering
from tests.chaos.users import Chatting

CALM_S = 10.0
"""Users alone, before the first fault."""
REST_S = 120.0
"""After the last fault: for turns to end that nobody waits for any more."""


@dataclass(frozen=True)
class Plan:
    """What a run does."""

    users: int = 50
    seconds: float = 1_500.0
    """Of faults."""
    every_s: float = 4.8
    """From one fault to the next, about."""
    stores: int = 40
    """At most so many kills of brokers and stores."""
    words: int = 40
    rolling: bool = True
    """A planned restart of every role, one process after the other, at the end."""
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Report:
    """What came of it."""

    turns: int
    """Accepted."""
    statuses: Counter[str]
    kills: Counter[str]
    done: Counter[str]
    gaps: dict[str, Gaps]
    wrong: list[Wrong]
    troubles: list[str]
    readings: int
    resumes: int

    def __str__(self) -> str:
        by = Counter(wrong.kind for wrong in self.wrong)
        promises = ("lost", "doubled", "order", "ends", "differs", "history", "usage")
        lines = [
            f"{self.turns} turns, {sum(self.kills.values())} kills, {self.readings} readings, "
            f"{self.resumes} resumes; " + ", ".join(f"{count} {status}" for status, count in self.statuses.items()),
            ", ".join(f"{by[kind]} {kind}" for kind in promises) + f", {len(self.troubles)} troubles of users",
            *(f"  {wrong}" for wrong in self.wrong[:20]),
            *(f"  trouble: {trouble}" for trouble in self.troubles[:20]),
            *(f"{kind:<30} {found}" for kind, found in self.gaps.items()),
        ]
        return "\n".join(lines)


async def run(plan: Plan, folder: Path, say: Callable[[str], None] = print) -> Report:
    """Start a system, let it suffer, and report.

    Raises:
        AssertionError: the system could not be kept running.
        TimeoutError: it did not start, or did not recover.
    """
    began = time.monotonic()
    async with suffering(folder) as system:
        say(f"everything runs after {time.monotonic() - began:.0f} s; its log: {system.log}")
        chatting = Chatting(system.edges, system.key, plan.words, plan.seed)
        chaos = Chaos(system, plan.seed)
        users = asyncio.create_task(chatting.run(plan.users))
        try:
            await _storm(plan, chaos, users)
        finally:
            chatting.over.set()
        say(f"after {time.monotonic() - began:.0f} s: {sum(chaos.kills.values())} kills; coming to rest")
        await system.until_ready()
        await users
        evidence = await gather(system, chatting)
        streams = [heard.times for heard in chatting.heard if not heard.reader.endswith("late reader")]
        statuses = {end.response: end.status for end in evidence.ends}
        return Report(
            turns=len(evidence.started),
            statuses=Counter(statuses.values()),
            kills=chaos.kills,
            done=chaos.done,
            gaps=gaps(chaos.struck, streams),
            wrong=check(evidence),
            troubles=chatting.troubles,
            readings=len(evidence.readings) + len(evidence.late),
            resumes=chatting.resumes,
        )


async def _storm(plan: Plan, chaos: Chaos, users: asyncio.Task[None]) -> None:
    """Calm, faults, and a planned restart; ends early when a user fails."""

    async def faults() -> None:
        chaos.struck.append(Struck("nothing", time.monotonic()))
        await asyncio.sleep(CALM_S)
        await chaos.run(plan.seconds, plan.every_s, plan.stores)
        await chaos.system.until_in_sync()
        await chaos.system.until_ready()
        if plan.rolling:
            await chaos.rolling_restart()

    storm = asyncio.create_task(faults())
    waiting: list[asyncio.Task[None]] = [storm, users]
    done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    if users in done:
        storm.cancel()
        await asyncio.gather(storm, return_exceptions=True)
        users.result()
    await storm


async def gather(system: System, chatting: Chatting) -> Evidence:
    """What everybody says, once all has come to rest."""
    settings = system.settings
    started, _ = await until_quiet(settings, REST_S)
    responses = {response for asked in chatting.asked for response in asked.responses} | started.keys()
    late = await late_readings(system.edges, system.headers, sorted(responses))
    started, ends = await state_log(settings)
    kept, counted = await caught_up(settings, ends)
    return Evidence(
        asked=tuple(chatting.asked),
        readings=tuple(heard.reading() for heard in chatting.heard),
        late=late,
        kept=kept,
        ends=ends,
        started=started,
        counted=counted,
    )
