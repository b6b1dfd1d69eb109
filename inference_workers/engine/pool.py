"""The engines of a pool as one worker sees them: its own, and the others for when its own is dead.

    alive ──(a probe fails, and nothing else was heard from it meanwhile)──▶ dead: its runs are told at once
      ▲────────────────────────(a probe brings a token)──────────────────────┘

Triton stays ready over a model process that has died, and the streams of that process say nothing more, for ever. So
an engine lives if it has said something lately, and is asked for a token when it has not.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager

from inference_workers.engine.client import EngineClient
from inference_workers.engine.errors import EngineError, EngineSilent
from inference_workers.metrics import ENGINE_ALIVE, ENGINE_DEATHS, ENGINE_PROBE_SECONDS
from parley.settings import WorkerSettings

log = logging.getLogger(__name__)

ASK_AGAIN_S = 0.25
"""Between two rounds of questions while no engine answers."""


class Engine:
    """One engine, and what is known of its life."""

    def __init__(self, client: EngineClient) -> None:
        self.client = client
        self.alive = True
        self.drained = False
        """An operator has taken it out of use: nothing new begins on it while another one answers."""
        self.heard = asyncio.get_running_loop().time()
        """When it last said anything, by the loop's clock; whoever reads a stream of it sets this."""
        self.runs: set[asyncio.Timeout] = set()
        """Runs under way on it for this worker, each as that by which it is broken off."""
        self.probing: asyncio.Task[bool] | None = None

    @property
    def url(self) -> str:
        """Where it is."""
        return self.client.url

    def doubt(self) -> None:
        """A run failed on it: only a new sign of life counts from here on."""
        self.heard = float("-inf")

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """A run on it: broken off when the engine is found dead, since its streams will say nothing more.

        :raises EngineSilent: that has happened.
        """
        try:
            async with asyncio.timeout(None) as leaving:
                self.runs.add(leaving)
                try:
                    yield
                finally:
                    self.runs.discard(leaving)
        except TimeoutError:
            if leaving.expired():
                raise EngineSilent(f"the engine at {self.url} was found dead") from None
            raise

    def break_off(self) -> None:
        """End all runs on it."""
        now = asyncio.get_running_loop().time()
        for leaving in self.runs:
            if not leaving.expired():
                leaving.reschedule(now)


class Engines:
    """A worker's own engine first, then the others of the pool.

    :param on_change: told after an engine has died or come back.
    """

    def __init__(self, clients: Sequence[EngineClient], settings: WorkerSettings) -> None:
        self._settings = settings
        self._engines = [Engine(client) for client in clients]
        self._loop = asyncio.get_running_loop()
        self.on_change: Callable[[], None] = lambda: None

    @property
    def own(self) -> Engine:
        """The engine whose slots this worker owns."""
        return self._engines[0]

    @property
    def only_own(self) -> bool:
        """The pool has no other engine."""
        return len(self._engines) == 1

    @property
    def at_home(self) -> bool:
        """New runs begin on the own engine."""
        return self.only_own or (self.own.alive and not self.own.drained)

    @property
    def any_alive(self) -> bool:
        """Some engine answered when it was last asked."""
        return any(engine.alive for engine in self._engines)

    @property
    def runs(self) -> dict[str, int]:
        """How many runs this worker has on each engine, by address."""
        return {engine.url: len(engine.runs) for engine in self._engines}

    def at_hand(self) -> Engine | None:
        """The own engine, unless it is known to be dead or is drained. Asks nobody: first tokens do not wait."""
        return self.own if self.own.alive and not self.own.drained else None

    def drain(self, urls: Collection[str]) -> None:
        """These, of all engines, get no new runs; what runs on them runs on."""
        for engine in self._engines:
            engine.drained = engine.url in urls
        self.on_change()

    async def find(self, avoid: Engine | None = None) -> Engine:
        """An engine that answers a probe, `avoid` late, drained ones last; waits for as long as there is none.

        Callers set the limit.
        """
        while True:
            for engine in sorted(self._engines, key=lambda engine: (engine.drained, engine is avoid)):
                if await self._answers(engine):
                    return engine
            await asyncio.sleep(ASK_AGAIN_S)

    async def watch(self) -> None:
        """Ask the own engine, and others that run something for this worker, whenever they have been silent."""
        while True:
            await asyncio.sleep(self._settings.probe_interval_s)
            await asyncio.gather(*(self._answers(e) for e in self._engines if e is self.own or e.runs))

    async def close(self) -> None:
        """End all streams, which frees their slots."""
        probes = [engine.probing for engine in self._engines if engine.probing is not None]
        for probe in probes:
            probe.cancel()
        await asyncio.gather(*probes, return_exceptions=True)
        await asyncio.gather(*(engine.client.close() for engine in self._engines))

    async def _answers(self, engine: Engine) -> bool:
        """Whether it lives, by what it has said lately, or else by a probe that all who ask at once share."""
        if engine.alive and self._loop.time() - engine.heard < self._settings.probe_interval_s:
            return True
        if engine.probing is None:
            engine.probing = asyncio.create_task(self._probe(engine), name=f"probe-{engine.url}")
        return await asyncio.shield(engine.probing)

    async def _probe(self, engine: Engine) -> bool:
        asked = self._loop.time()
        try:
            took = await engine.client.probe(timeout_s=self._settings.probe_limit_s)
        except EngineError as error:
            if engine.heard > asked:
                return True  # slow or full, but its streams go on
            self._found_dead(engine, error)
            return False
        finally:
            engine.probing = None
        ENGINE_PROBE_SECONDS.labels(engine.url).set(took)
        engine.heard = self._loop.time()
        self._found_alive(engine)
        return True

    def _found_dead(self, engine: Engine, error: EngineError) -> None:
        ENGINE_ALIVE.labels(engine.url).set(0)
        if engine.alive:
            ENGINE_DEATHS.labels(engine.url).inc()
            log.error("the engine at %s does not answer: %s; %d runs leave it", engine.url, error, len(engine.runs))
            engine.alive = False
            engine.break_off()
            self.on_change()

    def _found_alive(self, engine: Engine) -> None:
        ENGINE_ALIVE.labels(engine.url).set(1)
        if not engine.alive:
            log.info("the engine at %s answers again", engine.url)
            engine.alive = True
            self.on_change()
