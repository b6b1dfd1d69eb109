"""One run's records are in the order that they were written in, or the turn is taken again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from core_events import ROUTE, fence, response, terminal

from inference_workers.pen import Pen
from parley.errors import ParleyError
from parley.transcript import Transcript


class Lane:
    """A producer of one partition, shared by many turns."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.now = 0

    def generation(self, topic: str, partition: int) -> int:
        assert (topic, partition) == (ROUTE.topic, ROUTE.partition)
        return self.now

    async def post(self, topic: str, value: bytes, **_: Any) -> asyncio.Future[Any]:
        self.sent.append(value)
        return asyncio.get_running_loop().create_future()  # not acknowledged yet

    async def send(self, topic: str, value: bytes, **_: Any) -> int:
        self.sent.append(value)
        return len(self.sent)


async def test_what_is_on_its_way_is_not_overtaken_through_a_fresh_producer() -> None:
    """Another turn's record on the lane has failed. This one's deltas still wait in the old producer: whatever went out
    by the new one might land before them, be void, and leave the route without an end that the worker has told of."""
    lane, transcript = Lane(), Transcript()
    transcript.apply(fence())
    pen = Pen(lane, response(1), ROUTE, transcript)  # type: ignore[arg-type]
    await pen.say("Hello", 1)
    lane.now = 1
    with pytest.raises(ParleyError, match="fresh producer"):
        await pen.say(" world", 1)
    with pytest.raises(ParleyError, match="fresh producer"):
        await pen.end(terminal(1))
    assert len(lane.sent) == 1
    assert transcript.terminal is None


async def test_a_turn_that_is_taken_after_that_goes_by_the_fresh_one() -> None:
    lane, transcript = Lane(), Transcript()
    lane.now = 1
    transcript.apply(fence())
    pen = Pen(lane, response(1), ROUTE, transcript)  # type: ignore[arg-type]
    await pen.say("Hello", 1)
    await pen.end(terminal(1))
    assert len(lane.sent) == 2
    assert transcript.terminal is not None
