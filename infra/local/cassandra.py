"""Apache Cassandra: the message store where no ScyllaDB runs. Same protocol, same CQL, same driver."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from string import Template

from cassandra.cluster import Cluster
from cassandra.io.libevreactor import LibevConnection

from infra.local.checks import PortUse, check_java
from infra.local.process import Command
from infra.local.provision import TEMPLATES, check_maven, ensure_jars, jars_folder
from infra.local.service import Service, clean_environment, listens
from infra.local.settings import LOOPBACK, LocalSettings


@dataclass(frozen=True)
class MessageStore:
    """Where CQL is answered."""

    host: str
    port: int
    datacenter: str


class Cassandra(Service):
    name = "cassandra"
    title = "Cassandra"

    def __init__(self, settings: LocalSettings) -> None:
        super().__init__(settings.data, external=bool(settings.cassandra.hosts))
        self.settings = settings
        self.hosts = settings.cassandra.hosts or (LOOPBACK,)
        self.port = settings.cassandra.port

    @property
    def store(self) -> MessageStore:
        return MessageStore(self.hosts[0], self.port, self.settings.cassandra.datacenter)

    @property
    def ports(self) -> Sequence[PortUse]:
        return (
            PortUse(self.port, "Cassandra", "PARLEY_LOCAL_CASSANDRA__PORT"),
            PortUse(self.settings.cassandra.storage_port, "Cassandra's nodes", "PARLEY_LOCAL_CASSANDRA__STORAGE_PORT"),
        )

    def check(self) -> None:
        check_java()
        check_maven(self.settings, self.name)

    async def prepare(self) -> None:
        await ensure_jars(self.settings, self.name)
        conf = self.folder / "conf"
        conf.mkdir(parents=True, exist_ok=True)
        (conf / "cassandra.yaml").write_text(
            Template((TEMPLATES / "cassandra.yaml").read_text()).substitute(
                port=self.port, storage_port=self.settings.cassandra.storage_port, data=self.folder / "data"
            )
        )
        shutil.copy(TEMPLATES / "cassandra.logback.xml", conf / "logback.xml")

    def command(self) -> Command:
        conf = self.folder / "conf"
        argv = [
            "java",
            f"-Xmx{self.settings.cassandra.heap}",
            f"@{TEMPLATES / 'cassandra.jvm.options'}",
            f"-Dcassandra.config={(conf / 'cassandra.yaml').as_uri()}",
            f"-Dcassandra.storagedir={self.folder / 'data'}",
            "-cp",
            f"{conf}:{jars_folder(self.settings, self.name)}/*",
            "org.apache.cassandra.service.CassandraDaemon",
        ]
        return Command(argv, clean_environment(), cwd=self.folder)

    async def probe(self) -> None:
        await listens(self.hosts[0], self.port)
        await asyncio.to_thread(self._ask)

    def _ask(self) -> None:
        cluster = Cluster(list(self.hosts), port=self.port, connection_class=LibevConnection, connect_timeout=3)
        try:
            cluster.connect().execute("SELECT release_version FROM system.local", timeout=3)
        finally:
            cluster.shutdown()
