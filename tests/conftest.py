"""The real services for tests, each started at most once a session and only when a test asks for it.

Where a Docker engine answers, Kafka, PostgreSQL and ScyllaDB are containers; elsewhere the local stack runs them on
free ports in a temporary folder. The engines are the local stack's in either case. The containers' half has never been
run where this was written: no Docker engine was to be had.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import pytest
from xdist.scheduler import LoadScopeScheduling

from infra.local.aside import settings_aside
from infra.local.cassandra import MessageStore
from infra.local.checks import free_ports
from infra.local.settings import ENGINES
from infra.local.stack import LocalStack

log = logging.getLogger(__name__)

# testcontainers knows how to start this image of Apache Kafka (4.1), not the project's own.
KAFKA_IMAGE = "confluentinc/cp-kafka:8.1.0"
SCYLLA_IMAGE = "scylladb/scylla:2025.4"
POSTGRES_IMAGE = "postgres:18"


class Services(Protocol):
    """Each call starts its service at the first time and tells where it is."""

    async def kafka(self) -> str: ...
    async def postgres(self) -> str: ...
    async def message_store(self) -> MessageStore: ...
    async def engine(self, pool: str) -> str: ...
    async def tokenizers(self) -> Path: ...
    async def stop(self) -> None: ...


class LocalServices:
    def __init__(self, stack: LocalStack) -> None:
        self.stack = stack
        stack.open()

    async def kafka(self) -> str:
        await self.stack.start("kafka")
        return self.stack.kafka.bootstrap

    async def postgres(self) -> str:
        await self.stack.start("postgres")
        return self.stack.postgres.dsn

    async def message_store(self) -> MessageStore:
        await self.stack.start("cassandra")
        return self.stack.cassandra.store

    async def engine(self, pool: str) -> str:
        """As `parley up` does, an engine that has died is started again: Triton may, of streams that are left."""
        engine = self.stack.engines[pool]
        await self.stack.start(engine.name)
        if engine.process is not None and engine.process.returncode is not None:
            log.warning("%s has died, and is started again; its last log is in %s", engine.title, engine.log.parent)
            await self.stack.restart(engine.name)
        return engine.endpoint

    async def tokenizers(self) -> Path:
        return await self.stack.tokenizers()

    async def stop(self) -> None:
        await self.stack.stop()


class ContainerServices(LocalServices):
    """Kafka, PostgreSQL and ScyllaDB as containers."""

    def __init__(self, stack: LocalStack) -> None:
        super().__init__(stack)
        self._containers = ExitStack()
        self._started: dict[str, Any] = {}
        self._starting = asyncio.Lock()

    async def _container(self, name: str, make: Callable[[], Any]) -> Any:
        async with self._starting:
            if name not in self._started:
                self._started[name] = await asyncio.to_thread(lambda: self._containers.enter_context(make()))
        return self._started[name]

    async def kafka(self) -> str:
        from testcontainers.community.kafka import KafkaContainer

        # The image's start script makes its configuration of these variables.
        def make() -> Any:
            container = KafkaContainer(KAFKA_IMAGE).with_kraft()
            container.with_env("KAFKA_AUTO_CREATE_TOPICS_ENABLE", "false")
            container.with_env("KAFKA_LOG_MESSAGE_TIMESTAMP_TYPE", "LogAppendTime")
            container.with_env("KAFKA_GROUP_MIN_SESSION_TIMEOUT_MS", "1000")
            return container.with_env("KAFKA_MESSAGE_MAX_BYTES", "4194304")

        return str((await self._container("kafka", make)).get_bootstrap_server())

    async def postgres(self) -> str:
        from testcontainers.community.postgres import PostgresContainer

        postgres = await self._container("postgres", lambda: PostgresContainer(POSTGRES_IMAGE, driver=None))
        return str(postgres.get_connection_url())

    async def message_store(self) -> MessageStore:
        from testcontainers.core.container import DockerContainer
        from testcontainers.core.wait_strategies import LogMessageWaitStrategy

        def make() -> Any:
            container = DockerContainer(SCYLLA_IMAGE).with_exposed_ports(9042)
            container.with_command("--smp 1 --memory 1G --overprovisioned 1 --skip-wait-for-gossip-to-settle=0")
            return container.waiting_for(LogMessageWaitStrategy("Starting listening for CQL clients"))

        store = await self._container("scylla", make)
        return MessageStore(store.get_container_host_ip(), int(store.get_exposed_port(9042)), "datacenter1")

    async def stop(self) -> None:
        await asyncio.to_thread(self._containers.close)
        await super().stop()


DOCKER_SOCKET = Path("/var/run/docker.sock")


def docker_answers() -> bool:
    if "DOCKER_HOST" not in os.environ and not DOCKER_SOCKET.exists():
        return False  # The client would find out too, but leaves an open socket behind.
    import docker  # type: ignore[import-untyped]

    try:
        client = docker.from_env(timeout=3)
    except docker.errors.DockerException:
        return False
    try:
        return bool(client.ping())
    except docker.errors.DockerException:
        return False
    finally:
        client.close()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test on real services that fails is tried once more: machines are shared. The summary shows it as a rerun."""
    for item in items:
        if {"e2e", "integration"} & set(item.path.parts):
            item.add_marker(pytest.mark.flaky(reruns=1, reruns_delay=1))


class ByFile(LoadScopeScheduling):
    """`pytest -n`: a file's tests stay in one process, and those on the whole system (one start of it) in the same."""

    def _split_scope(self, nodeid: str) -> str:
        return "e2e" if nodeid.startswith("tests/e2e/") else nodeid.partition("::")[0]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    return ByFile(config, log)


@pytest.fixture(scope="module")
async def kafka_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """For tests that read whole topics: nobody else writes there."""
    async with LocalStack(settings_aside(tmp_path_factory.mktemp("kafka"))) as stack:
        await stack.start_services("kafka")
        yield stack.kafka.bootstrap


@pytest.fixture(scope="session")
async def services(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Services]:
    stack = LocalStack(settings_aside(tmp_path_factory.mktemp("stack")))
    started: Services = ContainerServices(stack) if docker_answers() else LocalServices(stack)
    yield started
    await started.stop()


@pytest.fixture(scope="session")
async def kafka_bootstrap(services: Services) -> str:
    """host:port of a Kafka with one broker, no topics, and no automatic ones."""
    return await services.kafka()


@pytest.fixture(scope="session")
async def postgres_dsn(services: Services) -> str:
    """URI of an empty database, of which the user owns everything."""
    return await services.postgres()


@pytest.fixture(scope="session")
async def message_store(services: Services) -> MessageStore:
    """Cassandra or ScyllaDB without keyspaces of ours."""
    return await services.message_store()


@pytest.fixture
async def engines(services: Services) -> dict[str, str]:
    """The gRPC address of each pool's engine; all of them run."""
    pools = list(ENGINES)
    return dict(zip(pools, await asyncio.gather(*(services.engine(pool) for pool in pools)), strict=True))


@pytest.fixture
async def synthetic_engine(services: Services) -> str:
    """The gRPC address of the engine without a language model, alone: it starts in 3 s."""
    return await services.engine("synthetic")


@pytest.fixture(scope="session")
async def tokenizers_dir(services: Services) -> Path:
    """The folder with the pools' tokenizers."""
    return await services.tokenizers()


@pytest.fixture
def free_port() -> int:
    return free_ports(1)[0]
