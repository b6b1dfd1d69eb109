"""The whole system as a user starts it: `parley up`, in a process of its own, on free ports and fresh data."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from infra.local.aside import settings_aside
from infra.local.beside import Beside, edge_beside, environment_of
from infra.local.find import role_pid
from infra.local.settings import DEMO_KEY, LocalSettings

START_S = 240.0
STOP_S = 60.0


@dataclass
class System:
    """One `parley up`. It can be ended and started again on the same data."""

    settings: LocalSettings
    log: Path
    extra: dict[str, str] = field(default_factory=dict)
    key: str = ""
    _process: asyncio.subprocess.Process | None = None

    @property
    def base_url(self) -> str:
        return f"http://{self.settings.edge.host}:{self.settings.edge.port}"

    @property
    def ws_url(self) -> str:
        return self.base_url.replace("http", "ws", 1) + "/v1/responses"

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key}"}

    async def command(self, *arguments: str) -> str:
        """Run a command of `parley` against the same services; gives what it prints."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "parley", *arguments),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=os.environ | environment_of(self.settings.data),
        )
        output, errors = await process.communicate()
        assert process.returncode == 0, errors.decode()
        return output.decode()

    async def start(self) -> None:
        local = {
            f"PARLEY_LOCAL_{name.upper()}": getattr(self.settings, name)
            for name in ("kafka", "cassandra", "postgres", "edge")
        }
        variables = {name: part.model_dump_json() for name, part in local.items()}
        engines = ",".join(f'"{pool}":{engine.model_dump_json()}' for pool, engine in self.settings.engines.items())
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "parley", "up"),
                stdout=log,
                stderr=log,
                env=os.environ
                | variables
                | {
                    "PARLEY_LOCAL_ENGINES": "{" + engines + "}",
                    "PARLEY_LOCAL_HEALTH_PORTS": json.dumps(self.settings.health_ports),
                    "PARLEY_LOCAL_DATA": str(self.settings.data),
                }
                | self.extra,
            )
        await asyncio.wait_for(self._ready(), START_S)

    async def _ready(self) -> None:
        key_file = self.settings.data / DEMO_KEY
        async with httpx.AsyncClient() as client:
            while True:
                assert self._process is not None
                if self._process.returncode is not None:
                    raise AssertionError(f"`parley up` ended with {self._process.returncode}: {self.tail()}")
                try:
                    answer = await client.get(f"{self.base_url}/health/ready")
                    if answer.status_code == 200 and key_file.exists() and "API key" in self.log.read_text():
                        self.key = key_file.read_text().strip()
                        return
                except httpx.TransportError:
                    pass
                await asyncio.sleep(0.2)

    async def stop(self) -> int:
        """Ctrl-C; gives the exit code."""
        process, self._process = self._process, None
        if process is None:
            return 0
        if process.returncode is None:
            process.send_signal(signal.SIGINT)
        try:
            return await asyncio.wait_for(process.wait(), STOP_S)
        finally:
            if process.returncode is None:
                process.kill()

    def pid_of(self, *role: str) -> int:
        """The process of a role of this system: what comes after `-m parley`."""
        return role_pid(self.settings.kafka.port, *role)

    def tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-40:])


@pytest.fixture(scope="package")
async def system(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[System]:
    """Ends with these tests: what comes after them has the machine for itself."""
    folder = tmp_path_factory.mktemp("system")
    # Deadlines for a machine that does other things too: none of them is what these tests are about.
    patience = {"PARLEY_PROTOCOL__MODERATION_DEADLINE_S": "30", "PARLEY_PROTOCOL__START_DEADLINE_S": "60"}
    running = System(settings_aside(folder / "data"), folder / "log", patience)
    try:
        await running.start()
        yield running
    finally:
        await running.stop()


@pytest.fixture(scope="module")
async def second(system: System) -> AsyncIterator[Beside]:
    """Another edge of the same system."""
    async with edge_beside(system.settings, system.log.with_name("second-edge.log")) as edge:
        yield edge


@pytest.fixture
async def client(system: System) -> AsyncIterator[httpx.AsyncClient]:
    """HTTP as the demo user."""
    async with httpx.AsyncClient(base_url=system.base_url, headers=system.headers, timeout=60) as made:
        yield made
