"""A client waits between its attempts to connect to a broker, and between its questions for metadata."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.client import AIOKafkaClient

from parley.log import reconnects
from parley.log.reconnects import mend_reconnects, patient, unhurried

BACKOFF_S = 0.01


class Client:
    """As much of a client as its connecting sees; counts what goes out."""

    def __init__(self, *, reachable: bool) -> None:
        self.reachable = reachable
        self.knocks: dict[Any, int] = {}
        self.questions = 0
        self._retry_backoff = BACKOFF_S
        self._conns: dict[Any, Any] = {}
        self.known = True
        self.cluster = SimpleNamespace(broker_metadata=lambda _: self.known or None)

    @patient
    async def get(self, node_id: int, *, group: Any) -> Any:
        self.knocks[node_id] = self.knocks.get(node_id, 0) + 1
        await asyncio.sleep(0.001)
        if self.reachable:
            self._conns[node_id, group] = SimpleNamespace(connected=lambda: self.reachable)
        return self._conns.get((node_id, group))

    @unhurried
    async def ask(self, _: Any, topics: set[str]) -> bool:
        assert topics
        self.questions += 1
        return True


async def knock(client: Client, node_id: int, seconds: float) -> None:
    """One of many callers that try again and again."""
    async with asyncio.timeout(seconds):
        while await client.get(node_id) is None:
            await asyncio.sleep(BACKOFF_S / 10)


async def test_a_node_that_does_not_answer_is_tried_ever_more_seldom_by_all_callers_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reconnects, "LONGEST_S", 8 * BACKOFF_S)
    client = Client(reachable=False)
    callers = [knock(client, node_id, 50 * BACKOFF_S) for node_id in (1, 2) for _ in range(20)]
    assert {type(end) for end in await asyncio.gather(*callers, return_exceptions=True)} == {TimeoutError}
    # after 0, 1, 3, 7, 15, 23, 31, 39, 47 backoffs, each a fifth shorter or longer; 20 callers alone would make 8,000
    assert all(2 <= knocks <= 13 for knocks in client.knocks.values())


async def test_a_node_that_is_back_is_found_and_then_lost_without_a_pause_from_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reconnects, "LONGEST_S", 2 * BACKOFF_S)
    client = Client(reachable=False)
    with pytest.raises(TimeoutError):
        await knock(client, 1, 5 * BACKOFF_S)
    client.reachable = True
    await knock(client, 1, 5)
    once = client.knocks[1]
    await client.get(1)
    assert client.knocks[1] == once, "a connection that stands is used"
    client._conns.clear()
    await client.get(1)
    assert client.knocks[1] == once + 1, "one that has broken is made anew at once"


async def test_a_broker_that_nobody_has_heard_of_is_asked_for_as_soon_as_somebody_has() -> None:
    client = Client(reachable=False)
    client.known = False
    assert await client.get(1) is None
    client.known = client.reachable = True
    assert await client.get(1) is not None


async def test_the_same_question_for_metadata_waits_and_another_does_not() -> None:
    client = Client(reachable=True)

    async def ask(topics: set[str]) -> None:
        while True:
            await client.ask(None, topics)

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(10 * BACKOFF_S):
            await ask({"chat.turns"})
    assert 1 <= client.questions <= 11
    asked, began = client.questions, asyncio.get_running_loop().time()
    for topic in range(1_000):
        await client.ask(None, {str(topic)})
    assert client.questions == asked + 1_000
    assert asyncio.get_running_loop().time() - began < 1_000 * BACKOFF_S


def test_every_client_is_mended_once() -> None:
    mend_reconnects()
    mend_reconnects()
    for mended in (AIOKafkaClient._get_conn, AIOKafkaClient._metadata_update):
        assert not hasattr(mended.__wrapped__, "__wrapped__")
