"""A stack beside others: what tests and measurements run on, whatever else runs on this machine."""

from __future__ import annotations

from pathlib import Path

from infra.local.checks import free_ports
from infra.local.settings import (
    ENGINES,
    HEALTH_PORTS,
    CassandraSettings,
    EdgeSettings,
    EngineSettings,
    KafkaSettings,
    LocalSettings,
    PostgresSettings,
)


def settings_aside(data: Path) -> LocalSettings:
    """Settings with a data folder and ports of their own; what has been fetched is shared."""
    ports = iter(free_ports(6 + 3 * len(ENGINES) + len(HEALTH_PORTS)))
    return LocalSettings(
        data=data,
        kafka=KafkaSettings(port=next(ports), controller_port=next(ports)),
        cassandra=CassandraSettings(port=next(ports), storage_port=next(ports)),
        postgres=PostgresSettings(port=next(ports)),
        engines={
            pool: EngineSettings(
                models=engine.models, grpc_port=next(ports), http_port=next(ports), metrics_port=next(ports)
            )
            for pool, engine in ENGINES.items()
        },
        edge=EdgeSettings(port=next(ports)),
        health_ports={role: next(ports) for role in HEALTH_PORTS},
    )
