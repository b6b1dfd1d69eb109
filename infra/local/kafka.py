"""Apache Kafka: one KRaft node, broker and controller in one process."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Sequence
from pathlib import Path
from string import Template

from aiokafka.client import AIOKafkaClient

from infra.local.checks import PortUse, check_java
from infra.local.problems import StackError
from infra.local.process import Command, run
from infra.local.provision import TEMPLATES, check_maven, ensure_jars, jars_folder
from infra.local.service import Service, Unwell, clean_environment, listens
from infra.local.settings import LOOPBACK, LocalSettings

LOGGING = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"


class Kafka(Service):
    name = "kafka"
    title = "Kafka"

    def __init__(self, settings: LocalSettings) -> None:
        super().__init__(settings.data, external=settings.kafka.bootstrap is not None)
        self.settings = settings
        self.bootstrap = settings.kafka.bootstrap or f"{LOOPBACK}:{settings.kafka.port}"

    @property
    def ports(self) -> Sequence[PortUse]:
        kafka = self.settings.kafka
        return (
            PortUse(kafka.port, "Kafka", "PARLEY_LOCAL_KAFKA__PORT"),
            PortUse(kafka.controller_port, "Kafka's controller", "PARLEY_LOCAL_KAFKA__CONTROLLER_PORT"),
        )

    def check(self) -> None:
        check_java()
        check_maven(self.settings, self.name)

    async def prepare(self) -> None:
        await ensure_jars(self.settings, self.name)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._configuration.write_text(
            Template((TEMPLATES / "kafka.properties").read_text()).substitute(
                port=self.settings.kafka.port,
                controller_port=self.settings.kafka.controller_port,
                data=self.folder / "data",
            )
        )
        if not (self.folder / "data" / "meta.properties").exists():
            await self._format()

    async def _format(self) -> None:
        """Give the data folder the cluster's id. Without it Kafka does not start; with another it refuses the data."""
        log = self.folder / "format.log"
        argv = ["kafka.tools.StorageTool", "format", "-t", self._cluster_id(), "-c", str(self._configuration)]
        code = await run(Command(self._java(heap="128m") + argv, clean_environment()), log)
        if code != 0:
            raise StackError(f"Kafka's data folder could not be formatted: {log} says why.")

    def _cluster_id(self) -> str:
        path = self.folder / "cluster-id"
        if not path.exists():
            # A leading minus would read as an option.
            path.write_text("P" + base64.urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=")[1:])
        return path.read_text()

    def command(self) -> Command:
        argv = [*self._java(heap=self.settings.kafka.heap), "kafka.Kafka", str(self._configuration)]
        return Command(argv, clean_environment(), cwd=self.folder)

    async def probe(self) -> None:
        host, port = self.bootstrap.split(",")[0].rsplit(":", 1)
        await listens(host, int(port))
        client = AIOKafkaClient(bootstrap_servers=self.bootstrap, request_timeout_ms=5_000)
        try:
            await client.bootstrap()
            if not client.cluster.brokers():
                raise Unwell("no broker is in the metadata")
        finally:
            await client.close()

    @property
    def _configuration(self) -> Path:
        return self.folder / "server.properties"

    def _java(self, heap: str) -> list[str]:
        # A small heap on few cores: the simplest collector costs the least. So does the first compiler alone: 1,250
        # records a second took 160 ms of CPU a second with it in Kafka's second half minute, 250 ms with both.
        options = [f"-Xmx{heap}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", LOGGING]
        return ["java", *options, "-cp", f"{jars_folder(self.settings, self.name)}/*"]
