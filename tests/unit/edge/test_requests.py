"""What is answered before anything behind the edge is asked, and what is not said of what is behind it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import httpx
import orjson
import pytest

from parley.errors import ParleyError
from parley.ids import new_session
from producers.edge.acceptance import Author
from producers.edge.app import build_app
from producers.edge.problems import envelope, socket_error


async def get(path: str) -> httpx.Response:
    """The answer of an edge that has nothing but users."""

    async def authenticate(authorization: str | None) -> Author:
        return Author(new_session(), "free")

    edge: Any = SimpleNamespace(authenticate=authenticate)
    transport = httpx.ASGITransport(build_app(edge))
    async with httpx.AsyncClient(transport=transport, base_url="http://edge") as client:
        return await client.get(path)


@pytest.mark.parametrize("limit", ["0", "101", "-1", "x", "", "1e2", "000000001999999", "9" * 5_000])
async def test_a_page_has_at_most_a_hundred_entries_however_that_is_written(limit: str) -> None:
    answer = await get(f"/v1/conversations?limit={limit}")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "limit")


@pytest.mark.parametrize("code", ["store_unavailable", "log_unavailable"])
def test_a_client_is_not_told_where_the_services_are(code: str) -> None:
    error = ParleyError(code, 'connection to server at "10.0.0.7", port 5432 failed: no password for user "parley"')
    for said in (envelope(error), orjson.loads(socket_error(error))):
        assert said["error"]["code"] == code
        assert "again" in said["error"]["message"]
        assert not any(word in said["error"]["message"] for word in ("10.0.0.7", "5432", "parley"))
