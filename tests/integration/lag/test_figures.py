"""What a member tells of itself and what the exporter asks of the brokers, side by side on a real one."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence

import pytest
from prometheus_client import REGISTRY

from consumers.lag.groups import Watched
from parley.health import Health
from parley.log.views import Entry, ViewConsumer
from tests.integration.lag.conftest import Stage, holding

pytestmark = pytest.mark.stack


def told(name: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(f"parley_consumer_{name}", labels)


async def until(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not done():
            await asyncio.sleep(0.05)


async def test_a_member_tells_what_runs_what_waits_and_what_is_paused(stage: Stage) -> None:
    """A window of 3 and 5 records that never end: 3 run, 2 wait, and the brokers say the same."""
    topic, group = await stage.topic(), f"figures-{secrets.token_hex(4)}"
    place = {"group": group, "topic": topic, "partition": "0"}
    await stage.write(topic, 5)
    async with holding(stage.settings, group, topic, lambda held, record: True, window=3):
        await until(lambda: told("partitions", group=group, taking="paused") == 1)
        assert told("running_records", **place) == 3
        assert told("waiting_records", **place) == 2
        assert 0 < (told("oldest_running_seconds", **place) or 0) < 60
        assert (told("poll_age_seconds", group=group) or 0) < 10
        assert (told("rebalances_total", group=group), told("takeovers_total", group=group)) == (1, 1)
        seen = await stage.look_until(Watched(group, (topic,)), lambda parts: parts[0].counts.running == 3)
        assert seen.partitions[0].counts.waiting == 2
    assert told("partitions", group=group, taking="paused") is None, "who has left tells nothing"


async def test_a_member_that_has_done_everything_tells_zeros(stage: Stage) -> None:
    topic, group = await stage.topic(), f"figures-{secrets.token_hex(4)}"
    place = {"group": group, "topic": topic, "partition": "0"}
    await stage.write(topic, 5)
    async with holding(stage.settings, group, topic, lambda held, record: False):
        await until(lambda: told("waiting_records", **place) == 0)
        assert (told("running_records", **place), told("oldest_running_seconds", **place)) == (0, 0)
        assert told("partitions", group=group, taking="taking") == 1


async def test_a_view_whose_store_is_away_tells_how_old_the_oldest_is_and_that_it_has_paused(stage: Stage) -> None:
    topic, group = await stage.topic(), f"figures-{secrets.token_hex(4)}"
    place = {"group": group, "topic": topic, "partition": "0"}
    back, stop = asyncio.Event(), asyncio.Event()

    async def apply(entries: Sequence[Entry[bytes]]) -> None:
        await back.wait()

    await stage.write(topic, 3)
    view = ViewConsumer(stage.settings, group, [topic], lambda value: value or b"", apply, Health())
    running = asyncio.create_task(view.run(stop))
    try:
        await until(lambda: told("partitions", group=group, taking="paused") == 1)
        assert (told("running_records", **place), told("waiting_records", **place)) == (3, 0)
        assert (told("oldest_running_seconds", **place) or 0) > 1
        await stage.write(topic, 2)
        back.set()
        await until(lambda: told("partitions", group=group, taking="taking") == 1)
        await until(lambda: told("running_records", **place) == told("waiting_records", **place) == 0)
    finally:
        back.set()
        stop.set()
        await running
