"""A real Prometheus over the running system, with the project's own rules, and the exporter of lag."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml

from infra.local.beside import environment_of
from infra.local.checks import free_ports
from infra.local.prometheus import Prometheus
from infra.local.settings import LOOPBACK
from tests.e2e.conftest import System

ROOT = Path(__file__).resolve().parents[2]
CONFIGURATION = ROOT / "infra" / "prometheus"
EVERY = "1s"
"""Scrapes, judgements and patience of alerts: a test has no minutes."""


@dataclass(frozen=True, slots=True)
class Watch:
    """What Prometheus knows."""

    http: httpx.AsyncClient

    async def ask(self, query: str) -> list[dict[str, Any]]:
        """The samples of a query now."""
        answer = (await self.http.get("/api/v1/query", params={"query": query})).json()
        assert answer["status"] == "success", f"{query}: {answer}"
        return list(answer["data"]["result"])

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


def hurried_rules(folder: Path) -> Path:
    """The rules, with as little patience as the test has."""
    folder.mkdir()
    for path in (CONFIGURATION / "rules").glob("*.yml"):
        rules = yaml.safe_load(path.read_text())
        for group in rules["groups"]:
            for rule in group["rules"]:
                if "for" in rule:
                    rule["for"] = EVERY
        (folder / path.name).write_text(yaml.safe_dump(rules))
    return folder


def configuration(system: System, lag_port: int, rules: Path) -> dict[str, Any]:
    """The jobs of infra/prometheus/prometheus.yml, with the ports of this system in the place of Docker's names."""
    settings = system.settings
    ports = {
        "edge": [settings.edge.port],
        "roles": list(settings.health_ports.values()),
        "lag": [lag_port],
        "engines": [engine.metrics_port for engine in settings.engines.values()],
    }
    made: dict[str, Any] = yaml.safe_load((CONFIGURATION / "prometheus.yml").read_text())
    made["global"] = {"scrape_interval": EVERY, "scrape_timeout": EVERY, "evaluation_interval": EVERY}
    made["rule_files"] = [f"{rules}/*.yml"]
    for job in made["scrape_configs"]:
        job["static_configs"] = [{"targets": [f"{LOOPBACK}:{port}" for port in ports[job["job_name"]]]}]
    return made


@asynccontextmanager
async def watched(system: System, programs: Prometheus, folder: Path, *groups: str) -> AsyncIterator[Watch]:
    """Prometheus and the exporter for these groups, until the block ends."""
    lag_port, port = free_ports(2)
    (folder / "prometheus.yml").write_text(
        yaml.safe_dump(configuration(system, lag_port, hurried_rules(folder / "rules")))
    )
    wanted = [argument for group in groups for argument in ("--group", group)]
    exporter = [sys.executable, "-m", "parley", "lag", "--serve", str(lag_port), "--interval", "0.5", *wanted]
    server = [
        str(programs.server),
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={LOOPBACK}:{port}",
    ]
    processes = []
    with (folder / "log").open("ab") as log:
        try:
            for argv in (exporter, server):
                environment = os.environ | environment_of(system.settings.data)
                processes.append(await asyncio.create_subprocess_exec(*argv, stdout=log, stderr=log, env=environment))
            async with httpx.AsyncClient(base_url=f"http://{LOOPBACK}:{port}") as http:
                async with asyncio.timeout(60):
                    while not await _ready(http):
                        assert all(process.returncode is None for process in processes), (folder / "log").read_text()
                        await asyncio.sleep(0.1)
                yield Watch(http)
        finally:
            for process in processes:
                if process.returncode is None:
                    process.terminate()
            await asyncio.gather(*(process.wait() for process in processes))


async def _ready(http: httpx.AsyncClient) -> bool:
    try:
        return (await http.get("/-/ready")).status_code == 200
    except httpx.TransportError:
        return False
