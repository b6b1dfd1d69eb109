"""A real Prometheus over the running system, with the project's own rules, and the exporter of lag."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from infra.local.checks import free_ports
from infra.local.prometheus import Prometheus
from infra.watch.beside import Pace, watched
from tests.e2e.conftest import System


@dataclass(frozen=True, slots=True)
class Watch:
    """What Prometheus knows."""

    http: httpx.AsyncClient

    async def ask(self, query: str) -> list[dict[str, Any]]:
        """The samples of a query now."""
        answer = (await self.http.get("/api/v1/query", params={"query": query})).json()
        assert answer["status"] == "success", f"{query}: {answer}"
        return list(answer["data"]["result"])

    async def until_told(self, query: str, within_s: float = 30.0) -> None:
        """Wait until the samples of a query are more than nothing in all."""
        try:
            async with asyncio.timeout(within_s):
                while sum(float(sample["value"][1]) for sample in await self.ask(query)) <= 0:
                    await asyncio.sleep(0.2)
        except TimeoutError:
            raise AssertionError(f"nobody tells {query}") from None

    async def rules(self) -> list[dict[str, Any]]:
        groups = (await self.http.get("/api/v1/rules")).json()["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]

    async def health(self) -> list[str]:
        """Of each target."""
        targets = (await self.http.get("/api/v1/targets")).json()["data"]["activeTargets"]
        return [target["health"] for target in targets]

    async def firing(self) -> list[dict[str, str]]:
        """The labels of the alerts that fire."""
        alerts = (await self.http.get("/api/v1/alerts")).json()["data"]["alerts"]
        return [alert["labels"] for alert in alerts if alert["state"] == "firing"]

    async def until(self, what: Callable[[list[dict[str, str]]], bool], within_s: float = 60.0) -> None:
        """Wait until the firing alerts are as wanted."""
        seen: list[dict[str, str]] = []
        try:
            async with asyncio.timeout(within_s):
                while not what(seen := await self.firing()):
                    await asyncio.sleep(0.2)
        except TimeoutError:
            raise AssertionError(f"these fire: {seen}") from None


@asynccontextmanager
async def watch(system: System, programs: Prometheus, folder: Path, *groups: str) -> AsyncIterator[Watch]:
    """Prometheus and the exporter for these groups, in a hurry: a test has no minutes."""
    port, lag_port = free_ports(2)
    hurried = Pace(scrape="1s", patience="1s", look_s=0.5)
    async with (
        watched(
            system.settings, programs, folder, port=port, lag_port=lag_port, pace=hurried, groups=groups
        ) as address,
        httpx.AsyncClient(base_url=address) as http,
    ):
        yield Watch(http)
