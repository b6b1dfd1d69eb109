"""All of Parley on this machine: the services, then the roles, until it is told to end."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from infra.local import roles as catalogue
from infra.local.checks import PortUse
from infra.local.console import Console
from infra.local.problems import StackError
from infra.local.process import describe_exit
from infra.local.roles import Hook, RoleSpec
from infra.local.service import Service, Unwell
from infra.local.settings import DEMO_KEY, LocalSettings
from infra.local.stack import LocalStack
from infra.local.supervisor import Restarts, Supervisor, answers
from parley.errors import ParleyError
from parley.settings import Settings
from parley.stores.demo import ensure_demo

# A service is asked so often whether it still does its work; one miss may be bad luck.
PULSE_EVERY = 2.0
PULSES_MISSED = 2

Announce = Callable[[Console, LocalSettings, Mapping[str, str]], Awaitable[None]]


async def announce(console: Console, settings: LocalSettings, environment: Mapping[str, str]) -> None:
    """Called once, when the edge is ready: tell the person where to go, and with which key."""
    os.environ.update(environment)  # this process has no settings of its own
    key = await ensure_demo(Settings(), settings.data / DEMO_KEY)
    console.say(f"open http://{settings.edge.host}:{settings.edge.port}/#key={key}")
    console.say(f"API key: {key}")


@dataclass(frozen=True)
class Plan:
    """What to run on the services."""

    hooks: Sequence[Hook]
    roles: Sequence[RoleSpec]
    ports: Sequence[PortUse] = ()
    announce: Announce = announce


def whole_system(settings: LocalSettings) -> Plan:
    ports = [PortUse(settings.edge.port, "the edge", "PARLEY_LOCAL_EDGE__PORT")]
    ports += [PortUse(p, f"health of {role}", "PARLEY_LOCAL_HEALTH_PORTS") for role, p in settings.health_ports.items()]
    return Plan(catalogue.hooks(), catalogue.roles(settings), ports)


async def announce_services(console: Console, settings: LocalSettings, _environment: Mapping[str, str]) -> None:
    console.say(f"the services alone; how to reach them: set -a; . {settings.data / 'environment'}")


def services_only(_settings: LocalSettings) -> Plan:
    return Plan((), (), announce=announce_services)


async def up(settings: LocalSettings, plan: Plan | None = None) -> int:
    """Run the services and everything in `plan` (default: the whole system) until SIGINT, SIGTERM or SIGHUP.

    Returns the exit code: 0 when it was told to end, 1 after one sentence on standard error when it could not go on.
    A second signal kills whatever has not ended yet.
    """
    plan = plan or whole_system(settings)
    names = [*settings.engines, "history-messages", *(role.name for role in plan.roles)]
    console = Console(sys.stdout, width=max(map(len, names)))
    stack = LocalStack(settings, console)
    running = Running(stack, plan, console)
    work = asyncio.create_task(running.run(), name="up")
    with told_to_end(lambda: work.cancel(), running.kill) as told:
        try:
            await work
        except asyncio.CancelledError:
            if not told.is_set():
                raise
        except (StackError, ParleyError, OSError) as error:
            await asyncio.sleep(0)
            sys.stdout.flush()
            sys.stderr.write(f"parley: {error}\n")
            return 1
    return 0


class Running:
    """One run of a plan on a stack."""

    def __init__(self, stack: LocalStack, plan: Plan, console: Console) -> None:
        self.stack = stack
        self.plan = plan
        self.console = console
        self.supervisor: Supervisor | None = None
        self._began = time.monotonic()

    async def run(self) -> None:
        """Start all and keep it running until cancelled; ended in any case when this returns. Raises StackError."""
        try:
            await self.stack.check(besides=tuple(self.plan.ports))
            await self._run()
        except ExceptionGroup as errors:
            raise first(errors) from errors
        finally:
            await self.stack.stop()

    async def _run(self) -> None:
        try:
            self.stack.write_environment()
            self.supervisor = Supervisor(self.stack.environment(), self.console)
            async with asyncio.TaskGroup() as group:
                for name in self.stack.services:
                    group.create_task(self._keep_service(name), name=name)
                group.create_task(self._run_roles(self.supervisor), name="roles")
        finally:
            self.console.say("the roles have ended; ending the services")

    async def _run_roles(self, supervisor: Supervisor) -> None:
        await self.stack.tokenizers()
        for hook in self.plan.hooks:
            for need in hook.needs:
                await self.stack.start(need)
            await supervisor.run_hook(hook)
        async with asyncio.TaskGroup() as group:
            group.create_task(supervisor.keep_all(self.plan.roles, self.stack.start))
            group.create_task(self._announce())

    async def _announce(self) -> None:
        for role in self.plan.roles:
            if role.ready_url is not None:
                await answers(role.ready_url)
        for name in self.stack.services:
            await self.stack.start(name)
        self.console.say(f"everything runs after {time.monotonic() - self._began:.1f} s")
        await self.plan.announce(self.console, self.stack.settings, self.stack.environment())

    async def _keep_service(self, name: str) -> None:
        """Start a service, and again whenever it ends by itself."""
        await self.stack.start(name)
        service, restarts = self.stack.services[name], Restarts()
        while service.process is not None:
            began = time.monotonic()
            watching = asyncio.create_task(self._watch(service), name=f"watch {name}")
            try:
                code = await service.process.wait()
            finally:
                watching.cancel()
            reason, lived = f"{service.title} ended with {describe_exit(code)}", time.monotonic() - began
            killed = code == -signal.SIGKILL
            while reason:  # it may end again while it starts
                wait = restarts.after(lived, killed=killed)
                if wait is None:
                    raise StackError(
                        f"{service.title} ended {restarts.limit} times in a row: giving up; see {service.log}."
                    )
                self.console.say(f"{reason}; starting it again in {wait:.1f} s")
                await asyncio.sleep(wait)
                reason, lived, killed = await self._start_again(name), 0.0, False

    async def _start_again(self, name: str) -> str:
        """Why it did not start; empty: it did."""
        try:
            await self.stack.restart(name)
        except StackError as error:
            return str(error).rstrip(".")
        return ""

    async def _watch(self, service: Service) -> None:
        """End a service that runs on and does nothing: it is started again then."""
        unwell = 0
        while unwell < PULSES_MISSED:
            await asyncio.sleep(PULSE_EVERY)
            try:
                await service.pulse()
                unwell = 0
            except Unwell as error:
                unwell += 1
                reason = str(error)
        self.console.say(f"{service.title} runs, but {reason}: ending it")
        service.kill()

    def kill(self) -> None:
        if self.supervisor is not None:
            self.supervisor.kill()
        self.stack.kill()


def first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first plain error in a group of groups: the others follow from it."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


class told_to_end:  # noqa: N801 - reads as the condition it is
    """While entered, the first signal to end calls `gently`, those after it `at_once`; the value tells of the first."""

    SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self, gently: Callable[[], object], at_once: Callable[[], object]) -> None:
        self._gently = gently
        self._at_once = at_once
        self._told = asyncio.Event()

    def __enter__(self) -> asyncio.Event:
        for number in self.SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, self._signalled)
        return self._told

    def __exit__(self, *_: object) -> None:
        for number in self.SIGNALS:
            asyncio.get_running_loop().remove_signal_handler(number)

    def _signalled(self) -> None:
        if self._told.is_set():
            self._at_once()
        else:
            self._told.set()
            self._gently()
