"""A conversation of its own for each test, written into the topics that roles use, on the session's Kafka."""

from __future__ import annotations

import asyncio
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

import click
import pytest
from click.testing import CliRunner, Result
from pydantic import BaseModel

from parley.ids import SESSION_TOPIC_LANE, Keys, message_id, new_response_id, new_session
from parley.log.admin import connect
from parley.log.partitions import partition_of, session_key
from parley.log.producer import Producer
from parley.log.ranges import RangeReader
from parley.settings import Settings
from parley.topics import CONTROL, PROMPTS, TOKENS, TURNS, VERDICTS
from parley.topics_cli import apply_topics
from schemas.base import Item, Route, Text
from schemas.prompts import Cancel, PromptAccepted, Verdict
from schemas.routes import Delta, Fence, Opened, Terminal, encode_route_record
from schemas.turns import SessionChanged, TurnEnded, TurnStarted
from schemas.wire import Headers, encode, headers

SECRET = b"of the edges, 32 bytes, for tests"
KEYS = Keys((SECRET,))


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass
class Talk:
    """One conversation, and the way into the log that edges, orchestrators and workers have."""

    settings: Settings
    producer: Producer
    ranges: RangeReader
    user: UUID = field(default_factory=uuid4)
    session: UUID = field(default_factory=new_session)
    turns: int = 0

    @property
    def key(self) -> bytes:
        return session_key(self.session.hex)

    @property
    def partition(self) -> int:
        return partition_of(self.key, self.settings.topics.session_partitions)

    async def put(self, topic: str, event: BaseModel, more: Headers = ()) -> int:
        """An event on a session-keyed topic."""
        about = headers(str(event.type), response=getattr(event, "response", None), more=more)  # type: ignore[attr-defined]
        return await self.producer.send(topic, encode(event), key=self.key, partition=self.partition, headers=about)

    async def say(self, response: str, route: Route, *events: Opened | Fence | Delta | Terminal) -> int:
        """Events on a turn's route, as one record."""
        value = encode_route_record(events)
        return await self.producer.send(route.topic, value, key=response.encode(), partition=route.partition)

    async def lane(self, lane: int) -> Route:
        return Route(topic=TOKENS, partition=lane, start=await self.ranges.end_offset(TOKENS, lane))

    async def own_topic(self) -> Route:
        """The session's own topic, made when it is asked for first."""
        topic = self.settings.topics.session_topic(self.session.hex)
        async with connect(self.settings.kafka) as admin:
            await admin.create([topic], replication=1, min_insync_replicas=1)
        return Route(topic=topic.name, partition=0, start=await self.ranges.end_offset(topic.name, 0))

    def response(self, route: Route) -> str:
        lane = route.partition if route.topic == TOKENS else SESSION_TOPIC_LANE
        return new_response_id(KEYS, self.user, self.session, lane, route.start, now_ms())

    def prompt(self, response: str, route: Route, text: str, **more: Any) -> PromptAccepted:
        about = {"response": response, "session": self.session, "user": self.user, "tier": "free"}
        item = Item(id=message_id(response, 0), role="user", parts=(Text(text=text),))
        rest = {"accepted_at": now_ms(), "model": "auto", "items": (item,), "new_session": True, "route": route}
        return PromptAccepted(**about | rest | more)

    def started(self, prompt: PromptAccepted, number: int, **more: Any) -> TurnStarted:
        about = {name: getattr(prompt, name) for name in ("response", "session", "user", "tier", "items", "route")}
        rest = {"turn": number, "parent": None, "pool": "synthetic", "model": "m", "dispatch": (1, number)}
        return TurnStarted(**about | rest | {"deadline": 1, "moderation_deadline": 1, "accepted_at": 1} | more)

    def ended(self, prompt: PromptAccepted, number: int, text: str = "", **more: Any) -> TurnEnded:
        about = {name: getattr(prompt, name) for name in ("response", "session", "user", "tier")}
        item = Item(id=message_id(prompt.response, 1), role="assistant", parts=(Text(text=text),))
        rest = {"turn": number, "parent": None, "dispatch": (1, number), "epoch": (1, number, 1, 1), "output": (item,)}
        last = {"status": "completed", "model": "m", "code": "t", "accepted_at": 1, "ended_at": 1}
        return TurnEnded(**about | rest | last | more)

    def verdict(self, response: str, decision: str = "allow") -> Verdict:
        about = {"response": response, "session": self.session, "stage": "input", "decision": decision}
        return Verdict.model_validate(about | {"policy": "p1", "model": "m1", "at": 1})

    def terminal(self, writer: str, seq: int) -> Terminal:
        return Terminal(writer=writer, seq=seq, kind="completed", model="m", ended_at=1)

    def opened(self) -> Opened:
        return Opened(session=self.session, user=self.user, created_at=1, waiting=False)

    def changed(self, title: str) -> SessionChanged:
        return SessionChanged(session=self.session, user=self.user, at=1, title=title)

    async def whole_turn(self, route: Route, question: str, answer: Sequence[str]) -> str:
        """A turn from prompt to end, with a zombie that writes between."""
        self.turns += 1
        number, response = self.turns, self.response(route)
        prompt = self.prompt(response, route, question)
        await self.put(PROMPTS, prompt)
        await self.say(response, route, self.opened())
        await self.put(VERDICTS, self.verdict(response))
        await self.put(TURNS, self.started(prompt, number))
        await self.say(response, route, Fence(epoch=(1, number, 1, 1), writer="old"))
        await self.say(response, route, Fence(epoch=(1, number, 2, 1), writer="new"))
        for seq, text in enumerate(answer):
            await self.say(response, route, Delta(writer="new", seq=seq, text=text, tokens=1))
        await self.say(response, route, Delta(writer="old", seq=0, text="zombie", tokens=1))
        await self.say(response, route, self.terminal("new", len(answer)))
        await self.put(TURNS, self.ended(prompt, number, "".join(answer), epoch=(1, number, 2, 1)))
        return response

    async def cancel(self, response: str) -> None:
        await self.put(CONTROL, Cancel(response=response, session=self.session, user=self.user, at=1))

    async def command(self, command: click.Command, *arguments: str, **env: str) -> Result:
        """A command against the same cluster; it runs an event loop of its own, so in a thread."""
        bootstrap = {"PARLEY_KAFKA__BOOTSTRAP": self.settings.kafka.bootstrap}
        keys = {"PARLEY_ID_KEYS": f'["{b64encode(SECRET).decode()}"]'}
        return await asyncio.to_thread(CliRunner().invoke, command, list(arguments), env=bootstrap | keys | env)


@pytest.fixture
async def talk(kafka_bootstrap: str) -> AsyncIterator[Talk]:
    settings = Settings.model_validate({"kafka": {"bootstrap": kafka_bootstrap}})
    await apply_topics(settings)
    producer, ranges = Producer(settings.kafka, "test"), RangeReader(settings.kafka)
    await producer.start()
    yield Talk(settings, producer, ranges)
    await producer.stop()
    await ranges.stop()
