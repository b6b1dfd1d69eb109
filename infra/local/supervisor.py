"""Keeps roles running: started when what they need is well, started again when they end, all ended together."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

import httpx

from infra.local.console import Console, Lines
from infra.local.problems import StackError
from infra.local.process import Command, Process, describe_exit
from infra.local.roles import Hook, RoleSpec

# From SIGTERM to SIGKILL: the time a role has to finish what it holds.
ROLE_GRACE = 10.0
# For a process's last lines to arrive after its end.
LAST_LINES = 1.0
# Between attempts at a role that keeps ending and that the others can do without.
GIVEN_UP_S = 30.0
READY_EVERY = 0.1


@dataclass
class Restarts:
    """How long to wait before a start, and when to give up. A run of `stable` seconds makes good all failures before.

    The first wait is short because a restarted static member takes its partitions up again where they were, unseen.
    """

    first: float = 0.1
    longest: float = 5.0
    stable: float = 10.0
    limit: int = 8
    failures: int = 0

    def after(self, lived: float) -> float | None:
        """Seconds to wait after a run of `lived` seconds; None: give up, `limit` runs in a row were too short."""
        self.failures = 1 if lived >= self.stable else self.failures + 1
        if self.failures >= self.limit:
            return None
        return min(self.first * 2.0 ** (self.failures - 1), self.longest)


class Supervisor:
    """Runs hooks and roles with `environment` added to this process's own; each role has its own `restarts`."""

    def __init__(
        self, environment: Mapping[str, str], console: Console, restarts: Callable[[], Restarts] = Restarts
    ) -> None:
        self._environment = {**os.environ, **environment, "PYTHONUNBUFFERED": "1"}
        self._console = console
        self._restarts = restarts
        self.running: dict[str, Process] = {}

    async def run_hook(self, hook: Hook) -> None:
        """Run one program to its end. Raises StackError when it fails."""
        code = await self._run(hook.name, hook.argv, {})
        if code != 0:
            command = " ".join(hook.argv[1:])
            raise StackError(f"`{command}` failed ({describe_exit(code)}); its lines above say why.")

    async def keep_all(self, roles: Sequence[RoleSpec], ready: Callable[[str], Awaitable[None]]) -> None:
        """Keep all roles running until cancelled; `ready(service)` returns when that service is well.

        Cancelling ends all of them at once. Raises StackError when one of them cannot be kept running.
        """
        async with asyncio.TaskGroup() as group:
            for role in roles:
                group.create_task(self.keep(role, ready), name=role.name)

    async def keep(self, role: RoleSpec, ready: Callable[[str], Awaitable[None]]) -> None:
        """Keep one role running until cancelled. Raises StackError when it keeps ending right after its start."""
        for need in role.needs:
            await ready(need)
        restarts = self._restarts()
        while True:
            began = time.monotonic()
            code = await self._run(role.name, role.argv, role.env, role.nice)
            wait = restarts.after(time.monotonic() - began)
            if wait is None and role.nice:
                wait = GIVEN_UP_S
                self._console.say(f"{role.name} keeps ending: the rest goes on without it")
            elif wait is None:
                raise StackError(
                    f"The role {role.name} ended {restarts.limit} times in a row, at last with {describe_exit(code)}: "
                    "giving up; its lines above say why."
                )
            self._console.say(f"{role.name} ended with {describe_exit(code)}; starting it again in {wait:.1f} s")
            await asyncio.sleep(wait)

    def kill(self) -> None:
        """SIGKILL to every role and all that belongs to it."""
        for process in self.running.values():
            process.kill()

    async def _run(self, name: str, argv: Sequence[str], env: Mapping[str, str], nice: int = 0) -> int:
        """Run a program until it ends, or end it when cancelled; its lines go to the console up to the last one."""
        # A role may be killed at any time, so when this process is killed it simply goes too.
        command = Command(argv, {**self._environment, **env}, nice=nice, death_signal=signal.SIGKILL)
        process = await Process.start(command)
        self.running[name] = process
        relay = asyncio.create_task(self._relay(name, process))
        try:
            return await process.wait()
        finally:
            await process.stop(ROLE_GRACE)
            self.running.pop(name, None)
            # Everything that could still write has been killed: what is in the pipe is all there is.
            await asyncio.wait([relay], timeout=LAST_LINES)
            relay.cancel()

    async def _relay(self, name: str, process: Process) -> None:
        assert process.stdout is not None
        lines = Lines()
        while data := await process.stdout.read(1 << 16):
            for line in lines.feed(data):
                self._console.write(name, line)
        for line in lines.end():
            self._console.write(name, line)


async def answers(url: str) -> None:
    """Return when `url` answers 200."""
    async with httpx.AsyncClient(timeout=2.0) as client:
        while True:
            try:
                if (await client.get(url)).status_code == httpx.codes.OK:
                    return
            except httpx.HTTPError:
                pass
            await asyncio.sleep(READY_EVERY)
