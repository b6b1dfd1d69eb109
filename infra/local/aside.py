"""A stack beside others: what tests and measurements run on, whatever else runs on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from infra.local.checks import free_ports
from infra.local.settings import (
    ENGINES,
    HEALTH_PORTS,
    CassandraSettings,
    EdgeSettings,
    EngineSettings,
    KafkaNode,
    KafkaSettings,
    LocalSettings,
    PostgresSettings,
)


def settings_aside(data: Path, *, twins: tuple[str, ...] = (), brokers: int = 1) -> LocalSettings:
    """Settings with a data folder and ports of their own; what has been fetched is shared.

    The pools of `twins` have a second engine: of `synthetic`, the engine `synthetic-1`. Of several `brokers`, each has
    a listener for clients behind a proxy.
    """
    pools = {name: name for name in ENGINES} | {f"{pool}-1": pool for pool in twins}
    roles = [*HEALTH_PORTS, *(f"worker-{pool}-1" for pool in twins)]
    ports = iter(free_ports(4 + 4 * brokers + 3 * len(pools) + len(roles)))
    return LocalSettings(
        data=data,
        kafka=_kafka(brokers, ports),
        cassandra=CassandraSettings(port=next(ports), storage_port=next(ports)),
        postgres=PostgresSettings(port=next(ports)),
        engines={
            name: EngineSettings(
                pool=pool,
                models=ENGINES[pool].models,
                grpc_port=next(ports),
                http_port=next(ports),
                metrics_port=next(ports),
            )
            for name, pool in pools.items()
        },
        edge=EdgeSettings(port=next(ports)),
        health_ports={role: next(ports) for role in roles},
    )


def _kafka(brokers: int, ports: Iterator[int]) -> KafkaSettings:
    if brokers == 1:
        return KafkaSettings(port=next(ports), controller_port=next(ports))
    first, *others = [
        {name: next(ports) for name in ("port", "controller_port", "proxied_port", "proxy_port")}
        for _ in range(brokers)
    ]
    peers = tuple(KafkaNode(**other) for other in others)
    return KafkaSettings(**first, peers=peers, heap="384m")
