"""The services together: started side by side, asked for by name, ended together."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import secrets
import shlex
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from infra.local import checks, provision
from infra.local.cassandra import Cassandra
from infra.local.checks import PortUse
from infra.local.console import Console
from infra.local.kafka import CLUSTER, Kafka
from infra.local.postgres import Postgres
from infra.local.service import Service
from infra.local.settings import LocalSettings
from infra.local.triton import Triton


@dataclass(frozen=True)
class Secrets:
    """Made once for a data folder: whoever has them can forge ids and read the database."""

    id_key: str
    postgres_password: str


def load_secrets(data: Path) -> Secrets:
    """The secrets of a data folder, made at the first call; the file is its owner's alone."""
    path = data / "secrets.json"
    if not path.exists():
        made = Secrets(base64.b64encode(secrets.token_bytes(32)).decode(), secrets.token_urlsafe(24))
        # Complete or absent: a half-written key would lock the data away.
        new = path.with_suffix(".new")
        new.unlink(missing_ok=True)
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(asdict(made), file)
        new.replace(path)
    return Secrets(**json.loads(path.read_text()))


class LocalStack:
    """The services of one data folder, which it holds for itself from `open` (or the first start) to `stop`.

        async with LocalStack(LocalSettings()) as stack:
            await stack.start_services()
            ... stack.environment() ...

    Every service can be started alone, and several times: `await stack.start("kafka")`.
    """

    def __init__(self, settings: LocalSettings, console: Console | None = None) -> None:
        self.settings = settings
        self.console = console
        self._held = ExitStack()
        self._open = False
        self._starts: dict[str, asyncio.Task[None]] = {}

    def open(self) -> None:
        """Take the data folder. Raises StackError when another process has it, or when its disk is full."""
        if self._open:
            return
        settings = self.settings
        self._held.enter_context(checks.lock(settings.data))
        self._open = True
        checks.check_space(settings.data, settings.minimum_free_bytes)
        self.secrets = load_secrets(settings.data)
        self.brokers = [Kafka(settings, number) for number, _ in enumerate(settings.kafka.nodes, 1)]
        self.kafka = self.brokers[0]
        self.cassandra = Cassandra(settings)
        self.postgres = Postgres(settings, self.secrets.postgres_password)
        self.engines = {name: Triton(settings, name, engine) for name, engine in settings.engines.items()}
        everything: list[Service] = [*self.brokers, self.cassandra, self.postgres, *self.engines.values()]
        self.services = {service.name: service for service in everything}

    async def start_services(self, *names: str, besides: tuple[PortUse, ...] = ()) -> Self:
        """Start the named services, or all, at the same time; return when all of them are well.

        What can be checked is checked before the first one starts, the ports `besides` too. Raises StackError.
        """
        await self.check(*names, besides=besides)
        async with asyncio.TaskGroup() as group:
            for name in names or self.services:
                group.create_task(self.start(name))
        return self

    async def check(self, *names: str, besides: tuple[PortUse, ...] = ()) -> None:
        """Look for missing programs, left-over processes and taken ports. Raises StackError."""
        self.open()
        here = [self.services[each] for name in names or self.services for each in self._with(name)]
        here = [service for service in here if not service.external and service.name not in self._starts]
        for service in here:
            service.check()
        await asyncio.gather(*(service.sweep() for service in here))
        checks.check_ports([*besides, *(use for service in here for use in service.ports)])

    async def start(self, name: str) -> None:
        """Start one service unless it has been started; return when it is well. Raises StackError."""
        if name not in self._starts:
            await self.check(name)
        names = self._with(name)
        for each in names:  # `check` gave others their turn.
            if each not in self._starts:
                self._starts[each] = asyncio.create_task(self._start(self.services[each]), name=f"start {each}")
        # Several may wait for the same start; one that stops waiting does not end it for the others.
        await asyncio.gather(*(asyncio.shield(self._starts[each]) for each in names))

    def _with(self, name: str) -> list[str]:
        """A service, and those without which it is never well: Kafka is all of its nodes."""
        return [broker.name for broker in self.brokers] if name == CLUSTER else [name]

    async def _start(self, service: Service) -> None:
        began = time.monotonic()
        if not service.external:
            await service.prepare()
        await service.start(self.settings.start_timeout)
        if self.console:
            where = "elsewhere" if service.external else f"after {time.monotonic() - began:.1f} s"
            self.console.say(f"{service.title} is ready {where}")

    async def restart(self, name: str) -> None:
        """Start a service again that has ended, by itself or by `services[name].kill()`."""
        await self.services[name].stop()
        await self.services[name].start(self.settings.start_timeout)

    async def tokenizers(self) -> Path:
        """The folder of the pools' tokenizers, made if it is not there. Raises StackError."""
        return await provision.ensure_tokenizers(self.settings)

    def environment(self) -> dict[str, str]:
        """How to reach all of it, as the variables that Parley's own settings are read from."""
        self.open()
        settings = self.settings
        copies = {
            "PARLEY_CLUSTER__REPLICATION": str(settings.kafka.replication),
            "PARLEY_CLUSTER__MIN_INSYNC_REPLICAS": str(settings.kafka.min_insync),
        }
        return (copies if settings.kafka.peers else {}) | {
            "PARLEY_KAFKA__BOOTSTRAP": self.kafka.bootstrap,
            "PARLEY_MESSAGES__HOSTS": json.dumps(self.cassandra.hosts),
            "PARLEY_MESSAGES__PORT": str(self.cassandra.port),
            "PARLEY_MESSAGES__KEYSPACE": settings.cassandra.keyspace,
            "PARLEY_MESSAGES__DATACENTER": settings.cassandra.datacenter,
            "PARLEY_POSTGRES__DSN": self.postgres.dsn,
            "PARLEY_ENGINES": json.dumps(
                {pool: [self.engines[name].endpoint for name in names] for pool, names in settings.pools().items()}
            ),
            "PARLEY_EDGE__HOST": settings.edge.host,
            "PARLEY_EDGE__PORT": str(settings.edge.port),
            "PARLEY_ID_KEYS": json.dumps([self.secrets.id_key]),
            "PARLEY_TOKENIZERS_DIR": str(settings.cache / "tokenizers"),
        }

    def write_environment(self) -> Path:
        """Write `environment` as a file for shells and dotenv readers, its owner's alone; return its path."""
        path = self.settings.data / "environment"
        path.unlink(missing_ok=True)
        path.touch(mode=0o600)
        path.write_text("".join(f"{name}={shlex.quote(value)}\n" for name, value in self.environment().items()))
        return path

    def kill(self) -> None:
        """SIGKILL to everything that runs here."""
        if self._open:
            for service in self.services.values():
                service.kill()

    async def stop(self) -> None:
        """End every service that was started here and let go of the data folder."""
        if not self._open:
            return
        starts = list(self._starts.values())
        for task in starts:
            task.cancel()
        await asyncio.gather(*starts, return_exceptions=True)
        self._starts.clear()
        await asyncio.gather(*(service.stop() for service in self.services.values()))
        self._held.close()
        self._open = False

    async def __aenter__(self) -> Self:
        self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
