"""The system that is to suffer: three Kafka nodes, two engines of one pool, two of each role that can be two.

It is supervised as `parley up` supervises: by the same code, in this process, so that every process can be got at. The
second of each role is behind proxies, one before each broker, as on a machine of its own whose network fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import psutil
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from infra.local import roles as catalogue
from infra.local.aside import settings_aside
from infra.local.checks import free_ports
from infra.local.console import Console
from infra.local.find import model_pid
from infra.local.process import Process
from infra.local.roles import RoleSpec
from infra.local.service import Service
from infra.local.settings import LOOPBACK, LocalSettings
from infra.local.stack import LocalStack
from infra.local.supervisor import answers
from infra.local.up import Plan, Running
from parley.settings import Settings
from parley.stores.demo import ensure_demo
from tests.chaos.proxy import Proxy

POOL = "synthetic"
START_S = 300.0
READY_S = 120.0

PATIENCE = {
    # A turn may wait for two faults in a row, on a machine that has too much to do: what is tested is that it ends
    # once and whole, not that nobody ever has to try again.
    "PARLEY_PROTOCOL__MODERATION_DEADLINE_S": "45",
    "PARLEY_PROTOCOL__START_DEADLINE_S": "90",
    "PARLEY_LOG_LEVEL": "WARNING",
}


@dataclass(frozen=True, slots=True)
class Member:
    """A role's process, and how it is asked whether it is ready."""

    name: str
    kind: str
    """The role: what is the same of the first and the second."""
    ready_url: str


class Holding(LocalStack):
    """Services that stay down while they are held."""

    def __init__(self, settings: LocalSettings, console: Console) -> None:
        super().__init__(settings, console)
        self.held: set[str] = set()

    async def restart(self, name: str) -> None:
        """As it is, but not before the service is let go."""
        while name in self.held:
            await asyncio.sleep(0.1)
        await super().restart(name)


