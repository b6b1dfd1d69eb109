"""From a request to the prompt that goes into the log. Pure: no I/O, a clock and ids are the only things taken.

What is refused here costs nothing downstream. What only the pool's tokenizer or the session's history can tell (the
exact context limit, a parent that was deleted) is the orchestrator's to find; the turn then ends failed.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass, field, replace
from uuid import UUID

import orjson

from parley import ids
from parley.errors import ParleyError
from parley.ids import Keys, UnknownId
from parley.topics import Pool, Topics
from producers.edge.projection import OUTPUT_ITEM
from producers.edge.resource import ECHO_DEFAULTS, Json
from schemas.api import CreateResponse, InputItem, unsupported
from schemas.base import Item, Refusal, Route, Sampling, Text, Tier
from schemas.prompts import PromptAccepted
from schemas.wire import encode

CHARACTERS_PER_TOKEN = 8
"""No text of a language has more characters a token than this on average: beyond it, a prompt can't fit."""
TRACEPARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
RECORD_MARGIN = 65_536
"""Bytes of a produce request that are not the record's value."""


TRANSPORT_FIELDS = frozenset(("type", "stream", "stream_options", "idempotency_key"))
"""What a body says about the way it comes and the answer goes: a retry may take another."""


@dataclass(frozen=True, slots=True)
class Author:
    """Who sends a request."""

    user: UUID
    tier: Tier
    trace: str | None = None
    """The traceparent that came with the request, or when its socket was opened."""
    key: str | None = field(default=None, repr=False, compare=False)
    """The API key that was given: a socket outlives it when it is revoked."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Which session a request belongs to, and what it follows."""

    session: UUID
    new_session: bool
    named: bool
    """The request names a conversation: it is one that shows up in the user's list."""
    parent: str | None = None
    parent_lane: int | None = None


@dataclass(frozen=True, slots=True)
class Idempotency:
    """A request's key and body, as hashes: neither is kept."""

    key_hash: str
    body_hash: str


def traced(author: Author, traceparent: str | None) -> Author:
    """The author with the trace that a request is part of. What is no traceparent of version 00 is left out."""
    return replace(author, trace=traceparent if traceparent and TRACEPARENT.fullmatch(traceparent) else None)


def check_key(key: str) -> str:
    """An Idempotency-Key that can be one.

    Raises:
        ParleyError: invalid_request.
    """
    if not (key.isascii() and key.isprintable() and len(key) <= 255):
        raise ParleyError("invalid_request", "An Idempotency-Key has at most 255 printable ASCII characters.")
    return key


def key_reused() -> ParleyError:
    """The same key came with another body."""
    return ParleyError("idempotency_key_reused", "This Idempotency-Key came before with another body. Use a new key.")


