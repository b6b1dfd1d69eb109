"""The system under measurement: `parley up` with the synthetic engine alone, beside whatever else runs here."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import yaml

from infra.local.aside import settings_aside
from infra.local.find import listener_pid, role_pid
from infra.local.settings import DEMO_KEY, LocalSettings
from parley.settings import Settings

START_S = 180.0

MUTED = """
try:
    from prometheus_client import Counter, Gauge, Histogram
except ImportError:
    pass  # the engine's Python
else:
    def nothing(*_given, **_named):
        return None

    for kind, changes in ((Counter, ["inc"]), (Gauge, ["inc", "dec", "set"]), (Histogram, ["observe"])):
        for change in changes:
            setattr(kind, change, nothing)
    for kind in (Counter, Histogram):
        kind.labels = lambda metric, *_given, **_named: metric
"""
"""What Python runs before a process of a muted system."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """What differs between measured systems."""

    route: str
    hold_back: int | None
    """Words; None: the policy's own."""
    muted: bool = False
    """No role counts or times anything: to see what that costs."""

    def policy(self, folder: Path) -> tuple[Path, int]:
        """(a policy file with the hold-back, the hold-back)."""
        original = Settings().moderation.policy
        policy = yaml.safe_load(original.read_text())
        if self.hold_back is None:
            return original, int(policy.get("hold_back", 4))
        path = folder / f"policy-{self.hold_back}.yaml"
        path.write_text(yaml.safe_dump(policy | {"hold_back": self.hold_back, "version": f"bench-{self.hold_back}"}))
        return path, self.hold_back


@dataclass(frozen=True, slots=True)
class Measured:
    """A running system."""

    settings: LocalSettings
    key: str
    hold_back: int

    @property
    def base_url(self) -> str:
        return f"http://{self.settings.edge.host}:{self.settings.edge.port}"

    @property
    def engine(self) -> str:
        return f"127.0.0.1:{self.settings.engines['synthetic'].grpc_port}"

    @property
    def engine_metrics(self) -> str:
        return f"http://127.0.0.1:{self.settings.engines['synthetic'].metrics_port}"

    def pids(self) -> dict[str, int]:
        """The processes whose CPU is told."""
        kafka = self.settings.kafka.port
        roles = {
            "edge": ("edge",),
            "moderation": ("moderation",),
            "orchestrator": ("orchestrator",),
            "worker": ("worker", "--pool", "synthetic"),
            "history (messages)": ("history", "--store", "messages"),
            "history (sessions)": ("history", "--store", "sessions"),
            "usage": ("usage", "serve"),
        }
        found = {name: role_pid(kafka, *role) for name, role in roles.items()}
        found["Kafka"] = listener_pid(kafka)
        found["message store"] = listener_pid(self.settings.cassandra.port)
        found["engine"] = listener_pid(self.settings.engines["synthetic"].grpc_port)
        return found


@asynccontextmanager
async def running(configuration: Configuration, folder: Path) -> AsyncIterator[Measured]:
    """Start a fresh system; end it afterwards."""
    settings = settings_aside(folder / "data")
    settings = settings.model_copy(update={"engines": {"synthetic": settings.engines["synthetic"]}})
    policy, hold_back = configuration.policy(folder)
    parts = {name: getattr(settings, name).model_dump_json() for name in ("kafka", "cassandra", "postgres", "edge")}
    engines = {pool: engine.model_dump(mode="json") for pool, engine in settings.engines.items()}
    muting = {}
    if configuration.muted:
        (folder / "sitecustomize.py").write_text(MUTED)
        muting["PYTHONPATH"] = str(folder)
    log = folder / "up.log"
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "parley", "up"),
            stdout=output,
            stderr=output,
            env=os.environ
            | muting
            | {f"PARLEY_LOCAL_{name.upper()}": value for name, value in parts.items()}
            | {
                "PARLEY_LOCAL_ENGINES": json.dumps(engines),
                "PARLEY_LOCAL_HEALTH_PORTS": json.dumps(settings.health_ports),
                "PARLEY_LOCAL_DATA": str(settings.data),
                "PARLEY_EDGE__ROUTE": configuration.route,
                "PARLEY_MODERATION__POLICY": str(policy),
                "PARLEY_LOG_LEVEL": "WARNING",
            },
        )
    try:
        async with asyncio.timeout(START_S):
            key = await _ready(settings, process, log)
        yield Measured(settings, key, hold_back)
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGINT)
        await process.wait()


async def _ready(settings: LocalSettings, process: asyncio.subprocess.Process, log: Path) -> str:
    async with httpx.AsyncClient() as client:
        while process.returncode is None:
            try:
                answer = await client.get(f"http://{settings.edge.host}:{settings.edge.port}/health/ready")
                if answer.status_code == 200 and "API key" in log.read_text():
                    return (settings.data / DEMO_KEY).read_text().strip()
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.2)
    raise RuntimeError(f"`parley up` ended with {process.returncode}:\n{log.read_text()[-2000:]}")
