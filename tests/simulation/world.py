"""One schedule: users talk, things go wrong for a while, then all must heal."""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from aiokafka import TopicPartition

from parley.safety.classifier import Classifier
from parley.safety.policy import Policy
from tests.simulation import checks
from tests.simulation.clients import World
from tests.simulation.cluster import Cluster, Trouble
from tests.simulation.coordinator import Coordinators
from tests.simulation.engine import Engine, SimEngineClient
from tests.simulation.hosts import ROLES, Host
from tests.simulation.install import ENGINES, base_settings
from tests.simulation.journal import Journal, short
from tests.simulation.loop import Deadlock, Process, SimLoop, Spinning
from tests.simulation.plan import Plan, plan_of
from tests.simulation.store import VIEW, History, SimStore
from tests.simulation.users import Users

Trace = Callable[[float, object], None]
HEALING_S = 60.0
"""Virtual time within which all must be well once nothing goes wrong any more."""
STOPPING_S = 15.0
PATIENCE_S = 15.0


@dataclass(slots=True)
class Outcome:
    """What came of a seed."""

    name: str
    problems: list[str] = field(default_factory=list)
    turns: int = 0
    ends: dict[str, int] = field(default_factory=dict)
    virtual_s: float = 0.0
    healed_s: float = 0.0
    steps: int = 0


