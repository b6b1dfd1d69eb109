"""Keeps roles running: started when what they need is well, started again when they end, all ended together."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

import httpx

from infra.local.console import Console
from infra.local.problems import StackError
from infra.local.process import Process, describe_exit
from infra.local.program import Program, Spare
from infra.local.roles import Hook, RoleSpec

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

    def after(self, lived: float, *, killed: bool = False) -> float | None:
        """Seconds to wait after a run of `lived` seconds; None: give up, `limit` runs in a row were too short.

        One that was `killed` did not fail: somebody else ended it.
        """
        self.failures = 1 if lived >= self.stable else self.failures + 1
        if self.failures >= self.limit and not killed:
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
        self._spares: list[Spare] = []

    async def run_hook(self, hook: Hook) -> None:
        """Run one program to its end. Raises StackError when it fails."""
        code = await self._run(hook.name, await Program.start(hook.name, hook.argv, self._environment, self._console))
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
        spare = Spare(lambda: self._start(role, role.spare)) if role.spare else None
        if spare is not None:
            self._spares.append(spare)
        try:
            await self._keep(role, spare)
        finally:
            if spare is not None:
                await spare.close()

    async def _keep(self, role: RoleSpec, spare: Spare | None) -> None:
        restarts = self._restarts()
        program: Program | None = None
        while True:
            began = time.monotonic()
            code = await self._run(role.name, program or await self._start(role, role.argv))
            wait = restarts.after(time.monotonic() - began, killed=code == -signal.SIGKILL)
            if wait is None and role.nice:
                wait = GIVEN_UP_S
                self._console.say(f"{role.name} keeps ending: the rest goes on without it")
            elif wait is None:
                raise StackError(
                    f"The role {role.name} ended {restarts.limit} times in a row, at last with {describe_exit(code)}: "
                    "giving up; its lines above say why."
                )
            program = spare.take() if spare is not None else None
            if program is not None:
                program.process.tell(role.instance)
                self._console.say(f"{role.name} ended with {describe_exit(code)}; its spare takes its place")
                continue
            self._console.say(f"{role.name} ended with {describe_exit(code)}; starting it again in {wait:.1f} s")
            await asyncio.sleep(wait)

    def kill(self) -> None:
        """SIGKILL to every role and all that belongs to it."""
        for process in self.running.values():
            process.kill()
        for spare in self._spares:
            spare.kill()

    async def _start(self, role: RoleSpec, argv: Sequence[str]) -> Program:
        environment = {**self._environment, **role.env}
        told = argv is role.spare
        return await Program.start(role.name, argv, environment, self._console, nice=role.nice, told=told)

    async def _run(self, name: str, program: Program) -> int:
        """Wait for a program's end, or end it when cancelled."""
        self.running[name] = program.process
        try:
            return await program.ended()
        finally:
            self.running.pop(name, None)


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
