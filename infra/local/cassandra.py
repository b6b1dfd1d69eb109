"""Apache Cassandra: the message store where no ScyllaDB runs. Same protocol, same CQL, same driver."""

from __future__ import annotations

import asyncio
import shutil
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from string import Template

from infra.local.checks import PortUse, check_java
from infra.local.process import Command
from infra.local.provision import TEMPLATES, check_maven, ensure_jars, jars_folder
from infra.local.service import Service, Unwell, clean_environment
from infra.local.settings import LOOPBACK, VIEW_NICE, LocalSettings

# The native protocol's frame: version, flags, stream, opcode, length of the body.
FRAME = struct.Struct(">BBhBi")
REQUEST_V4 = 0x04
STARTUP, READY, AUTHENTICATE = 0x01, 0x02, 0x03


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
        return Command(argv, clean_environment(), cwd=self.folder, nice=VIEW_NICE)

    async def probe(self) -> None:
        await greet(self.hosts[0], self.port)


async def greet(host: str, port: int) -> None:
    """Open a CQL session as a client does, up to the server's "ready" or its question for a password.

    Frames of the native protocol, version 4, by hand: the driver would start threads that cannot be cancelled, for a
    server that may not be there yet. Raises OSError or EOFError without a server, Unwell when it answers otherwise.
    """
    reader, writer = await asyncio.open_connection(host, port)
    try:
        options = _string("CQL_VERSION") + _string("3.0.0")
        body = struct.pack(">H", 1) + options
        writer.write(FRAME.pack(REQUEST_V4, 0, 0, STARTUP, len(body)) + body)
        _, _, _, opcode, _ = FRAME.unpack(await reader.readexactly(FRAME.size))
        if opcode not in (READY, AUTHENTICATE):
            raise Unwell(f"answers a CQL greeting with opcode {opcode:#04x}")
    finally:
        writer.close()


def _string(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode()
