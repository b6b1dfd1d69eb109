"""A role's process: its lines go to the console, and it is gone with all that belongs to it when it has ended."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence

from infra.local.console import Console, Lines
from infra.local.process import Command, Process

# From SIGTERM to SIGKILL: the time a role has to finish what it holds.
ROLE_GRACE = 10.0
# For a process's last lines to arrive after its end.
LAST_LINES = 1.0
# How often it is seen to that a spare waits: a process that starts takes the processor from one that takes over.
SPARE_EVERY = 3.0


class Program:
    """A running program under a name."""

    def __init__(self, name: str, process: Process, console: Console) -> None:
        self.process = process
        self._relay = asyncio.create_task(_relay(name, process, console))

    @classmethod
    async def start(
        cls,
        name: str,
        argv: Sequence[str],
        environment: Mapping[str, str],
        console: Console,
        *,
        nice: int = 0,
        told: bool = False,
    ) -> Program:
        """Start it; `told`: it has a standard input."""
        # A role may be killed at any time, so when this process is killed it simply goes too.
        command = Command(argv, environment, nice=nice, told=told, death_signal=signal.SIGKILL)
        return cls(name, await Process.start(command), console)

    async def ended(self) -> int:
        """Wait for its end, or end it when cancelled; its lines are on the console up to the last one."""
        try:
            return await self.process.wait()
        finally:
            await self.process.stop(ROLE_GRACE)
            # Everything that could still write has been killed: what is in the pipe is all there is.
            await asyncio.wait([self._relay], timeout=LAST_LINES)
            self._relay.cancel()


class Spare:
    """Sees to it that a program waits to take the place of one that ends."""

    def __init__(self, start: Callable[[], Awaitable[Program]]) -> None:
        self._start = start
        self._waiting: Program | None = None
        self._task = asyncio.create_task(self._keep(), name="spare")

    def take(self) -> Program | None:
        """The one that waits, if there is one that lives; it is the caller's now."""
        program, self._waiting = self._waiting, None
        return program if program is not None and program.process.returncode is None else None

    def kill(self) -> None:
        """SIGKILL."""
        if self._waiting is not None:
            self._waiting.process.kill()

    async def close(self) -> None:
        """End the one that waits."""
        self._task.cancel()
        await asyncio.wait([self._task])
        if (program := self.take()) is not None:
            program.process.kill()
            await program.ended()

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(SPARE_EVERY)
            if self._waiting is None or self._waiting.process.returncode is not None:
                self._waiting = await self._start()


async def _relay(name: str, process: Process, console: Console) -> None:
    assert process.stdout is not None
    lines = Lines()
    while data := await process.stdout.read(1 << 16):
        for line in lines.feed(data):
            console.write(name, line)
    for line in lines.end():
        console.write(name, line)
