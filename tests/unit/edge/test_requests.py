"""What is answered before anything behind the edge is asked, and what is not said of what is behind it."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import httpx
import orjson
import pytest
from pydantic import SecretStr

from parley.errors import ParleyError
from parley.ids import Keys, conversation_id, new_response_id, new_session
from parley.settings import Settings
from parley.stores.sessions import SessionRow
from producers.edge.acceptance import Author
from producers.edge.app import build_app
from producers.edge.feeds import Feed, Patience
from producers.edge.problems import envelope, socket_error
from producers.edge.service import Edge
from schemas.routes import Fence, Opened, Terminal, encode_route_record

KEYS = Keys((b"k" * 32,))
ADA = Author(new_session(), "free")
SESSION = new_session()
RESPONSE = new_response_id(KEYS, ADA.user, SESSION, 3, 10, 1)


async def get(path: str, headers: dict[str, str] | None = None, **parts: Any) -> httpx.Response:
    """The answer of an edge that has a user, and these parts."""
    async with client_of(headers, **parts) as client:
        return await client.get(path)


def client_of(headers: dict[str, str] | None = None, **parts: Any) -> httpx.AsyncClient:
    """A client of such an edge."""

    async def authenticate(authorization: str | None) -> Author:
        return ADA

    settings = Settings(id_keys=(SecretStr(b64encode(KEYS[0]).decode()),))
    edge: Any = SimpleNamespace(authenticate=authenticate, settings=settings, draining=False, **parts)
    transport = httpx.ASGITransport(build_app(edge))
    return httpx.AsyncClient(transport=transport, base_url="http://edge", headers=headers)


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


@pytest.mark.parametrize(
    ("query", "header", "seen"),
    [("", None, [0, 1, 2]), ("&starting_after=0", None, [1, 2]), ("", "0", [1, 2]), ("&starting_after=0", "1", [2])],
)
async def test_each_event_of_a_stream_has_its_number_for_an_id_and_the_last_one_that_came_is_gone_on_from(
    query: str, header: str | None, seen: list[int]
) -> None:
    """A reader by the standard comes back with the address it had, and the last id in the header."""
    feed = Feed(RESPONSE, ADA.user)
    feed.absorb(
        encode_route_record(
            (
                Opened(session=SESSION, user=ADA.user, created_at=1, waiting=False),
                Fence(epoch=(1, 1, 1, 1), writer="w"),
                Terminal(writer="w", seq=0, kind="completed", model="m", ended_at=1),
            )
        )
    )
    parts: dict[str, Any] = {
        "turns": SimpleNamespace(watch=lambda *who: feed),
        "patience": Patience(100, 1 << 20),
        "streams": set(),
    }
    headers = {"last-event-id": header} if header is not None else {}
    said = (await get(f"/v1/responses/{RESPONSE}?stream=true{query}", headers, **parts)).text
    blocks = [block.split("\n") for block in said.split("\n\n") if "\ndata: {" in block]
    assert [block[0] for block in blocks] == [f"id: {number}" for number in seen]
    assert [orjson.loads(block[2].removeprefix("data: "))["sequence_number"] for block in blocks] == seen
    assert said.endswith("data: [DONE]\n\n")


async def test_a_conversation_that_was_deleted_is_not_shown_though_the_views_still_have_it() -> None:
    gone, stays = conversation_id(KEYS, ADA.user, SESSION), new_session()
    now = datetime.now(UTC)

    async def rows(user: UUID, **page: object) -> list[SessionRow]:
        return [SessionRow(session, user, "Hi", now, now, {}) for session in (SESSION, stays)]

    async def turns(session: UUID, **page: object) -> list[Any]:
        raise AssertionError("what was said there is asked for")

    parts = {
        "live": SimpleNamespace(is_deleted=lambda session, user: (session, user) == (SESSION, ADA.user)),
        "sessions": SimpleNamespace(list=rows),
        "kept": SimpleNamespace(turns=turns),
    }
    assert (await get(f"/v1/conversations/{gone}/items", **parts)).status_code == 404
    listed = (await get("/v1/conversations", **parts)).json()["data"]
    assert [each["id"] for each in listed] == [conversation_id(KEYS, ADA.user, stays)]


@pytest.mark.parametrize("path", ["/", "/app.js"])
async def test_the_page_is_of_one_version_and_in_no_other_page(path: str) -> None:
    """A browser that keeps some files by its own judgement would run new ones with old ones after an upgrade."""
    answer = await get(path)
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["content-security-policy"] == "frame-ancestors 'none'"
    again = await get(path, {"if-none-match": answer.headers["etag"]})
    assert (again.status_code, again.headers["cache-control"]) == (304, "no-cache")


@pytest.mark.parametrize("announced", [True, False])
async def test_who_waits_for_an_accepted_response_that_cannot_be_read_on_gets_it_as_it_is(announced: bool) -> None:
    """SDKs send again what gets a 503: an accepted prompt would be a second turn."""
    feed = Feed(RESPONSE, ADA.user)
    if announced:
        feed.announce({})

    async def accept(*asked: object) -> Feed:
        return feed

    parts = {"turns": SimpleNamespace(accept=accept), "patience": Patience(100, 1 << 20), "streams": set()}
    async with client_of(**parts) as client:
        waiting = asyncio.create_task(client.post("/v1/responses", json={"model": "synthetic", "input": "Hi"}))
        await asyncio.sleep(0.05)
        feed.fail(ParleyError("log_unavailable", "The stream was interrupted; resume it."))
        answer = await waiting
    if announced:
        assert (answer.status_code, answer.json()["id"], answer.json()["status"]) == (200, RESPONSE, "in_progress")
    else:
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "log_unavailable")


async def test_a_key_whose_conversation_was_deleted_opens_it_no_more() -> None:
    """Long after: the edge has forgotten both, the view has not."""

    async def get(user: UUID, session: UUID) -> None:
        return None

    async def was_deleted(user: UUID, session: UUID) -> bool:
        return user == ADA.user

    parts = {
        "live": SimpleNamespace(opening=lambda session: None, is_deleted=lambda session, user: False),
        "sessions": SimpleNamespace(get=get, was_deleted=was_deleted),
    }
    async with client_of(**parts) as client:
        answer = await client.post("/v1/conversations", json={}, headers={"idempotency-key": "k"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")


@pytest.mark.parametrize("late", [False, True])
async def test_a_deletion_is_said_once_this_edge_knows_of_it_or_seconds_later(late: bool) -> None:
    known: list[tuple[int, int]] = []

    async def write_session(event: object) -> tuple[int, int]:
        return 3, 17

    async def reached(partition: int, offset: int) -> None:
        known.append((partition, offset))
        if late:
            raise ParleyError("log_unavailable", "The state log can't be read at the moment.")

    async with client_of(write_session=write_session, live=SimpleNamespace(reached=reached)) as client:
        answer = await client.delete(f"/v1/conversations/{conversation_id(KEYS, ADA.user, SESSION)}")
    assert (answer.status_code, answer.json()["deleted"], known) == (200, True, [(3, 17)])


@pytest.mark.parametrize(
    ("reads", "failure", "status", "said"),
    [
        (True, None, 200, "ok"),
        (False, None, 503, "the token lanes are not being read"),
        (True, RuntimeError("x"), 503, "the state log is not being read"),
    ],
)
async def test_an_edge_that_only_a_restart_mends_is_not_alive(
    reads: bool, failure: BaseException | None, status: int, said: str
) -> None:
    parts: Any = SimpleNamespace(lanes=SimpleNamespace(ready=reads), following=failure)
    broken = Edge.broken.fget
    assert broken is not None
    answer = await get("/health/live", broken=broken(parts))
    assert (answer.status_code, answer.text) == (status, said)
