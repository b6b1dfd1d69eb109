"""Finding the processes of a running system: for measurements, and for tests that end one of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import psutil


def role_pid(kafka_port: int, *role: str) -> int:
    """The process of a role (what follows `-m parley`) of the system whose Kafka listens on a port; not its spare.

    Raises:
        LookupError: none runs.
    """
    for pid, arguments, name in _roles(kafka_port):
        # A spare that has taken the place of one that ended calls itself so.
        if arguments == [*role] or (arguments == [*role, "--spare"] and name == "parley"):
            return pid
    raise LookupError(f"no process of {' '.join(role)} runs")


def spare_pid(kafka_port: int, *role: str) -> int:
    """The process that waits to take a role's place, loaded.

    Raises:
        LookupError: none does.
    """
    for pid, arguments, name in _roles(kafka_port):
        if arguments == [*role, "--spare"] and name == "parley-spare":
            return pid
    raise LookupError(f"no spare of {' '.join(role)} waits")


def _roles(kafka_port: int) -> Iterator[tuple[int, list[str], str]]:
    """Of each process of the system: its id, what follows `-m parley`, and what it calls itself."""
    mark = f"PARLEY_KAFKA__BOOTSTRAP=127.0.0.1:{kafka_port}".encode()
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile, or is somebody else's
            arguments = (path / "cmdline").read_bytes().decode().rstrip("\0").split("\0")[1:]
            if arguments[:2] == ["-m", "parley"] and mark in (path / "environ").read_bytes().split(b"\0"):
                yield int(path.name), arguments[2:], (path / "comm").read_text().strip()


def model_pid(grpc_port: int) -> int:
    """The process of a model of the engine that listens on a port: Triton's stub, of which there is one a model.

    Raises:
        LookupError: none runs.
    """
    engine = listener_pid(grpc_port)
    for child in psutil.Process(engine).children(recursive=True):
        if Path(child.exe()).name == "triton_python_backend_stub":
            return int(child.pid)
    raise LookupError(f"the engine on {grpc_port} has no model process")


def listener_pid(port: int) -> int:
    """The process that listens on a port of loopback.

    Raises:
        LookupError: none does.
    """
    inodes = set()
    for table in ("tcp", "tcp6"):
        for line in (Path("/proc/net") / table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and int(fields[1].rsplit(":", 1)[1], 16) == port:
                inodes.add(f"socket:[{fields[9]}]")
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if any(str(fd.readlink()) in inodes for fd in (process / "fd").iterdir()):
                return int(process.name)
        except OSError:
            continue
    raise LookupError(f"nothing listens on {port}")
