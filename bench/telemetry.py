"""What telemetry costs: two systems, alike but that one of them counts and times nothing."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
from pathlib import Path

import httpx

from bench.figures import Meter, figures
from bench.load import Load, parley_user
from bench.system import Configuration, Measured, running

SCRAPED_EVERY_S = 5.0
"""Three times as often as Prometheus does by default."""
NOT_ROLES = ("Kafka", "message store", "engine", "the load itself")


async def report(folder: Path, pairs: int, users: int, seconds: float, tokens: int) -> str:
    """CPU a token of the roles with telemetry and without, in alternating pairs, and the median of the differences."""
    (folder / "on").mkdir()
    (folder / "off").mkdir()
    lines, costs = [], []
    async with (
        running(Configuration("lane", 0), folder / "on") as speaking,
        running(Configuration("lane", 0, muted=True), folder / "off") as mute,
    ):
        for system in (speaking, mute):
            await _cpu_a_token(system, users, 20.0, tokens)
        for pair in range(pairs):
            order = (speaking, mute) if pair % 2 == 0 else (mute, speaking)
            cpu = {system is speaking: await _cpu_a_token(system, users, seconds, tokens) for system in order}
            (with_it, said), (without, muttered) = cpu[True], cpu[False]
            costs.append((with_it / without - 1) * 100)
            lines.append(
                f"pair {pair + 1}: with {with_it:.0f} us a token (of {said}), without {without:.0f} (of {muttered}): "
                f"{costs[-1]:+.1f} %"
            )
    return "\n".join((*lines, f"median of {pairs} pairs: {statistics.median(costs):+.1f} % of the roles' CPU a token"))


async def _cpu_a_token(system: Measured, users: int, seconds: float, tokens: int) -> tuple[float, int]:
    """Microseconds of all roles together for a token, and how many tokens there were."""
    load, meter = Load(users, 0.0, seconds, tokens), Meter(await _pids(system))
    scraping = asyncio.create_task(_scrape(system))
    try:
        await load.run(parley_user(system.base_url, system.key), meter.start, meter.stop)
    finally:
        scraping.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await scraping
    seen = figures(load).tokens
    each = meter.per_token_us(seen)
    return sum(cost for name, cost in each.items() if name not in NOT_ROLES), seen


async def _pids(system: Measured) -> dict[str, int]:
    """Once all run: Triton sometimes ends when a load leaves all its streams at once, and is started again."""
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(LookupError):
                return system.pids()
            await asyncio.sleep(0.5)


async def _scrape(system: Measured) -> None:
    ports = [system.settings.edge.port, *system.settings.health_ports.values()]
    async with httpx.AsyncClient(timeout=5) as client:
        while True:
            for port in ports:
                with contextlib.suppress(httpx.TransportError):  # a role that is not started has a port too
                    await client.get(f"http://127.0.0.1:{port}/metrics")
            await asyncio.sleep(SCRAPED_EVERY_S)