def idempotency(keys: Keys, author: Author, key: str, body: Json) -> Idempotency:
    """The hashes of a keyed request.

    Two bodies are the same when their JSON is, whatever the order of names, and whether they come over HTTP, as a
    stream, or over WebSocket.

    Raises:
        ParleyError: invalid_request: the body is nested too deeply; fields of an item that are ignored may be.
    """
    secret = author.user.bytes + key.encode()
    body = {name: value for name, value in body.items() if name not in TRANSPORT_FIELDS}
    try:
        same = orjson.dumps(body, option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError:
        raise ParleyError("invalid_request", "The body is nested too deeply.") from None
    return Idempotency(
        key_hash=hmac.new(keys[0], b"idempotency" + secret, "sha256").hexdigest(),
        body_hash=hashlib.sha256(same).hexdigest(),
    )


def place(
    request: CreateResponse, author: Author, keys: Keys, cell: int, idempotent: Idempotency | None = None
) -> Placement:
    """The session of a request: the named one, the parent's, the key's, or a new one.

    Raises:
        ParleyError: not_found, for ids that are mistyped, forged or another user's alike; nothing has been read.
    """
    if request.conversation_id is not None:
        return Placement(own_session(keys, author, request.conversation_id, "conversation"), False, named=True)
    if request.previous_response_id is not None:
        parent = request.previous_response_id
        address = own_response(keys, author, parent, "previous_response_id")
        return Placement(address.session, False, named=False, parent=parent, parent_lane=address.lane)
    if idempotent is not None:
        return Placement(ids.session_from_key(author.user, idempotent.key_hash, cell), True, named=False)
    return Placement(ids.new_session(cell), True, named=False)


def own_session(keys: Keys, author: Author, text: str, param: str | None = None) -> UUID:
    """The session of one of the author's conversation ids.

    Raises:
        ParleyError: not_found.
    """
    try:
        return ids.parse_conversation_id(keys, author.user, text)
    except UnknownId:
        raise ParleyError("not_found", "There is no such conversation.", param=param) from None


def own_response(keys: Keys, author: Author, text: str, param: str | None = None) -> ids.ResponseAddress:
    """The address in one of the author's response ids.

    Raises:
        ParleyError: not_found.
    """
    try:
        return ids.parse_response_id(keys, author.user, text)
    except UnknownId:
        raise ParleyError("not_found", "There is no such response.", param=param) from None


def check(request: CreateResponse, tier: Tier, topics: Topics) -> Pool:
    """Refuse what can't be answered; gives the pool that the routing table would take for a short prompt.

    Raises:
        ParleyError: unsupported, invalid_request, model_not_found or context_length_exceeded.
    """
    request.refuse_unsupported()
    pool = topics.route_pool(request.model, tier) if request.model is not None else None
    if pool is None:
        asked = "The request names no model" if request.model is None else f"There is no model {request.model[:64]!r}"
        raise ParleyError("model_not_found", f"{asked}; there are: {', '.join(topics.models)}.", param="model")
    limit = max(each.context for each in topics.pools.values() if _serves(topics, request.model, each))
    characters = _characters(request)
    if characters > limit * CHARACTERS_PER_TOKEN:
        raise ParleyError(
            "context_length_exceeded",
            f"The input has {characters:,} characters; the model's context is {limit:,} tokens. Shorten the input.",
            param="input",
        )
    return pool


def accept(
    request: CreateResponse,
    author: Author,
    placement: Placement,
    pool: Pool,
    *,
    keys: Keys,
    route: Route,
    lane: int,
    now_ms: int,
    max_record: int,
    idempotent: Idempotency | None = None,
) -> PromptAccepted:
    """The prompt of a checked request, with its id. Acknowledged by the log, it is accepted.

    Raises:
        ParleyError: unsupported or invalid_request, about an item of the input; request_too_large.
    """
    response = ids.new_response_id(keys, author.user, placement.session, lane, route.start, now_ms)
    items = input_items(request, response)
    store = request.store is not False
    sampling = Sampling(
        temperature=request.temperature,
        top_p=request.top_p,
        frequency_penalty=request.frequency_penalty or 0.0,
        presence_penalty=request.presence_penalty or 0.0,
        max_output_tokens=request.max_output_tokens,
        stop=request.stop or (),
        seed=request.seed,
    )
    prompt = PromptAccepted(
        response=response,
        session=placement.session,
        user=author.user,
        tier=author.tier,
        accepted_at=now_ms,
        model=request.model or "",
        items=items,
        instructions=request.instructions or None,
        sampling=sampling,
        parent=placement.parent,
        new_session=placement.new_session,
        listed=placement.named and store,
        store=store,
        truncation=request.truncation or "auto",
        route=route,
        key_hash=idempotent.key_hash if idempotent else None,
        body_hash=idempotent.body_hash if idempotent else None,
        traceparent=author.trace,
        echo=echo_of(request, pool) | {OUTPUT_ITEM: ids.message_id(response, len(items))},
    )
    if len(encode(prompt)) > max_record - RECORD_MARGIN:
        raise ParleyError("request_too_large", "The request is larger than the log takes. Shorten it.", param="input")
    return prompt


def echo_of(request: CreateResponse, pool: Pool) -> Json:
    """The fields that the response repeats, where they differ from what a response says anyway."""
    conversation = request.conversation_id
    said: Json = {
        "model": request.model,
        "previous_response_id": request.previous_response_id,
        "conversation": {"id": conversation} if conversation is not None else None,
        "instructions": request.instructions,
        "temperature": _first(request.temperature, pool.sampling.temperature),
        "top_p": _first(request.top_p, pool.sampling.top_p),
        "presence_penalty": request.presence_penalty,
        "frequency_penalty": request.frequency_penalty,
        "max_output_tokens": request.max_output_tokens,
        "max_tool_calls": request.max_tool_calls,
        "truncation": request.truncation,
        "tool_choice": request.tool_choice,
        "parallel_tool_calls": request.parallel_tool_calls,
        "store": request.store,
        "background": request.background,
        "metadata": request.metadata,
        "user": request.user,
        "safety_identifier": request.safety_identifier,
        "prompt_cache_key": request.prompt_cache_key,
    }
    if request.text and request.text.verbosity:
        said["text"] = ECHO_DEFAULTS["text"] | {"verbosity": request.text.verbosity}
    return {name: value for name, value in said.items() if value is not None and value != ECHO_DEFAULTS[name]}


def input_items(request: CreateResponse, response: str) -> tuple[Item, ...]:
    """What the user says in this turn, as messages with ids.

    Raises:
        ParleyError: invalid_request or unsupported, about the item.
    """
    if request.input is None or request.input in ("", ()):
        raise ParleyError("invalid_request", "input is empty: give a text or a list of messages.", param="input")
    if isinstance(request.input, str):
        return (Item(id=ids.message_id(response, 0), role="user", parts=(Text(text=request.input),)),)
    items = tuple(_item(item, n, response) for n, item in enumerate(request.input))
    if items[-1].role != "user":
        raise ParleyError("invalid_request", "The last message of the input must be the user's.", param="input")
    if not items[-1].text:
        raise ParleyError("invalid_request", "The user's message is empty.", param="input")
    return items


def _item(item: InputItem, n: int, response: str) -> Item:
    param = f"input[{n}]"
    if item.type not in (None, "message"):
        raise unsupported(param, f"items of type {item.type[:40]!r} can't be used, only messages")
    if item.role is None or item.content is None:
        raise ParleyError("invalid_request", f"{param} needs a role and a content.", param=param)
    if isinstance(item.content, str):
        parts: tuple[Text | Refusal, ...] = (Text(text=item.content),)
    else:
        parts = tuple(
            _part(part.type, part.text, part.refusal, f"{param}.content[{m}]") for m, part in enumerate(item.content)
        )
    return Item(id=ids.message_id(response, n), role=item.role, parts=parts)


def _part(type_: str, text: str | None, refusal: str | None, param: str) -> Text | Refusal:
    if type_ in ("input_text", "output_text", "text") and text is not None:
        return Text(text=text)
    if type_ == "refusal" and refusal is not None:
        return Refusal(refusal=refusal)
    if type_ in ("input_text", "output_text", "text", "refusal"):
        raise ParleyError("invalid_request", f"{param} of type {type_} has no text.", param=param)
    raise unsupported(param, f"content of type {type_[:40]!r} can't be used, only text")


def _serves(topics: Topics, model: str | None, pool: Pool) -> bool:
    return any(rule.model == model and rule.pool == pool.name for rule in topics.routing)


def _characters(request: CreateResponse) -> int:
    total = len(request.instructions or "")
    if isinstance(request.input, str):
        return total + len(request.input)
    for item in request.input or ():
        if isinstance(item.content, str):
            total += len(item.content)
        else:
            total += sum(len(part.text or "") for part in item.content or ())
    return total


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)
