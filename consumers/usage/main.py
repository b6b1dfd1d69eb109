"""The usage role."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass

from consumers.usage.names import APP, HOURS_CHANGELOG, TURNS_CHANGELOG
from consumers.usage.tables import make_app
from parley.errors import ParleyError
from parley.health import Health
from parley.log.admin import connect
from parley.log.figures import MEMBERS, PartitionFigures
from parley.log.producer import Producer
from parley.process import HEALTH, until_stopped
from parley.settings import Settings
from parley.topics import DLQ, TURNS

BEAT_S = 1.0
"""A loop that hangs is seen in /health/live, and by whoever watches the age of its last beat."""


async def run(settings: Settings) -> None:
    """Count until SIGTERM or SIGINT, then commit what is counted and leave the group.

    Raises:
        ParleyError: log_unavailable: Kafka does not answer, or lacks the topics.
        Exception: what made counting impossible; a restart goes on from the changelogs.
    """
    await _require_topics(settings)
    stopping = asyncio.Event()
    await until_stopped(_serve(settings, stopping), stopping.set)


async def _serve(settings: Settings, stopping: asyncio.Event) -> None:
    producer = Producer(settings.kafka, "usage")
    await producer.start()
    try:
        with tempfile.TemporaryDirectory(prefix="parley-usage-") as data:
            app = make_app(settings, producer, HEALTH, data)
            started = asyncio.create_task(app.start())
            stopped = asyncio.create_task(stopping.wait())
            crashed = asyncio.create_task(app.wait_until_stopped())
            beating = asyncio.create_task(_beat())
            try:
                await asyncio.wait({started, crashed, stopped}, return_when=asyncio.FIRST_COMPLETED)
                if started.done():
                    started.result()  # raises what kept it from starting
                HEALTH.ready()
                await asyncio.wait({stopped, crashed}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (stopped, crashed, beating):
                    task.cancel()
                if not started.done():
                    started.cancel()
                await app.stop()
            if app.crash_reason is not None:
                raise app.crash_reason
    finally:
        await producer.stop()


@dataclass(eq=False)
class _Member:
    """Its membership is Faust's, which does not tell what runs and waits; what is told is that the loop turns."""

    name: str = APP
    health: Health = HEALTH

    def figures(self) -> Iterable[PartitionFigures]:
        return ()


async def _beat() -> None:
    member = _Member()
    MEMBERS.add(member)
    try:
        while True:
            member.health.beat()
            await asyncio.sleep(BEAT_S)
    finally:
        MEMBERS.discard(member)


async def _require_topics(settings: Settings) -> None:
    async with connect(settings.kafka) as admin:
        live = {topic.name: topic.partitions for topic in await admin.topics()}
    wanted = settings.topics.topics[TURNS].partitions
    for name in (TURNS, HOURS_CHANGELOG, TURNS_CHANGELOG):
        if live.get(name) != wanted:
            found = "is missing" if name not in live else f"has {live[name]} partitions, not {wanted}"
            raise ParleyError("log_unavailable", f"{name} {found}: run `parley topics apply`")
    if DLQ not in live:
        raise ParleyError("log_unavailable", f"{DLQ} is missing: run `parley topics apply`")