class Simulation:
    """The system of one seed."""

    def __init__(self, plan: Plan, scratch: Path, trace: Trace) -> None:
        random.seed(plan.seed)
        rng = random.Random(plan.seed)
        self.plan = plan
        self.outcome = Outcome(plan.name)
        self.loop = SimLoop(random.Random(rng.random()))
        self._trace = trace
        settings = base_settings(scratch)
        settings = settings.model_copy(
            update={
                "protocol": settings.protocol.model_copy(update=plan.protocol),
                "orchestrator": settings.orchestrator.model_copy(update={"sessions_mb": plan.sessions_mb}),
            }
        )
        self.settings = settings
        topics = {topic.name: topic.partitions for topic in settings.topics.topics.values()}
        self.cluster = World.cluster = Cluster(self.loop, rng, topics)
        self.coordinators = World.coordinators = Coordinators(self.cluster)
        SimStore.history = History(self.cluster, self.coordinators)
        self.journal = Journal()
        self.commits = checks.Commits(self.cluster, self.journal, settings.protocol.max_turn_age_s)
        self.cluster.on_append = self._appended
        self.coordinators.on_commit = self._committed
        self.engines = {name: Engine(self.cluster, name) for name in ENGINES}
        SimEngineClient.engines = self.engines
        self.hosts = {name: Host(self.cluster, name, settings, self.say) for name in ROLES}
        for host in self.hosts.values():
            host.skew_s = rng.uniform(-1, 1) * plan.skew_s
        self.users = Users(self.cluster, self.journal, settings, plan, rng)
        plan.script(self)

    def say(self, text: str) -> None:
        self._trace(self.loop.time(), text)

    def _appended(self, record: object) -> None:
        self.journal.note(record)  # type: ignore[arg-type]
        self._trace(self.loop.time(), record)  # type: ignore[arg-type]

    def _committed(self, group: str, where: TopicPartition, committed: object) -> None:
        self.commits.check(group, where, committed)  # type: ignore[arg-type]
        self._trace(self.loop.time(), f"commit {group} {where.topic}-{where.partition} {committed}")

    # -- running ----------------------------------------------------------------------------------------------------

    def run(self) -> Outcome:
        outcome = self.outcome
        director = Process("director")
        try:
            task = self.loop.spawn(director, self._direct(), "director")
            self.loop.run_until_complete(task)
        except (Deadlock, Spinning) as error:
            outcome.problems.append(repr(error))
        outcome.virtual_s, outcome.steps = self.loop.time(), self.loop.steps
        outcome.turns = len(self.journal.turns)
        for turn in self.journal.turns.values():
            terminal = turn.transcript.terminal
            kind = "duplicate" if turn.dead else terminal.kind if terminal else "expired" if turn.expired else "none"
            if terminal is not None and terminal.failure is not None:
                kind += f" {terminal.failure.code}"
            outcome.ends[kind] = outcome.ends.get(kind, 0) + 1
        outcome.problems += self.journal.problems + self.commits.problems
        for engine in self.engines.values():
            outcome.problems += engine.problems
        outcome.problems += checks.outcomes(
            self.journal,
            Classifier.load(self.settings.moderation.model),
            Policy.load(self.settings.moderation.policy),
        )
        outcome.problems += self.loop.failures
        self.loop.end()
        return outcome

    async def _direct(self) -> None:
        plan, loop = self.plan, self.loop
        for host in self.hosts.values():
            loop.outside(plan.start_s * self.cluster.rng.random(), host.start)
        self.cluster.trouble = plan.trouble
        for at, act in plan.acts(self):
            loop.outside(at, act)
        users = asyncio.create_task(self.users.run(), name="users")
        await asyncio.sleep(plan.trouble_s)
        self._heal()
        await users
        since = loop.time()
        while (waits := self._restless()) and loop.time() < since + HEALING_S + plan.patience_s:
            await asyncio.sleep(0.25)
        self.outcome.healed_s = loop.time() - since
        self.outcome.problems += [f"not healed after {HEALING_S:g} s: {wait}" for wait in waits]
        await self._shut_down()

    def _heal(self) -> None:
        self.say("nothing goes wrong any more")
        self.cluster.trouble = Trouble()
        self.coordinators.confused_until = 0.0
        for engine in self.engines.values():
            engine.down = False
        for host in self.hosts.values():
            host.heal()

    def _restless(self) -> list[str]:
        """What has not come to rest."""
        waits = [
            f"{short(response)} is open: terminal {turn.transcript.terminal is not None}, "
            f"{len(turn.starts)} starts, {len(turn.ends)} ends"
            for response, turn in self.journal.turns.items()
            if turn.open
        ]
        for name, group in self.coordinators.groups.items():
            for where, partition in self.cluster.partitions.items():
                if not self._reads(name, where):
                    continue
                committed = group.offsets.get(where)
                if committed is None or committed.offset < partition.end:
                    waits.append(f"{name} has {where.topic}-{where.partition} at {committed}, end {partition.end}")
        waits += [f"{engine.name} runs {runs}" for engine in self.engines.values() if (runs := engine.alive())]
        return waits

    @staticmethod
    def _reads(group: str, where: TopicPartition) -> bool:
        if group == VIEW:
            return False
        if group.startswith("worker-"):
            return where.topic.startswith(f"chat.inference.{group.removeprefix('worker-')}.")
        return where.topic == "chat.prompts"

    async def _shut_down(self) -> None:
        """Every process ends when it is asked to, and leaves nothing that still runs."""
        for host in self.hosts.values():
            host.wanted = False
        for _ in range(round(PATIENCE_S)):  # a lost holder may still wait for an answer that never comes
            await asyncio.sleep(1.0)
            if not (busy := self._busy()):
                break
        self.outcome.problems += busy
        for host in self.hosts.values():
            host.terminate()
        mains = [life.main for host in self.hosts.values() for life in host.lives]
        if mains:
            await asyncio.wait(mains, timeout=STOPPING_S)
        for host in self.hosts.values():
            for life in host.lives:
                if not life.main.done():
                    self.outcome.problems.append(f"{life.process.name} does not end")
        self.outcome.problems += self._busy()

    def _busy(self) -> list[str]:
        """Tasks of turns and sessions that run on."""
        return [
            f"{life.process.name} still has {task.get_name()}"
            for host in self.hosts.values()
            for life in host.lives
            for task in self.loop.tasks_of(life.process)
            if task.get_name().partition("-")[0] in TURN_TASKS
        ]


TURN_TASKS = {"turn", "session", "opened", "aside", "duplicate", "verdict", "give", "arrivals"}


def run_seed(seed: int, scratch: Path, trace: Trace = lambda at, what: None) -> Outcome:
    """One schedule, from its seed alone."""
    return run_plan(plan_of(seed), scratch, trace)


def run_plan(plan: Plan, scratch: Path, trace: Trace = lambda at, what: None) -> Outcome:
    """One schedule."""
    outcome = Simulation(plan, scratch, trace).run()
    gc.collect()
    return outcome