class System:
    """What runs."""

    def __init__(self, running: Running, members: list[Member], proxies: list[Proxy], log: Path) -> None:
        self._running = running
        self.members = {member.name: member for member in members}
        self.proxies = proxies
        self.log = log
        self.key = ""
        self.edges = tuple(m.ready_url.removesuffix("/health/ready") for m in members if m.kind == "edge")
        self._task = asyncio.create_task(running.run(), name="system")

    @property
    def stack(self) -> LocalStack:
        """The services."""
        return self._running.stack

    @asynccontextmanager
    async def down(self, *names: str) -> AsyncIterator[None]:
        """While entered, these services do not run: SIGKILL, and nobody starts them again. Well again afterwards."""
        assert isinstance(self.stack, Holding)
        self.stack.held.update(names)
        try:
            for name in names:
                self.service(name).kill()
            yield
        finally:
            self.stack.held.difference_update(names)
        async with asyncio.timeout(START_S):
            await asyncio.gather(*(self._until_well(name) for name in names))

    async def _until_well(self, name: str) -> None:
        while True:
            self.check()
            with contextlib.suppress(Exception):
                process = self.service(name).process
                if process is not None and process.returncode is None:
                    await self.service(name).probe()
                    return
            await asyncio.sleep(0.2)

    @property
    def settings(self) -> Settings:
        """Of a client of the services, as the roles have them."""
        return Settings(_env_file=self.stack.settings.data / "environment")

    @property
    def headers(self) -> dict[str, str]:
        """Of the user."""
        return {"authorization": f"Bearer {self.key}"}

    def process(self, name: str) -> Process | None:
        """A role's process, if one runs now."""
        assert self._running.supervisor is not None
        return self._running.supervisor.running.get(name)

    def signal(self, name: str, number: signal.Signals) -> bool:
        """Send it to a role. False: it does not run now."""
        process = self.process(name)
        if process is None or process.returncode is not None:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)
            return True
        return False

    def service(self, name: str) -> Service:
        """A service by its name."""
        return self.stack.services[name]

    def kill_model(self, engine: str) -> bool:
        """SIGKILL the process of the engine's model; its server lives on. False: none runs now."""
        with contextlib.suppress(LookupError, ProcessLookupError, psutil.Error):
            os.kill(model_pid(self.stack.settings.engines[engine].grpc_port), signal.SIGKILL)
            return True
        return False

    async def until_ready(self, *names: str) -> None:
        """Until these roles say that they are ready; all, without a name.

        Raises:
            TimeoutError: not in READY_S; it tells who says what instead.
        """
        wanted = [self.members[name] for name in names or self.members]
        waiting = {asyncio.create_task(answers(member.ready_url)): member for member in wanted}
        _, late = await asyncio.wait(waiting, timeout=READY_S)
        for task in late:
            task.cancel()
        if late:
            said = [f"{waiting[task].name}: {await excuse(waiting[task])}" for task in late]
            raise TimeoutError(f"not ready after {READY_S:.0f} s: {'; '.join(said)}")

    async def until_in_sync(self) -> None:
        """Until every broker runs and every partition is on all of its brokers.

        Raises:
            TimeoutError: not in READY_S.
        """
        async with asyncio.timeout(READY_S):
            while not await self._in_sync():
                self.check()
                await asyncio.sleep(0.5)

    async def _in_sync(self) -> bool:
        admin = AIOKafkaAdminClient(bootstrap_servers=self.stack.kafka.bootstrap, request_timeout_ms=3_000)
        try:
            await admin.start()
            parts = [part for topic in await admin.describe_topics() for part in topic["partitions"]]
            return bool(parts) and all(len(part["isr"]) == len(part["replicas"]) for part in parts)
        except (KafkaError, OSError, TimeoutError):
            return False
        finally:
            await admin.close()

    def check(self) -> None:
        """Raises AssertionError when what keeps the system running has given up."""
        if self._task.done():
            raise AssertionError(f"the system has ended; see {self.log}") from self._task.exception()

    async def until(self, announced: asyncio.Future[str]) -> None:
        """Until all runs and the user's key is known.

        Raises:
            TimeoutError: not in START_S.
            AssertionError: it has ended.
        """
        waiting: list[asyncio.Future[Any]] = [self._task, announced]
        await asyncio.wait(waiting, timeout=START_S, return_when=asyncio.FIRST_COMPLETED)
        self.check()
        if not announced.done():
            raise TimeoutError(f"the system did not start in {START_S:.0f} s; see {self.log}")
        self.key = announced.result()

    async def stop(self) -> None:
        """End all of it."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


async def excuse(member: Member) -> str:
    """Why a role is not ready, in its own words."""
    try:
        async with httpx.AsyncClient(timeout=5) as client:
            return (await client.get(member.ready_url)).text
    except httpx.HTTPError as error:
        return repr(error)


def twice(settings: LocalSettings, bootstrap: str) -> tuple[list[RoleSpec], list[Member]]:
    """The roles: two of all but the views, whose groups are one member's work here. The second come behind proxies."""
    second = ("moderation", "orchestrator", "edge")
    ports = iter(free_ports(len(second)))
    specs: list[RoleSpec] = []
    for spec in catalogue.roles(settings):
        proxied = {"PARLEY_KAFKA__BOOTSTRAP": bootstrap} if spec.name.endswith("-1") else {}
        specs.append(replace(spec, env={**spec.env, **proxied}))
        if spec.name not in second:
            continue
        port = next(ports)
        env = {"PARLEY_INSTANCE": f"{spec.name}-1", "PARLEY_KAFKA__BOOTSTRAP": bootstrap}
        env |= {"PARLEY_EDGE__PORT" if spec.name == "edge" else "PARLEY_METRICS_PORT": str(port)}
        ready = f"http://{LOOPBACK}:{port}/health/ready"
        specs.append(replace(spec, name=f"{spec.name}-1", env=env, ready_url=ready))
    members = [Member(spec.name, spec.name.removesuffix("-1"), spec.ready_url or "") for spec in specs]
    return specs, members


@asynccontextmanager
async def suffering(folder: Path, environment: Mapping[str, str] = PATIENCE) -> AsyncIterator[System]:
    """Start a fresh system, with these variables for its roles; end it afterwards."""
    settings = settings_aside(folder / "data", twins=(POOL,), brokers=3)
    engines = {name: engine for name, engine in settings.engines.items() if name.startswith(POOL)}
    settings = settings.model_copy(update={"engines": engines})
    log = folder / "up.log"
    async with AsyncExitStack() as entered:
        output = entered.enter_context(log.open("w"))
        proxies = [
            await entered.enter_async_context(Proxy(node.proxy_port or 0, node.proxied_port or 0))
            for node in settings.kafka.nodes
        ]
        behind = ",".join(f"{LOOPBACK}:{proxy.port}" for proxy in proxies)
        specs, members = twice(settings, behind)
        announced: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def announce(_console: Console, _settings: LocalSettings, _environment: Mapping[str, str]) -> None:
            announced.set_result(await ensure_demo(system.settings, folder / "key"))

        plan = Plan(catalogue.hooks(), [replace(s, env={**environment, **s.env}) for s in specs], announce=announce)
        console = Console(output, width=20, colour=False)
        system = System(Running(Holding(settings, console), plan, console), members, proxies, log)
        try:
            await system.until(announced)
            yield system
        finally:
            await system.stop()
