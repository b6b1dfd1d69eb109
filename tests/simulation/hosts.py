"""Processes of roles, and who starts them again: as `parley up` or an orchestrator of containers would."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import consumers.moderation.main
import consumers.orchestrator.main
import inference_workers.main
from parley.settings import Settings
from tests.simulation.cluster import Cluster
from tests.simulation.loop import Process

Run = Callable[[Settings], Coroutine[Any, Any, None]]

ROLES: dict[str, Run] = {
    "orchestrator-0": consumers.orchestrator.main.run,
    "orchestrator-1": consumers.orchestrator.main.run,
    "worker-0": lambda settings: inference_workers.main.run(settings, "synthetic", 0),
    "worker-1": lambda settings: inference_workers.main.run(settings, "synthetic", 1),
    "moderation-0": consumers.moderation.main.run,
}


@dataclass(slots=True, eq=False)
class Life:
    """One process of a host."""

    process: Process
    main: asyncio.Task[None]


class Host:
    """A name that always has a process, sooner or later; sometimes two."""

    def __init__(self, cluster: Cluster, name: str, settings: Settings, trace: Callable[[str], None]) -> None:
        self.name = name
        self.lives: list[Life] = []
        self.wanted = True
        self.skew_s = 0.0
        self._cluster = cluster
        self._settings = settings.model_copy(update={"instance": name})
        self._trace = trace
        self._born = 0
        self.exits: list[str] = []

    @property
    def newest(self) -> Life | None:
        return self.lives[-1] if self.lives else None

    def start(self) -> None:
        """One more process, whatever the others do."""
        if not self.wanted:
            return
        self._born += 1
        process = Process(f"{self.name}/{self._born}", self.skew_s)
        main = self._cluster.loop.spawn(process, ROLES[self.name](self._settings), "main")
        life = Life(process, main)
        self.lives.append(life)
        self._trace(f"{process.name} starts")
        main.add_done_callback(lambda done: self._ended(life, done))

    def _ended(self, life: Life, main: asyncio.Task[None]) -> None:
        if life.process.dead:
            return
        error = None if main.cancelled() else main.exception()
        self._trace(f"{life.process.name} exits: {error!r}")
        self.exits.append(f"{life.process.name}: {error!r}")
        if error is not None:  # as parley.process does: at once, without clearing up
            self.bury(life)
            self._cluster.loop.outside(0.1 + 0.4 * self._cluster.rng.random(), self._again, life)

    def _again(self, life: Life) -> None:
        if all(other.process.dead or other is life for other in self.lives):
            self.start()

    def bury(self, life: Life) -> None:
        """SIGKILL."""
        self._cluster.loop.kill(life.process)
        if life in self.lives:
            self.lives.remove(life)

    def kill(self, after_s: float) -> None:
        """SIGKILL to what there is; another one starts."""
        for life in list(self.lives):
            self._trace(f"{life.process.name} is killed")
            self.bury(life)
        self._cluster.loop.outside(after_s, self._if_none)

    def _if_none(self) -> None:
        if not self.lives:
            self.start()

    def terminate(self) -> None:
        """SIGTERM."""
        for life in list(self.lives):
            if (handler := life.process.signals.get(signal.SIGTERM)) is not None:
                self._cluster.loop.inside(life.process, 0.0, handler)
            else:  # it has not come to handling signals
                self.bury(life)

    def restart(self) -> None:
        """A planned one: SIGTERM, and a new process when the old one has ended, or is killed for being slow."""
        life = self.newest
        if life is None or life.process.stopped or life.process.cut:
            return
        self._trace(f"{life.process.name} is told to end")
        self.terminate()
        life.main.add_done_callback(lambda done: self._cluster.loop.outside(0.1, self._replace, life))
        self._cluster.loop.outside(8.0, self._replace, life)

    def _replace(self, life: Life) -> None:
        if life in self.lives:
            self.bury(life)
            self._if_none()

    def freeze(self, for_s: float, successor_after_s: float | None) -> None:
        """SIGSTOP, SIGCONT later; perhaps another process takes the name meanwhile."""
        life = self.newest
        if life is None or life.process.stopped:
            return
        loop = self._cluster.loop
        self._trace(f"{life.process.name} is stopped for {for_s:.1f} s")
        loop.stop_process(life.process)
        loop.outside(for_s, self._thaw, life)
        if successor_after_s is not None:
            loop.outside(successor_after_s, self.start)

    def _thaw(self, life: Life) -> None:
        if life.process.stopped and not life.process.dead:
            self._trace(f"{life.process.name} goes on")
            self._cluster.loop.resume_process(life.process)
            self._beat(life)

    def straggle(self, lag_s: float, successor_after_s: float) -> None:
        """What it sends takes seconds; then it is stopped, and its successor works before all of it has landed."""
        life = self.newest
        if life is None or life.process.stopped:
            return
        self._trace(f"{life.process.name} lags by up to {lag_s:.1f} s")
        life.process.lag_s = lag_s
        self._cluster.loop.outside(0.5 * self._cluster.rng.random(), self._stop, life, lag_s, successor_after_s)

    def _stop(self, life: Life, for_s: float, successor_after_s: float) -> None:
        life.process.lag_s = 0.0
        if life is self.newest:
            self.freeze(for_s, successor_after_s)

    def cut(self, for_s: float) -> None:
        """No packet passes between it and any broker."""
        life = self.newest
        if life is None or life.process.cut:
            return
        self._trace(f"{life.process.name} is cut off for {for_s:.1f} s")
        life.process.cut = True
        self._cluster.loop.outside(for_s, self._mend, life)

    def _mend(self, life: Life) -> None:
        if life.process.cut:
            self._trace(f"{life.process.name} is heard again")
            life.process.cut = False
            for consumer in {consumer: None for watch in self._cluster.watchers.values() for consumer in watch}:
                if consumer.process is life.process:
                    self._cluster.loop.inside(life.process, 0.01, consumer._wake)
            self._beat(life)

    def _beat(self, life: Life) -> None:
        for member in list(life.process.members):
            self._cluster.loop.inside(life.process, 0.3 * self._cluster.rng.random(), member.beat)

    def heal(self) -> None:
        """Everything runs, nothing is cut off, one process has the name."""
        for life in list(self.lives):
            life.process.lag_s = 0.0
            self._mend(life)
            self._thaw(life)
        self._if_none()
