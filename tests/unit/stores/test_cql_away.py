"""A message store that can't be found is away, like one that does not answer."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from cassandra import UnresolvableContactPoints

from parley.errors import ParleyError
from parley.settings import MessagesSettings
from parley.stores.messages import MessageStore


async def test_a_host_whose_name_nobody_knows_is_waited_for() -> None:
    """In containers a store that is stopped has no name: turns of cold sessions wait for it, the orchestrator lives."""
    with pytest.raises(ParleyError) as raised:
        await MessageStore.connect(MessagesSettings(hosts=("store.invalid",)))
    assert raised.value.kind.code == "store_unavailable"
    assert "store.invalid" in raised.value.message


async def test_looking_up_its_name_does_not_hold_the_loop_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A resolver may take seconds, and a member that says nothing for three loses its partitions."""
    threads: list[threading.Thread] = []

    def nobody_knows(_settings: Any) -> None:
        threads.append(threading.current_thread())
        raise UnresolvableContactPoints({})

    monkeypatch.setattr("parley.stores.cql._cluster", nobody_knows)
    with pytest.raises(ParleyError):
        await MessageStore.connect(MessagesSettings(hosts=("store.invalid",)))
    assert threads != [threading.main_thread()]
    assert len(threads) == 1
