"""What is done to the system, and in which order. One thing at a time: the next waits for its turn, not for recovery.

Brokers are the exception: two of three may not be away at once (that nothing is promised then is said in the docs), so
a broker is touched only when all of them run and every partition is on all.
"""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from tests.chaos.gaps import Struck
from tests.chaos.system import System

ZOMBIE_S = 5.0
"""Longer than a session of a group (3 s): the process is given up, and comes back to find its work taken."""
CUT_S = 5.0
RESTART_PAUSE_S = 1.0
"""Between one process of a rolling restart, ready again, and the next."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that can be done."""

    kind: str
    strike: Callable[[], Awaitable[bool]]
    """Does it, and undoes what must be undone. False: there was nothing to do it to."""
    weight: float
    kills: bool = True
    store: bool = False
    """It is about a broker or a store: a run has few of these, each costs a start of a Java program."""


@dataclass
class Chaos:
    """Faults against one system."""

    system: System
    seed: int
    struck: list[Struck] = field(default_factory=list)
    kills: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._dice = random.Random(self.seed)

    @property
    def done(self) -> Counter[str]:
        """How often each kind was done."""
        return Counter(fault.kind for fault in self.struck)

    def faults(self) -> list[Fault]:
        """All that can be done to this system."""
        found = []
        for name, member in self.system.members.items():
            view = member.kind.startswith(("history", "usage"))
            weight = 0.5 if view else 1.0
            found.append(Fault(f"SIGKILL {member.kind}", self._killing(name), weight))
            found.append(Fault(f"SIGSTOP {member.kind}", self._freezing(name), weight * 0.4, kills=False))
        for engine in self.system.stack.engines:
            found.append(Fault("SIGKILL Triton", self._killing_service(f"triton-{engine}"), 0.4))
            found.append(Fault("SIGKILL Triton's model", self._killing_model(engine), 0.4))
        for number, broker in enumerate(self.system.stack.brokers):
            found.append(Fault("SIGKILL Kafka node", self._killing_broker(broker.name), 0.35, store=True))
            found.append(Fault("network cut", self._cutting(number), 0.25, kills=False))
            found.append(Fault("connections reset", self._resetting(number), 0.25, kills=False))
        found.append(Fault("SIGKILL message store", self._killing_service("cassandra"), 0.35, store=True))
        found.append(Fault("SIGKILL PostgreSQL", self._killing_service("postgres"), 0.35, store=True))
        return found

    async def run(self, seconds: float, every_s: float, stores: int) -> None:
        """Each kind once, then at random, one about every `every_s` seconds; at most `stores` of brokers and stores."""
        ends = time.monotonic() + seconds
        first = self._each_once()
        while first or time.monotonic() < ends:
            self.system.check()
            spent = sum(self.kills[fault.kind] for fault in {f.kind: f for f in self.faults() if f.store}.values())
            possible = [fault for fault in self.faults() if spent < stores or not fault.store]
            fault = first.pop() if first else self._dice.choices(possible, [each.weight for each in possible])[0]
            began = time.monotonic()
            await self.strike(fault)
            await asyncio.sleep(max(0.0, every_s * self._dice.uniform(0.7, 1.3) - (time.monotonic() - began)))

    async def strike(self, fault: Fault) -> None:
        """Do it, and note when."""
        mark = len(self.struck)
        self.struck.append(Struck(fault.kind, time.monotonic()))
        if not await fault.strike():
            del self.struck[mark]
        elif fault.kills:
            self.kills[fault.kind] += 1

    async def rolling_restart(self, kinds: Sequence[str] = ()) -> None:
        """SIGTERM to every role's process, one after the other, each when the one before is ready again."""
        for name, member in self.system.members.items():
            if kinds and member.kind not in kinds:
                continue
            process = self.system.process(name)
            self.struck.append(Struck(f"restart {member.kind}", time.monotonic()))
            self.system.signal(name, signal.SIGTERM)
            if process is not None:
                await process.wait()
            await asyncio.sleep(RESTART_PAUSE_S)
            await self.system.until_ready(name)

    def _each_once(self) -> list[Fault]:
        """One of each kind, in random order: a short run has done all of them."""
        kinds = {fault.kind: fault for fault in self._dice.sample(self.faults(), len(self.faults()))}
        return list(kinds.values())

    def _killing(self, name: str) -> Callable[[], Awaitable[bool]]:
        async def strike() -> bool:
            return self.system.signal(name, signal.SIGKILL)

        return strike

    def _freezing(self, name: str) -> Callable[[], Awaitable[bool]]:
        async def strike() -> bool:
            process = self.system.process(name)
            if process is None or not self.system.signal(name, signal.SIGSTOP):
                return False
            try:
                await asyncio.sleep(ZOMBIE_S)
            finally:
                process.send(signal.SIGCONT)
            return True

        return strike

    def _killing_service(self, name: str) -> Callable[[], Awaitable[bool]]:
        async def strike() -> bool:
            service = self.system.service(name)
            if service.process is None or service.process.returncode is not None:
                return False
            service.kill()
            return True

        return strike

    def _killing_model(self, engine: str) -> Callable[[], Awaitable[bool]]:
        async def strike() -> bool:
            return self.system.kill_model(engine)

        return strike

    def _killing_broker(self, name: str) -> Callable[[], Awaitable[bool]]:
        async def strike() -> bool:
            await self._all_brokers()
            self.system.service(name).kill()
            return True

        return strike

    def _cutting(self, number: int) -> Callable[[], Awaitable[bool]]:
        """The second of each role hears nothing of one broker for some seconds; then the connections are gone."""

        async def strike() -> bool:
            await self._all_brokers()
            proxy = self.system.proxies[number]
            proxy.silence()
            try:
                await asyncio.sleep(CUT_S)
            finally:
                proxy.reset()
                proxy.mend()
            return True

        return strike

    def _resetting(self, number: int) -> Callable[[], Awaitable[bool]]:
        async def strike() -> bool:
            self.system.proxies[number].reset()
            return True

        return strike

    async def _all_brokers(self) -> None:
        """Wait for all of them; the time of the fault is when it strikes, not when it was decided."""
        await self.system.until_in_sync()
        self.struck[-1] = Struck(self.struck[-1].kind, time.monotonic())
