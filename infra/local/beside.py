"""A second edge beside the one that `parley up` keeps running, on the same services: for tests and measurements."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import httpx

from infra.local.checks import free_ports
from infra.local.settings import LOOPBACK, LocalSettings

START_S = 60.0


@dataclass(frozen=True, slots=True)
class Beside:
    """An edge that serves until whoever started it ends it."""

    base_url: str
    process: asyncio.subprocess.Process

    @property
    def ws_url(self) -> str:
        """Of its WebSockets."""
        return self.base_url.replace("http", "ws", 1) + "/v1/responses"


def environment_of(data: Path) -> dict[str, str]:
    """How a running stack's services are reached, as it has written it into its data folder."""
    lines = (data / "environment").read_text(encoding="utf-8").splitlines()
    return dict(tuple(shlex.split(line)[0].split("=", 1)) for line in lines if "=" in line)  # type: ignore[misc]


@contextlib.asynccontextmanager
async def edge_beside(settings: LocalSettings, log: Path, **variables: str) -> AsyncIterator[Beside]:
    """An edge on a free port, with these environment variables besides the stack's own; ended afterwards.

    Raises:
        RuntimeError: it ended while it was being started; its words are in `log`.
    """
    (port,) = free_ports(1)
    chosen = environment_of(settings.data) | {"PARLEY_INSTANCE": f"edge-{port}", "PARLEY_EDGE__PORT": str(port)}
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "parley", "edge"),
            stdout=output,
            stderr=output,
            env=os.environ | chosen | variables,
        )
    edge = Beside(f"http://{LOOPBACK}:{port}", process)
    try:
        async with asyncio.timeout(START_S), httpx.AsyncClient() as http:
            while not await _is_ready(http, edge):
                await asyncio.sleep(0.1)
        yield edge
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _is_ready(http: httpx.AsyncClient, edge: Beside) -> bool:
    if edge.process.returncode is not None:
        raise RuntimeError(f"the edge beside ended with {edge.process.returncode}")
    try:
        return (await http.get(f"{edge.base_url}/health/ready")).status_code == 200
    except httpx.TransportError:
        return False
