"""Prometheus and the exporter of lag beside a system that `parley up` runs: the same rules, this machine's ports."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml

from infra.local.beside import environment_of
from infra.local.problems import StackError
from infra.local.process import Command, Process
from infra.local.prometheus import Prometheus
from infra.local.settings import LOOPBACK, ROOT, LocalSettings

CONFIGURATION = ROOT / "infra" / "prometheus"
START_S = 60.0
GRACE_S = 10.0


@dataclass(frozen=True, slots=True)
class Pace:
    """How often is looked, and for how long a condition must hold (None: as the rules say)."""

    scrape: str = "5s"
    patience: str | None = None
    look_s: float = 2.0


def configuration(settings: LocalSettings, lag_port: int, rules: Path, pace: Pace) -> dict[str, Any]:
    """infra/prometheus/prometheus.yml with the ports of this system in the place of Docker's names."""
    ports = {
        "edge": [settings.edge.port],
        "roles": list(settings.health_ports.values()),
        "lag": [lag_port],
        "engines": [engine.metrics_port for engine in settings.engines.values()],
    }
    made: dict[str, Any] = yaml.safe_load((CONFIGURATION / "prometheus.yml").read_text())
    made["global"] = dict.fromkeys(("scrape_interval", "scrape_timeout", "evaluation_interval"), pace.scrape)
    made["rule_files"] = [f"{rules}/*.yml"]
    for job in made["scrape_configs"]:
        job["static_configs"] = [{"targets": [f"{LOOPBACK}:{port}" for port in ports[job["job_name"]]]}]
    return made


def write_rules(folder: Path, patience: str | None) -> None:
    """The project's rules, with this patience in the place of theirs."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in (CONFIGURATION / "rules").glob("*.yml"):
        rules = yaml.safe_load(path.read_text())
        for rule in (rule for group in rules["groups"] for rule in group["rules"]):
            if patience is not None and "for" in rule:
                rule["for"] = patience
        (folder / path.name).write_text(yaml.safe_dump(rules))


@asynccontextmanager
async def watched(
    settings: LocalSettings,
    programs: Prometheus,
    folder: Path,
    *,
    port: int,
    lag_port: int,
    pace: Pace = Pace(),
    groups: Sequence[str] = (),
) -> AsyncIterator[str]:
    """Both, until the block ends; gives Prometheus' address. `groups`: those that the exporter tells of; none: all.

    Raises:
        StackError: one of them does not start, or nothing runs here.
    """
    try:
        environment = os.environ | environment_of(settings.data)
    except OSError:
        advice = "start it with `parley up`, or set PARLEY_LOCAL_DATA"
        raise StackError(f"Nothing has run on {settings.data} yet: {advice}.") from None
    write_rules(folder / "rules", pace.patience)
    (folder / "prometheus.yml").write_text(yaml.safe_dump(configuration(settings, lag_port, folder / "rules", pace)))
    wanted = [argument for group in groups for argument in ("--group", group)]
    exporter = ["lag", "--serve", str(lag_port), "--interval", str(pace.look_s), *wanted]
    server = [
        str(programs.server),
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={LOOPBACK}:{port}",
    ]
    log = folder / "log"
    address = f"http://{LOOPBACK}:{port}"
    processes: list[Process] = []
    try:
        for argv in ([sys.executable, "-m", "parley", *exporter], server):
            processes.append(await Process.start(Command(argv, environment), log))
        await _until_ready(address, processes, log)
        yield address
    finally:
        await asyncio.gather(*(process.stop(GRACE_S) for process in processes))


async def _until_ready(address: str, processes: Sequence[Process], log: Path) -> None:
    async with httpx.AsyncClient(base_url=address) as http:
        try:
            async with asyncio.timeout(START_S):
                while not await _ready(http):
                    if any(process.returncode is not None for process in processes):
                        raise StackError(f"Prometheus or `parley lag --serve` has ended: {log} says why.")
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise StackError(f"Prometheus was not ready within {START_S:.0f} s: {log} says why.") from None


async def _ready(http: httpx.AsyncClient) -> bool:
    try:
        return (await http.get("/-/ready")).status_code == 200
    except httpx.TransportError:
        return False
