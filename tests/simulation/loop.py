"""An event loop for a whole system: virtual time, and processes that can be stopped, resumed and killed.

Every callback belongs to the process in whose context it was scheduled. Callbacks of one process run in the order in
which asyncio promises; between processes the order is drawn from the seed. A killed process runs nothing more, not
even its `finally`; a stopped one finds on waking that its timers have passed.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

SAME_MOMENT = 50_000
"""Callbacks at one moment of virtual time; more mean that something spins."""


class Spinning(Exception):
    """Work without end at one moment of virtual time."""


class Deadlock(Exception):
    """Nothing is left that could ever run."""


class Process:
    """What lives and dies together."""

    def __init__(self, name: str, skew_s: float = 0.0) -> None:
        self.name = name
        self.skew_s = skew_s
        """How far its clock is ahead of the brokers'."""
        self.ready: deque[asyncio.Handle] = deque()
        self.listed = False
        self.stopped = False
        self.dead = False
        self.cut = False
        """No broker hears of it, and it hears of none."""
        self.members: list[Any] = []
        """Its places in consumer groups."""
        self.lag_s = 0.0
        """What it sends takes up to so much longer."""
        self.signals: dict[int, Callable[[], object]] = {}
        self.context = contextvars.copy_context()
        self.context.run(PROCESS.set, self)

    def __repr__(self) -> str:
        return f"<{self.name}>"


PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


def current() -> Process:
    """The process whose code runs."""
    process = PROCESS.get()
    assert process is not None
    return process


_numbers = itertools.count()


class SimTask(asyncio.Task[Any]):
    """A task whose place in a set does not depend on where it lies in memory."""

    number: int
    process: Process | None

    def __new__(cls, *args: Any, **more: Any) -> SimTask:
        task = super().__new__(cls)
        task.number = next(_numbers)
        task.process = PROCESS.get()
        return task

    def __hash__(self) -> int:
        return self.number


class SimFuture(asyncio.Future[Any]):
    """As SimTask."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.number = next(_numbers)
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self.number


class _Ready:
    """Where asyncio puts what is to run: a queue for each process."""

    def __init__(self, rng: random.Random) -> None:
        self._random = rng.random
        self.outside = Process("outside")
        self.runnable: list[Process] = []
        self.closed = False

    def append(self, handle: asyncio.Handle) -> None:
        process = handle._context.get(PROCESS) or self.outside  # type: ignore[attr-defined]
        if process.dead or self.closed:
            return
        process.ready.append(handle)
        self.offer(process)

    def offer(self, process: Process) -> None:
        """Let a process be chosen, if there is something to run in it."""
        if process.ready and not (process.listed or process.stopped):
            process.listed = True
            self.runnable.append(process)

    def pop(self) -> asyncio.Handle | None:
        """The next callback of some process, or None if that process can't run."""
        at = int(self._random() * len(self.runnable))
        process = self.runnable[at]
        handle = process.ready.popleft() if process.ready and not process.stopped else None
        if process.stopped or not process.ready:
            process.listed = False
            self.runnable[at] = self.runnable[-1]
            self.runnable.pop()
        return handle

    def clear(self) -> None:
        self.runnable.clear()


class SimLoop(asyncio.BaseEventLoop):
    """Runs one schedule."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self._now = 0.0
        self._clock_resolution = 1e-9
        self._ready = self.queues = _Ready(rng)
        self.steps = 0
        self._graveyard: list[SimTask] = []
        self.failures: list[str] = []
        """What asyncio would have logged."""
        self.set_task_factory(lambda loop, coro, **more: SimTask(coro, loop=loop, **more))  # type: ignore[arg-type]
        self.set_exception_handler(lambda loop, about: self._note(about))

    def time(self) -> float:
        return self._now

    def create_future(self) -> SimFuture:
        return SimFuture(self)

    def add_signal_handler(self, sig: int, callback: Callable[..., object], *args: Any) -> None:
        current().signals[sig] = lambda: callback(*args)

    def remove_signal_handler(self, sig: int) -> bool:
        return current().signals.pop(sig, None) is not None

    # -- processes ------------------------------------------------------------------------------------------------

    def spawn(self, process: Process, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Start a task in a process."""
        return process.context.run(lambda: self.create_task(work, name=name))

    def outside(self, delay_s: float, call: Callable[..., object], *args: Any) -> None:
        """Call something later that belongs to no process: a broker, a network, time."""
        self.call_later(delay_s, call, *args, context=self.queues.outside.context)

    def inside(self, process: Process, delay_s: float, call: Callable[..., object], *args: Any) -> None:
        """Call something later in a process; it waits while the process is stopped."""
        if not process.dead:
            self.call_later(delay_s, call, *args, context=process.context)

    def kill(self, process: Process) -> None:
        """SIGKILL."""
        self._graveyard += self.tasks_of(process)
        process.dead = True
        process.ready.clear()

    def stop_process(self, process: Process) -> None:
        """SIGSTOP."""
        process.stopped = True

    def resume_process(self, process: Process) -> None:
        """SIGCONT."""
        process.stopped = False
        self.queues.offer(process)

    def tasks_of(self, process: Process) -> list[SimTask]:
        """Its tasks that have not ended, in the order of their making."""
        tasks = [task for task in asyncio.all_tasks(self) if isinstance(task, SimTask) and task.process is process]
        return sorted(tasks, key=lambda task: task.number)

    # -- running --------------------------------------------------------------------------------------------------

    def _run_once(self) -> None:
        timers, queues = self._scheduled, self.queues  # type: ignore[attr-defined]
        if not queues.runnable:
            while timers and timers[0]._cancelled:
                heapq.heappop(timers)._scheduled = False
            if not timers:
                raise Deadlock
            self._now = max(self._now, timers[0]._when)
        while timers and timers[0]._when <= self._now:
            timer = heapq.heappop(timers)
            timer._scheduled = False
            if not timer._cancelled:
                queues.append(timer)
        for _ in range(SAME_MOMENT):
            if not queues.runnable or self._stopping:  # type: ignore[attr-defined]
                return
            handle = queues.pop()
            if handle is not None and not handle._cancelled:  # type: ignore[attr-defined]
                self.steps += 1
                handle._run()
        raise Spinning(f"at {self._now:.3f} s: {queues.runnable}")

    def _note(self, about: dict[str, Any]) -> None:
        task = about.get("task") or about.get("future")
        process = getattr(task, "process", None)
        if self.queues.closed or (process is not None and process.dead):
            return
        self.failures.append(f"{process}: {about.get('message')}: {about.get('exception')!r} ({task!r})")

    def end(self) -> None:
        """Forget everything that still waits, without letting its clean-up reach anything."""
        self.queues.closed = True
        for task in [*self._graveyard, *asyncio.all_tasks(self)]:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        self._scheduled.clear()  # type: ignore[attr-defined]
        self._graveyard.clear()
        gc.collect()
        self.close()

    def _process_events(self, events: Any) -> None:
        """There are none: nothing here is connected to anything."""

    def _write_to_self(self) -> None:
        """Nobody sleeps."""
