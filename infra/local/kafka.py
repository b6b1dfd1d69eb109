"""Apache Kafka: KRaft nodes, each broker and controller in one process.

One is a laptop's; of three, any one may die. A node with a `proxied_port` has a second listener that says of itself
that it is at `proxy_port`: who begins at a proxy stays behind it, and can be cut off.
"""

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

CLUSTER = "kafka"
"""Name of all nodes together, and of the first."""

LOGGING = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"


class Kafka(Service):
    """A node. It is well when it is in the cluster's metadata: of several nodes, most must run for that."""

    def __init__(self, settings: LocalSettings, number: int = 1) -> None:
        self.name = CLUSTER if number == 1 else f"{CLUSTER}-{number}"
        self.title = "Kafka" if number == 1 else f"Kafka, node {number}"
        super().__init__(settings.data, external=settings.kafka.bootstrap is not None)
        self.settings = settings
        self.number = number
        self.node = settings.kafka.nodes[number - 1]
        here = ",".join(f"{LOOPBACK}:{node.port}" for node in settings.kafka.nodes)
        self.bootstrap = settings.kafka.bootstrap or here

    @property
    def ports(self) -> Sequence[PortUse]:
        of = "PARLEY_LOCAL_KAFKA__" if self.number == 1 else f"node {self.number} in PARLEY_LOCAL_KAFKA__PEERS: its "
        uses = [
            PortUse(self.node.port, self.title, f"{of}PORT"),
            PortUse(self.node.controller_port, f"{self.title}'s controller", f"{of}CONTROLLER_PORT"),
        ]
        if self.node.proxied_port is not None:
            uses.append(PortUse(self.node.proxied_port, f"{self.title} behind a proxy", f"{of}PROXIED_PORT"))
        return uses

    def check(self) -> None:
        check_java()
        check_maven(self.settings, CLUSTER)

    async def prepare(self) -> None:
        await ensure_jars(self.settings, CLUSTER)
        self.folder.mkdir(parents=True, exist_ok=True)
        kafka, node = self.settings.kafka, self.node
        clients = {"PLAINTEXT": (node.port, node.port)}
        if node.proxied_port is not None:
            clients["PROXIED"] = (node.proxied_port, node.proxy_port or node.proxied_port)
        listeners = {name: port for name, (port, _) in clients.items()} | {"CONTROLLER": node.controller_port}
        voters = (f"{number}@{LOOPBACK}:{each.controller_port}" for number, each in enumerate(kafka.nodes, 1))
        self._configuration.write_text(
            Template((TEMPLATES / "kafka.properties").read_text()).substitute(
                node=self.number,
                voters=",".join(voters),
                listeners=",".join(f"{name}://{LOOPBACK}:{port}" for name, port in listeners.items()),
                advertised=",".join(f"{name}://{LOOPBACK}:{port}" for name, (_, port) in clients.items()),
                replication=kafka.replication,
                min_insync=kafka.min_insync,
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
        path = self.settings.data / CLUSTER / "cluster-id"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            # A leading minus would read as an option.
            path.write_text("P" + base64.urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=")[1:])
        return path.read_text()

    def command(self) -> Command:
        argv = [*self._java(heap=self.settings.kafka.heap), "kafka.Kafka", str(self._configuration)]
        return Command(argv, clean_environment(), cwd=self.folder)

    async def probe(self) -> None:
        address = self.bootstrap.split(",")[0] if self.external else f"{LOOPBACK}:{self.node.port}"
        host, port = address.rsplit(":", 1)
        await listens(host, int(port))
        client = AIOKafkaClient(bootstrap_servers=address, request_timeout_ms=5_000)
        try:
            await client.bootstrap()
            found = {broker.nodeId for broker in client.cluster.brokers()}
            if not found or (self.number not in found and not self.external):
                raise Unwell("it is not in the cluster's metadata")
        finally:
            await client.close()

    @property
    def _configuration(self) -> Path:
        return self.folder / "server.properties"

    def _java(self, heap: str) -> list[str]:
        # A small heap on few cores: the simplest collector costs the least. So does the first compiler alone: 1,250
        # records a second took 160 ms of CPU a second with it in Kafka's second half minute, 250 ms with both.
        options = [f"-Xmx{heap}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", LOGGING]
        return ["java", *options, "-cp", f"{jars_folder(self.settings, CLUSTER)}/*"]
