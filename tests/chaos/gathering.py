"""After the storm: wait until the views have caught up, then ask everybody what there is."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable, Mapping
from uuid import UUID

import httpx
from aiokafka import TopicPartition

from consumers.usage.report import read_usage
from parley.errors import ParleyError
from parley.ids import response_address
from parley.log.ranges import Record
from parley.log.spans import open_spans
from parley.session import Session
from parley.settings import Settings
from parley.stores.messages import MessageStore
from parley.topics import TURNS
from schemas.turns import TurnEnded, TurnStarted
from schemas.wire import decode_turns_event
from tests.chaos.evidence import Counted, End, Kept, Reading
from tests.chaos.users import LOST, Heard

CATCH_UP_S = 90.0
AT_ONCE = 8


async def state_log(settings: Settings) -> tuple[dict[str, str], tuple[End, ...]]:
    """(prompt of every turn that was begun, by response; the ends that stand), from the whole of chat.turns."""
    sessions: dict[UUID, Session] = {}
    started: dict[str, str] = {}
    ends: list[End] = []

    def take(record: Record) -> None:
        event = decode_turns_event(record.value)
        session = sessions.setdefault(event.session, Session(event.session))
        if session.apply(event) is not None:
            return
        if isinstance(event, TurnStarted):
            started[event.response] = event.items[0].text if event.items else ""
        elif isinstance(event, TurnEnded):
            text = "".join(item.text for item in event.output)
            retryable = event.failure is not None and event.failure.retryable
            ends.append(End(event.response, event.status, text, event.usage.output_tokens, retryable))

    wheres = [TopicPartition(TURNS, number) for number in range(settings.topics.topics[TURNS].partitions)]
    async with open_spans(settings.kafka, "chaos") as spans:
        await spans.read(await spans.bounds(wheres), take)
    return started, tuple(ends)


async def kept_turns(settings: Settings, responses: Iterable[str]) -> dict[str, Kept]:
    """What the message store has of them."""
    found: dict[str, Kept] = {}
    store = await MessageStore.connect(settings.messages)
    try:
        for response in responses:
            session = response_address(response).session
            turn = await store.turn_of(session, response)
            if turn is not None:
                prompt = turn.items[0].text if turn.items else ""
                text = "".join(item.text for item in turn.output)
                where = (turn.turn, prompt, turn.status, text, turn.delta_lengths)
                found[response] = Kept(response, session.hex, *where)
    finally:
        await store.close()
    return found


async def caught_up(settings: Settings, ends: tuple[End, ...]) -> tuple[dict[str, Kept], Counted]:
    """History and usage, when they have all of these ends; as they are, if they don't in CATCH_UP_S."""
    wanted = {end.response for end in ends}
    deadline = time.monotonic() + CATCH_UP_S
    while True:
        kept = await kept_turns(settings, wanted)
        rows = await read_usage(settings)
        counted = Counted(sum(row.turns for row in rows), sum(row.output_tokens for row in rows))
        complete = len(kept) == len(wanted) and all(turn.status is not None for turn in kept.values())
        if (complete and counted.turns >= len(wanted)) or time.monotonic() > deadline:
            return kept, counted
        await asyncio.sleep(2)


async def late_readings(
    edges: tuple[str, ...], headers: Mapping[str, str], responses: Iterable[str]
) -> dict[str, Reading]:
    """The stream of each response from its beginning, from either edge."""
    found: dict[str, Reading] = {}
    places = asyncio.Semaphore(AT_ONCE)

    async def read(number: int, response: str, http: httpx.AsyncClient) -> None:
        heard = Heard("late reader", response=response)
        url = f"{edges[number % len(edges)]}/v1/responses/{response}?stream=true"
        async with places, asyncio.timeout(60), http.stream("GET", url) as answer:
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    event = json.loads(line[6:])
                    if event["type"] == "error":
                        return
                    heard.hear(event)
        found[response] = heard.reading()

    async def read_surely(number: int, response: str, http: httpx.AsyncClient) -> None:
        for attempt in range(3):
            try:
                await read(number + attempt, response, http)
            except LOST:
                continue
            if response in found and found[response].done:
                return

    async with httpx.AsyncClient(headers=dict(headers), timeout=60) as http:
        await asyncio.gather(*(read_surely(number, response, http) for number, response in enumerate(responses)))
    return found


async def until_quiet(settings: Settings, limit_s: float) -> tuple[dict[str, str], tuple[End, ...]]:
    """The state log when every turn in it has an end; as it is, after the limit."""
    deadline = time.monotonic() + limit_s
    while True:
        try:
            started, ends = await state_log(settings)
        except ParleyError:
            started, ends = {}, ()
        ended = {end.response for end in ends}
        if (started and started.keys() <= ended) or time.monotonic() > deadline:
            return started, ends
        await asyncio.sleep(2)
