"""What runs on the services: the steps before anything else, and the roles. Data only."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from infra.local.problems import StackError
from infra.local.settings import LOOPBACK, VIEW_NICE, LocalSettings
from infra.local.triton import service_name


@dataclass(frozen=True)
class Hook:
    """A program that must have ended well before any role starts. `needs` are names of services."""

    name: str
    argv: Sequence[str]
    needs: Sequence[str] = ()


@dataclass(frozen=True)
class RoleSpec:
    """A program that is kept running. It is ready when `ready_url` answers 200, or without one as soon as it runs.

    `spare`, if not empty, is the same program as a spare: all is loaded, and with a line on its standard input, the
    instance id, it takes the place of one that has ended.
    """

    name: str
    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    ready_url: str | None = None
    needs: Sequence[str] = ()
    nice: int = 0
    spare: Sequence[str] = ()

    @property
    def instance(self) -> str:
        """Its name in its group."""
        return self.env["PARLEY_INSTANCE"]


def parley(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "parley", *arguments]


def role(settings: LocalSettings, name: str, *arguments: str, needs: Sequence[str], nice: int = 0) -> RoleSpec:
    port = settings.health_ports.get(name)
    if port is None:
        raise StackError(f"PARLEY_LOCAL_HEALTH_PORTS has no port for {name}")
    # A static member of its consumer group: started again at once, it has its partitions back at once.
    environment = {"PARLEY_INSTANCE": f"{name}-0", "PARLEY_METRICS_PORT": str(port)}
    return RoleSpec(name, parley(*arguments), environment, f"http://{LOOPBACK}:{port}/health/ready", needs, nice)


def worker(settings: LocalSettings, pool: str, number: int, engine: str) -> RoleSpec:
    """Of one engine of a pool, with a spare: a worker that dies in the middle of an answer leaves a gap in it."""
    arguments = ["worker", "--pool", pool, *(["--engine", str(number)] if number else [])]
    made = role(settings, f"worker-{engine}", *arguments, needs=("kafka", service_name(engine)))
    return replace(made, spare=parley(*arguments, "--spare"))


def hooks() -> list[Hook]:
    """In this order, one after the other."""
    return [
        Hook("topics", parley("topics", "apply"), needs=("kafka",)),
        Hook("migrate", parley("migrate"), needs=("cassandra", "postgres")),
    ]


def roles(settings: LocalSettings) -> list[RoleSpec]:
    """Every role once, and a worker for each engine."""
    workers = [
        worker(settings, pool, number, engine)
        for pool, engines in settings.pools().items()
        for number, engine in enumerate(engines)
    ]
    edge = settings.edge
    ready = f"http://{edge.host}:{edge.port}/health/ready"
    return [
        role(settings, "moderation", "moderation", needs=("kafka",)),
        role(settings, "orchestrator", "orchestrator", needs=("kafka",)),
        *workers,
        *(
            role(settings, name, *arguments, needs=("kafka", *store), nice=VIEW_NICE)
            for name, arguments, store in (
                ("history-messages", ("history", "--store", "messages"), ("cassandra",)),
                ("history-sessions", ("history", "--store", "sessions"), ("postgres",)),
                ("usage", ("usage", "serve"), ()),
            )
        ),
        RoleSpec("edge", parley("edge"), {"PARLEY_INSTANCE": "edge-0"}, ready, ("kafka", "postgres", "cassandra")),
    ]
