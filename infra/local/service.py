"""A service of the embedded stack: how it is started, known to be well, and ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

import psutil

from infra.local.checks import PortUse
from infra.local.problems import StackError
from infra.local.process import Command, Process, describe_exit, kill_group, lives

# Between two questions whether a starting service is well: short beside any start, long beside any question.
PROBE_EVERY = 0.1
# One question may take this long; a service that accepts a connection and says nothing is not well.
PROBE_TIMEOUT = 10.0
# From SIGTERM to SIGKILL. Cassandra flushes for about 5 s.
STOP_GRACE = 20.0
# A log longer than this is set aside at the next start; one predecessor is kept.
LOG_BYTES = 8 << 20


class Unwell(Exception):
    """The service does not answer as it should, yet."""


async def listens(host: str, port: int) -> None:
    """Raises OSError unless somebody listens. Clients make a noise, or wait long, before a server is there."""
    _, writer = await asyncio.open_connection(host, port)
    writer.close()


class Service(ABC):
    """One server process, or one that runs elsewhere and is only asked how it is.

    `folder` holds what must survive, `log` what the process says.
    """

    name: str
    title: str

    def __init__(self, data: Path, *, external: bool) -> None:
        self.folder = data / self.name
        self.log = data / "logs" / f"{self.name}.log"
        self.external = external
        self.process: Process | None = None
        self._pidfile = data / "run" / self.name

    @property
    @abstractmethod
    def ports(self) -> Sequence[PortUse]:
        """What it listens on when it runs here."""

    def check(self) -> None:  # noqa: B027 - not every service needs more than what is installed
        """Raises StackError when a program is missing that this service needs here."""

    @abstractmethod
    async def prepare(self) -> None:
        """Fetch programs, write configuration, initialise data: everything that is there already stays."""

    @abstractmethod
    def command(self) -> Command: ...

    @abstractmethod
    async def probe(self) -> None:
        """Ask for what clients will ask for. Any exception means that it is not well."""

    async def pulse(self) -> None:  # noqa: B027 - most end when they can't go on, which is noticed without asking
        """Ask, now and then, whether it still does what it is there for. Raises Unwell when it does not."""

    async def settle(self) -> None:  # noqa: B027 - most have nothing left to do
        """What is to be done once it answers."""

    async def start(self, timeout: float) -> None:
        """Start it and return when it is well. Raises StackError when it ends, or is not well in `timeout` seconds."""
        if not self.external:
            for path in (self.folder, self.log.parent, self._pidfile.parent):
                path.mkdir(parents=True, exist_ok=True)
            set_aside(self.log)
            self.process = await Process.start(self.command(), self.log)
            remember(self._pidfile, self.process.pid)
        try:
            await self._until_well(timeout)
            await self.settle()
        except BaseException:
            await self.stop()
            raise

    async def _until_well(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while True:
            try:
                async with asyncio.timeout(PROBE_TIMEOUT):
                    await self.probe()
                return
            except Exception as error:
                reason = f"{type(error).__name__}: {error}".splitlines()[0]
            if self.process is not None and self.process.returncode is not None:
                ended = describe_exit(self.process.returncode)
                raise StackError(f"{self.title} ended with {ended} while starting; {self._last_words()}.")
            if time.monotonic() > deadline:
                where = "elsewhere" if self.external else f"here; {self._last_words()}"
                raise StackError(f"{self.title} did not answer in {timeout:.0f} s ({reason}); it runs {where}.")
            await asyncio.sleep(PROBE_EVERY)

    async def stop(self) -> None:
        """End it, if it was started here, and wait for its end."""
        if self.process is not None:
            process, self.process = self.process, None
            await process.stop(STOP_GRACE)
            self._pidfile.unlink(missing_ok=True)

    def kill(self) -> None:
        """SIGKILL, as a crash would be. `stop` still has to be called."""
        if self.process is not None:
            self.process.kill()

    async def sweep(self) -> None:
        """Wait for what a starter left behind that died, which is ending now, and end it for certain."""
        left = recall(self._pidfile)
        if left is None:
            return
        deadline = time.monotonic() + STOP_GRACE
        while lives(left) and time.monotonic() < deadline:
            await asyncio.sleep(PROBE_EVERY)
        kill_group(left.pid)
        self._pidfile.unlink(missing_ok=True)

    def _last_words(self) -> str:
        with contextlib.suppress(OSError):
            lines = self.log.read_text(errors="replace").strip().splitlines()
            if lines:
                return f'its last words in {self.log}: "{lines[-1].strip()[:300]}"'
        return f"its log is {self.log}"


def set_aside(log: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        if log.stat().st_size > LOG_BYTES:
            log.replace(log.with_suffix(".old.log"))


def remember(pidfile: Path, pid: int) -> None:
    """Process ids come again; together with the start they do not."""
    with contextlib.suppress(psutil.NoSuchProcess):
        pidfile.write_text(f"{pid} {psutil.Process(pid).create_time()}")


def recall(pidfile: Path) -> psutil.Process | None:
    """The process that `remember` wrote down, if that very one still runs."""
    try:
        pid, created = pidfile.read_text().split()
        process = psutil.Process(int(pid))
        return process if process.create_time() == float(created) else None
    except (FileNotFoundError, ValueError, psutil.NoSuchProcess):
        return None


def clean_environment() -> dict[str, str]:
    """This process's environment without what would bend another Python or Java."""
    bending = ("PYTHON", "VIRTUAL_ENV", "JAVA_TOOL_OPTIONS", "CLASSPATH", "_JAVA_OPTIONS", "PARLEY_", "PG")
    return {name: value for name, value in os.environ.items() if not name.startswith(bending)}
