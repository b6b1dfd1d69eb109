"""A row that can't be read is its own session's trouble: an orchestrator that fails over it fails for everybody."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import AsyncGenerator
from typing import Any
from uuid import UUID

import pytest

from parley.errors import ParleyError
from parley.stores.messages import MessageStore

SESSION, USER = UUID(int=1), UUID(int=2)
Header = namedtuple("Header", "user_id last_turn deleted_at")
Record = namedtuple("Record", "turn log_offset response_id event")


class Client:
    """A cluster that has one session of one turn."""

    def __init__(self, event: str) -> None:
        self._event = event

    async def execute(self, statement: str, values: Any) -> list[Any]:
        return [Header(USER, 1, None)]

    async def rows(self, statement: str, values: Any) -> AsyncGenerator[Any]:
        if statement == "records":
            yield Record(1, 7, "r", self._event)


@pytest.mark.parametrize("event", ["{", '{"v": 99, "type": "turn.started"}'], ids=["torn", "of a newer version"])
async def test_it_is_said_as_an_error_of_the_taxonomy(event: str) -> None:
    names: Any = {name: name for name in ("header", "records", "messages")}
    store = MessageStore(Client(event), "parley", names)  # type: ignore[arg-type]
    with pytest.raises(ParleyError) as raised:
        await store.turns(SESSION, limit=10)
    assert raised.value.kind.code == "store_inconsistent"
