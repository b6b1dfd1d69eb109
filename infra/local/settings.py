"""Settings of the embedded stack: PARLEY_LOCAL_DATA, and nested ones as PARLEY_LOCAL_KAFKA__PORT."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from pydantic_settings import BaseSettings, SettingsConfigDict

ROOT = Path(__file__).resolve().parents[2]
LOOPBACK = "127.0.0.1"

DEMO_KEY = "demo.key"
"""In the data folder: the key of the local stack's own user."""

# Of what only keeps and counts, on a machine that is too small for all: a view may come later, a token may not.
VIEW_NICE = 10

Port = Annotated[int, Field(ge=1, le=65535)]
Heap = Annotated[str, Field(pattern=r"^[0-9]+[mg]$", description="a Java heap, as 512m or 1g")]


class Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class KafkaNode(Part):
    """One KRaft node, broker and controller in one process."""

    port: Port = Field(9092, description="for clients")
    controller_port: Port = Field(9093, description="of the KRaft controller")
    proxied_port: Port | None = Field(None, description="for clients behind a proxy: a second listener")
    proxy_port: Port | None = Field(None, description="of that proxy: where the second listener says that it is")


class KafkaSettings(KafkaNode):
    """A Kafka of one node, or of several: of three, each record is on three, and one of them may die."""

    bootstrap: str | None = Field(None, description="host:port of a Kafka that runs elsewhere; then none is started")
    peers: tuple[KafkaNode, ...] = Field((), description="nodes beside the first, a JSON list of their ports")
    heap: Heap = Field("512m", description="Java heap of each node")

    @property
    def nodes(self) -> tuple[KafkaNode, ...]:
        """All nodes that run here."""
        return (self, *self.peers)

    @property
    def replication(self) -> int:
        """Copies of every record."""
        return min(len(self.nodes), 3)

    @property
    def min_insync(self) -> int:
        """Copies that there are when a record is acknowledged: one node may be away."""
        return max(1, self.replication - 1)


class CassandraSettings(Part):
    """The message store. Cassandra stands in for ScyllaDB: the same protocol and CQL."""

    hosts: tuple[str, ...] = Field((), description="hosts of a store that runs elsewhere; then none is started")
    port: Port = Field(9042, description="of the native protocol")
    storage_port: Port = Field(7000, description="between nodes")
    heap: Heap = Field("512m", description="Java heap")
    datacenter: str = Field("datacenter1", description="name of the data centre")
    keyspace: str = Field("parley", description="of the messages")


class PostgresSettings(Part):
    dsn: str | None = Field(None, description="URI of a database that runs elsewhere; then none is started")
    port: Port = Field(5432, description="for clients")


class EngineSettings(Part):
    """One tritonserver process. Every engine of a pool is a process of its own, so that engines fail one by one."""

    pool: str | None = Field(None, description="the pool that it serves; None: the one of the engine's name")
    endpoint: str | None = Field(None, description="host:port (gRPC) of an engine that runs elsewhere")
    models: tuple[str, ...]
    grpc_port: Port
    http_port: Port
    metrics_port: Port


class EdgeSettings(Part):
    host: str = Field(LOOPBACK, description="where the edge listens")
    port: Port = Field(8080, description="for HTTP and WebSocket")


# The language model answers on Triton's own default ports.
ENGINES = {
    "smol": EngineSettings(models=("chat", "tensorrt_llm"), grpc_port=8001, http_port=8000, metrics_port=8002),
    "synthetic": EngineSettings(models=("synthetic",), grpc_port=8011, http_port=8010, metrics_port=8012),
}


# Where roles without HTTP of their own tell their health and metrics, by the role's name.
HEALTH_PORTS = {
    name: 9101 + number
    for number, name in enumerate(
        (
            "moderation",
            "orchestrator",
            *(f"worker-{pool}" for pool in ENGINES),
            "history-messages",
            "history-sessions",
            "usage",
        )
    )
}


class LocalSettings(BaseSettings):
    """Where the stack keeps things, and which of its services run here."""

    model_config = SettingsConfigDict(env_prefix="PARLEY_LOCAL_", env_nested_delimiter="__", frozen=True)

    data: Path = Field(ROOT / "var", description="what must survive: records, rows, secrets; and logs")
    cache: Path = Field(ROOT / ".cache", description="what can be fetched or made again: jars, tokenizers")
    triton_venv: Path = Field(ROOT / ".venv-triton", description="Triton's own virtual environment")
    models: Path = Field(ROOT / "infra" / "triton" / "models", description="Triton's model repository")

    kafka: KafkaSettings = KafkaSettings()
    cassandra: CassandraSettings = CassandraSettings()
    postgres: PostgresSettings = PostgresSettings()
    engines: dict[str, EngineSettings] = Field(
        ENGINES, description="by name, which is its pool unless it names another"
    )
    edge: EdgeSettings = EdgeSettings()
    health_ports: dict[str, Port] = Field(HEALTH_PORTS, description="health and metrics of each role, by its name")

    start_timeout: float = Field(180.0, gt=0, description="seconds a service may take until it answers")
    minimum_free_bytes: int = Field(2 << 30, ge=0, description="free space in `data` below which nothing starts")

    def pools(self) -> dict[str, list[str]]:
        """The names of each pool's engines, in the order in which workers count them."""
        found: dict[str, list[str]] = {}
        for name, engine in self.engines.items():
            found.setdefault(engine.pool or name, []).append(name)
        return found
