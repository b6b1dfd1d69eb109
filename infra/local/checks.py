"""What can be known before anything starts: tools, free space, free ports, and whether Parley runs here already."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import re
import shutil
import socket
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from infra.local.problems import StackError
from infra.local.settings import LOOPBACK

JAVA_AT_LEAST = 17

# Above the well-known ports, below Linux's range for outgoing connections.
FREE_PORTS = range(20_000, 32_000)


@dataclass(frozen=True)
class PortUse:
    """A port that something here is going to listen on, and the setting that moves it."""

    port: int
    purpose: str
    setting: str


def check_ports(uses: Iterable[PortUse]) -> None:
    """Raises StackError naming the first port that is taken and, where the system tells, by whom."""
    for use in uses:
        if not is_free(use.port):
            raise StackError(
                f"Port {use.port} ({use.purpose}) is taken by {listener(use.port)}: end that, or set {use.setting}."
            )


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        # Connections of an earlier run that the kernel has not forgotten yet do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def listener(port: int) -> str:
    """Who listens on `port`: "java (process 4711)", or "another program" where that may not be known."""
    with contextlib.suppress(psutil.Error):
        for connection in psutil.net_connections("tcp"):
            if connection.laddr and connection.laddr.port == port and connection.status == psutil.CONN_LISTEN:
                if connection.pid is None:
                    break
                return f"{psutil.Process(connection.pid).name()} (process {connection.pid})"
    return "another program"


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now. They stay free only as long as nobody else picks them."""
    chosen: list[int] = []
    for port in random.sample(FREE_PORTS, len(FREE_PORTS)):
        if is_free(port):
            chosen.append(port)
        if len(chosen) == count:
            return chosen
    raise StackError(f"No {count} free ports between {FREE_PORTS.start} and {FREE_PORTS.stop}.")


def check_space(folder: Path, minimum: int) -> None:
    """Raises StackError when the disk under `folder` has less than `minimum` bytes left."""
    free = shutil.disk_usage(folder).free
    if free < minimum:
        raise StackError(
            f"Only {free / 2**30:.1f} GiB are free in {folder} and Parley needs {minimum / 2**30:.1f}: "
            "free some, or set PARLEY_LOCAL_DATA to a folder on another disk."
        )


def check_java() -> None:
    """Raises StackError without a Java of at least JAVA_AT_LEAST on the path."""
    check_tool("java", f"install a Java runtime, version {JAVA_AT_LEAST} or newer")
    answer = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False)
    version = java_version(answer.stderr)
    if version is None or version < JAVA_AT_LEAST:
        found = "an unknown version" if version is None else f"version {version}"
        raise StackError(f"The `java` on the path is {found}: Kafka and Cassandra need {JAVA_AT_LEAST} or newer.")


def java_version(answer: str) -> int | None:
    """The major version in what `java -version` prints ("1.8.0_292" is 8), or None."""
    match = re.search(r'version "(?:1\.)?(\d+)', answer)
    return int(match.group(1)) if match else None


def check_tool(program: str, advice: str) -> None:
    if shutil.which(program) is None:
        raise StackError(f"`{program}` is missing: {advice}.")


@contextlib.contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Hold `folder` for this process alone; the kernel lets go of it when the process ends, however it ends.

    Raises StackError naming the process that holds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "unknown"
            raise StackError(
                f"Parley already runs on {folder} (process {holder}): end that, or set PARLEY_LOCAL_DATA."
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
