"""/v1/conversations: a user's sessions and what was said in them.

Opening, naming and deleting are events of the session's state log; lists and items are views that follow the log, the
list in PostgreSQL, the items in the message store. Order is the turn's number, never a clock.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from uuid import UUID

from starlette.requests import Request
from starlette.routing import Route
from starlette.types import ASGIApp

from parley import ids
from parley.clock import now_ms
from parley.errors import ParleyError
from parley.stores.sessions import SessionRow
from parley.stores.stored import StoredTurn
from producers.edge.acceptance import Author, Idempotency, check_key, idempotency, key_reused, own_session
from producers.edge.kept import may_run
from producers.edge.problems import parse
from producers.edge.resource import Json, item_object, message_object
from producers.edge.responses import json_response, read_body
from producers.edge.service import Edge
from schemas.api import CreateConversation, UpdateConversation
from schemas.turns import SessionChanged, SessionDeleted

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


async def open_conversation(request: Request) -> ASGIApp:
    """POST /v1/conversations. With an Idempotency-Key the session's id is made from it: a retry opens nothing new."""
    edge, author = await _entered(request)
    body = await read_body(request, edge, may_be_empty=True)
    asked = parse(CreateConversation, body)
    key = request.headers.get("idempotency-key")
    keyed = idempotency(edge.settings.keys, author, check_key(key), body) if key is not None else None
    cell, now = edge.settings.topics.cell, now_ms()
    if keyed is None:
        session = ids.new_session(cell)
    else:
        session = ids.session_from_key(author.user, f"conversation {keyed.key_hash}", cell)
        if await _opened_before(edge, author, session, keyed):
            return json_response(await _current(edge, author, session))
    metadata = dict(asked.metadata) if asked.metadata is not None else None
    opening = SessionChanged(
        session=session,
        user=author.user,
        at=now,
        opened=True,
        opened_with=keyed.body_hash if keyed is not None else None,
        title=asked.title or None,
        metadata=metadata,
    )
    place = await edge.write_session(opening)
    if keyed is not None:
        await edge.live.reached(*place)
        await _opened_before(edge, author, session, keyed)  # of two at the same moment the first in the log stands
    await edge.placing.open(session)
    return json_response(_object(edge, author, session, asked.title or None, now // 1000, now // 1000, metadata or {}))


async def _opened_before(edge: Edge, author: Author, session: UUID, keyed: Idempotency) -> bool:
    """The key has opened its session, with this body.

    Raises:
        ParleyError: idempotency_key_reused: with another body; not_found: the session was deleted; store_unavailable.
    """
    recent = edge.live.opening(session)
    if recent is not None:
        opened_with = recent.opened_with
    elif (row := await edge.sessions.get(author.user, session)) is not None:
        opened_with = row.opened_with
    elif await edge.sessions.was_deleted(author.user, session):
        raise ParleyError("not_found", "The conversation that this Idempotency-Key has opened was deleted.")
    else:
        return False
    if opened_with != keyed.body_hash:
        raise key_reused()
    return True


async def list_conversations(request: Request) -> ASGIApp:
    """GET /v1/conversations, the most recently used first."""
    edge, author = await _entered(request)
    limit = _limit(request, default=20)
    rows = await edge.sessions.list(author.user, limit=limit + 1, before=_before(request, edge, author))
    page = rows[:limit]
    there = [row for row in page if not edge.live.is_deleted(row.session_id, author.user)]
    found: Json = _list([_row(edge, author, row) for row in there], has_more=len(rows) > limit)
    if page and len(rows) > limit:
        last = page[-1]
        moment = (last.updated_at - EPOCH) // MICROSECOND
        found["next"] = f"{moment}.{ids.conversation_id(edge.settings.keys, author.user, last.session_id)}"
    return json_response(found)


async def show_conversation(request: Request) -> ASGIApp:
    """GET /v1/conversations/{id}."""
    edge, author = await _entered(request)
    return json_response(await _current(edge, author, _session(request, edge, author)))


async def change_conversation(request: Request) -> ASGIApp:
    """POST or PATCH /v1/conversations/{id}: title, metadata."""
    edge, author = await _entered(request)
    session = _session(request, edge, author)
    asked = parse(UpdateConversation, await read_body(request, edge))
    metadata = dict(asked.metadata) if asked.metadata is not None else None
    shown = await _current(edge, author, session)
    await edge.write_session(
        SessionChanged(session=session, user=author.user, at=now_ms(), title=asked.title, metadata=metadata)
    )
    changes = {"title": asked.title, "metadata": metadata}
    return json_response(shown | {name: value for name, value in changes.items() if value is not None})


async def delete_conversation(request: Request) -> ASGIApp:
    """DELETE /v1/conversations/{id}."""
    edge, author = await _entered(request)
    session = _session(request, edge, author)
    place = await edge.write_session(SessionDeleted(session=session, user=author.user, at=now_ms()))
    with contextlib.suppress(ParleyError):  # deleted it is; this edge, too, is to know before it says so
        await edge.live.reached(*place)
    return json_response({"id": request.path_params["conversation"], "object": "conversation.deleted", "deleted": True})


async def list_items(request: Request) -> ASGIApp:
    """GET /v1/conversations/{id}/items: messages in the order of the conversation, or the newest first.

    A running answer is an item without content whose status is in_progress; its `response_id` can be resumed.
    """
    edge, author = await _entered(request)
    session = _session(request, edge, author)
    if edge.live.is_deleted(session, author.user):  # history may be behind
        raise ParleyError("not_found", "There is no such conversation.")
    limit = _limit(request, default=50)
    newest_first = _order(request) == "desc"
    edge_turn = await _turn_after(request, edge, session)
    skip = request.query_params.get("after")
    found: list[Json] = []
    after, before = (0, edge_turn + 1 if edge_turn else None) if newest_first else (max(edge_turn - 1, 0), None)
    while len(found) <= limit:
        turns = await edge.kept.turns(
            session, after=after, before=before, limit=limit // 2 + 2, newest_first=newest_first
        )
        for turn in turns:
            if turn.user != author.user:
                raise ParleyError("not_found", "There is no such conversation.")
            items = list(_items(turn, may_run(turn, edge.settings.protocol)))
            found += reversed(items) if newest_first else items
        if skip is not None and any(item["id"] == skip for item in found):
            found = found[[item["id"] for item in found].index(skip) + 1 :]
            skip = None
        if len(turns) < limit // 2 + 2:
            break
        after, before = (0, turns[-1].turn) if newest_first else (turns[-1].turn, None)
    return json_response(_list(found[:limit], has_more=len(found) > limit))


async def _turn_after(request: Request, edge: Edge, session: UUID) -> int:
    """The number of the turn that the item `after` belongs to; 0: none is named.

    Raises:
        ParleyError: invalid_request.
    """
    text = request.query_params.get("after")
    if text is None:
        return 0
    wrong = ParleyError("invalid_request", "after must be the id of an item of this conversation.", param="after")
    try:
        response, _ = ids.parse_message_id(text)
    except ids.UnknownId:
        raise wrong from None
    turn = await edge.kept.turn_of(session, response)
    if turn is None:
        raise wrong
    return turn.turn


def _items(turn: StoredTurn, running: bool) -> Iterator[Json]:
    if not turn.kept:
        return
    about = {"response_id": turn.response}
    for item in turn.items:
        yield item_object(item) | about
    if running:
        yield message_object(ids.message_id(turn.response, len(turn.items)), "in_progress", []) | about
    for item in turn.output:
        yield item_object(item) | about


async def _current(edge: Edge, author: Author, session: UUID) -> Json:
    """A conversation as the view has it; one that has just been opened may not be there yet.

    Raises:
        ParleyError: not_found: it was deleted; store_unavailable.
    """
    if edge.live.is_deleted(session, author.user):
        raise ParleyError("not_found", "There is no such conversation.")
    row = await edge.sessions.get(author.user, session)
    if row is not None:
        return _row(edge, author, row)
    if (recent := edge.live.opening(session)) is not None and recent.user == author.user:
        at = recent.at // 1000
        return _object(edge, author, session, recent.title, at, at, recent.metadata or {})
    header = await edge.kept.header(session)
    if header is not None and (header.deleted or header.user != author.user):
        raise ParleyError("not_found", "There is no such conversation.")
    created = (ids.session_created_ms(session) or 0) // 1000
    return _object(edge, author, session, None, created, created, {})


async def _entered(request: Request) -> tuple[Edge, Author]:
    edge: Edge = request.app.state.edge
    return edge, await edge.authenticate(request.headers.get("authorization"))


def _session(request: Request, edge: Edge, author: Author) -> UUID:
    return own_session(edge.settings.keys, author, request.path_params["conversation"])


def _row(edge: Edge, author: Author, row: SessionRow) -> Json:
    created, updated = int(row.created_at.timestamp()), int(row.updated_at.timestamp())
    return _object(edge, author, row.session_id, row.title, created, updated, row.metadata)


def _object(
    edge: Edge, author: Author, session: UUID, title: str | None, created: int, updated: int, metadata: dict[str, str]
) -> Json:
    return {
        "id": ids.conversation_id(edge.settings.keys, author.user, session),
        "object": "conversation",
        "created_at": created,
        "updated_at": updated,
        "title": title,
        "metadata": metadata,
    }


def _list(data: list[Json], *, has_more: bool) -> Json:
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": has_more,
    }


def _limit(request: Request, default: int) -> int:
    text = request.query_params.get("limit", str(default))
    if not text.isdecimal() or len(text) > 9 or not 1 <= int(text) <= 100:
        raise ParleyError("invalid_request", "limit must be between 1 and 100.", param="limit")
    return int(text)


def _order(request: Request) -> str:
    order = request.query_params.get("order", "asc")
    if order not in ("asc", "desc"):
        raise ParleyError("invalid_request", "order must be asc or desc.", param="order")
    return order


def _before(request: Request, edge: Edge, author: Author) -> tuple[datetime, UUID] | None:
    text = request.query_params.get("after")
    if text is None:
        return None
    moment, _, conversation = text.partition(".")
    if not moment.isdecimal() or len(moment) > 17:
        raise ParleyError("invalid_request", "after must be the `next` of the page before.", param="after")
    return EPOCH + int(moment) * MICROSECOND, own_session(edge.settings.keys, author, conversation, "after")


ROUTES = [
    Route("/v1/conversations", open_conversation, methods=["POST"]),
    Route("/v1/conversations", list_conversations, methods=["GET"]),
    Route("/v1/conversations/{conversation}", show_conversation, methods=["GET"]),
    Route("/v1/conversations/{conversation}", change_conversation, methods=["POST", "PATCH"]),
    Route("/v1/conversations/{conversation}", delete_conversation, methods=["DELETE"]),
    Route("/v1/conversations/{conversation}/items", list_items, methods=["GET"]),
]
