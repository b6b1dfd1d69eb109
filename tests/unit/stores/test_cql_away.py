"""A message store that can't be found is away, like one that does not answer."""

from __future__ import annotations

import pytest

from parley.errors import ParleyError
from parley.settings import MessagesSettings
from parley.stores.messages import MessageStore


async def test_a_host_whose_name_nobody_knows_is_waited_for() -> None:
    """In containers a store that is stopped has no name: turns of cold sessions wait for it, the orchestrator lives."""
    with pytest.raises(ParleyError) as raised:
        await MessageStore.connect(MessagesSettings(hosts=("store.invalid",)))
    assert raised.value.kind.code == "store_unavailable"
    assert "store.invalid" in raised.value.message
