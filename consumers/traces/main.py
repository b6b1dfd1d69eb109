"""The traces role: a view of chat.turns whose store is a collector of traces."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from consumers.traces.otlp import Collector
from consumers.traces.spans import spans
from parley.clock import now_ms
from parley.log.groups import GroupReader
from parley.log.views import Entry, ViewConsumer
from parley.process import HEALTH, until_stopped
from parley.settings import Settings
from parley.topics import TURNS
from schemas.base import Millis
from schemas.turns import TurnEnded
from schemas.wire import TurnsEvent, decode_turns_event

GROUP = "traces"


async def run(settings: Settings, since_ms: Millis) -> None:
    """Export until SIGTERM or SIGINT; what is exported by then is committed.

    :param since_ms: how long ago a turn may have ended for a group that is new: it would begin with a week of them.
    """
    stop = asyncio.Event()
    await until_stopped(export(settings, since_ms, stop), stop.set)


async def export(settings: Settings, since_ms: Millis, stop: asyncio.Event) -> None:
    """Export until `stop` is set. A collector that is away is waited for: partitions pause, nothing is passed over."""
    collector = Collector()
    oldest = await _oldest(settings, since_ms)

    async def apply(entries: Sequence[Entry[TurnsEvent]]) -> None:
        ended = [e.event for e in entries if isinstance(e.event, TurnEnded) and e.appended > oldest]
        if ended:
            await collector.send([span for event in ended for span in spans(event)])

    try:
        await ViewConsumer(settings, GROUP, [TURNS], decode_turns_event, apply, HEALTH).run(stop)
    finally:
        await collector.close()


async def _oldest(settings: Settings, since_ms: Millis) -> Millis:
    """What ended before is passed over: nothing by a group that goes on, however long it was away.

    Raises:
        ParleyError: log_unavailable.
    """
    async with GroupReader(settings.kafka) as groups:
        goes_on = bool((await groups.read(GROUP)).committed)
    return 0 if goes_on else now_ms() - since_ms
