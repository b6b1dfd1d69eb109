"""The orchestrator on real Kafka and a real message store, between an edge and a worker that the test plays.

Everything that the log says is collected, so a test says what it sends and waits for what comes of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient

from consumers.history.main import feed
from consumers.orchestrator import main as orchestrator
from parley.clock import now_ms
from parley.endings import turn_ended
from parley.ids import Keys, message_id, new_response_id, new_session, session_from_key
from parley.log.follower import Follower
from parley.log.partitions import partition_of, session_key
from parley.log.producer import Producer
from parley.log.ranges import Record
from parley.ownership import Claim
from parley.settings import Settings
from parley.stores.messages import MessageStore
from parley.topics import CONTROL, DLQ, PROMPTS, TOKENS, TURNS
from parley.transcript import Transcript
from schemas.base import Item, Route, Sampling, Text, epoch_of
from schemas.prompts import Cancel, InferenceRequest, PromptAccepted
from schemas.routes import Delta, Fence, Opened, Terminal, decode_route_record, encode_route_record
from schemas.turns import SessionDeleted, TurnEnded, TurnStarted
from schemas.wire import STARTED_HEADER, BadRecord, TurnsEvent, decode_turns_event, decoder, encode, header, headers

KEYS = Keys((b"a secret of the tests",))
MODEL = "synthetic"
REQUESTS = ("chat.inference.synthetic.paid", "chat.inference.synthetic.free")

_request: Callable[[bytes | None], InferenceRequest] = decoder(InferenceRequest)
_cancel: Callable[[bytes | None], Cancel] = decoder(Cancel)


@dataclass
class Chat:
    """A user's session."""

    user: UUID = field(default_factory=uuid4)
    session: UUID = field(default_factory=new_session)
    spoken: bool = False

    @classmethod
    def of_key(cls, key_hash: str) -> Chat:
        """The session of a keyed request that names none."""
        user = uuid4()
        return cls(user, session_from_key(user, key_hash))


@dataclass
class Stage:
    """The log, and what it says."""

    settings: Settings
    producer: Producer
    follower: Follower
    messages: MessageStore
    events: list[tuple[TurnsEvent, Record]] = field(default_factory=list)
    requests: list[tuple[InferenceRequest, Record]] = field(default_factory=list)
    cancels: list[Cancel] = field(default_factory=list)
    letters: list[Record] = field(default_factory=list)
    routes: dict[str, Transcript] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    # -- what the log says --------------------------------------------------------------------------------------------

    def watch(self) -> None:
        """Collect everything from the beginning on."""
        count = self.settings.topics.session_partitions
        for topic in (TURNS, CONTROL, DLQ, TOKENS, *REQUESTS):
            for partition in range(count):
                self.follower.follow(topic, partition, 0, self._seen)

    def _seen(self, record: Record) -> None:
        match record.topic:
            case "chat.turns":
                self.events.append((decode_turns_event(record.value), record))
            case "chat.control":
                self.cancels.append(_cancel(record.value))
            case "chat.dlq":
                self.letters.append(record)
            case "chat.tokens":
                transcript = self.routes.setdefault(record.key.decode(), Transcript())
                for event in decode_route_record(record.value):
                    transcript.apply(event)
            case _:
                with contextlib.suppress(BadRecord):  # a test may have written it
                    self.requests.append((_request(record.value), record))
        self.changed.set()

    async def until(self, what: Callable[[], object], within: float = 30.0) -> None:
        async with asyncio.timeout(within):
            while not what():
                self.changed.clear()
                try:
                    async with asyncio.timeout(0.2):
                        await self.changed.wait()
                except TimeoutError:
                    pass

    def ends(self, response: str) -> list[TurnEnded]:
        return [event for event, _ in self.events if isinstance(event, TurnEnded) and event.response == response]

    def starts(self, response: str) -> list[TurnStarted]:
        return [event for event, _ in self.events if isinstance(event, TurnStarted) and event.response == response]

    def asked(self, response: str) -> list[InferenceRequest]:
        return [request for request, _ in self.requests if request.response == response]

    def opened(self, response: str) -> Opened | None:
        return self.routes[response].opened if response in self.routes else None

    def terminal(self, response: str) -> Terminal | None:
        return self.routes[response].terminal if response in self.routes else None

    async def request(self, response: str) -> InferenceRequest:
        """The turn's request, once it is there."""
        await self.until(lambda: self.asked(response))
        return self.asked(response)[-1]

    async def word(self, response: str) -> Opened:
        """The orchestrator's first word on a prompt."""
        await self.until(lambda: self.opened(response))
        opened = self.opened(response)
        assert opened is not None
        return opened

    async def end(self, response: str, within: float = 30.0) -> tuple[Terminal, TurnEnded]:
        """The turn's end, on its route and in the state log: the same."""
        await self.until(lambda: self.terminal(response) and self.ends(response), within)
        terminal, [ended] = self.terminal(response), self.ends(response)
        assert terminal is not None
        assert (ended.status, ended.failure) == (terminal.kind, terminal.failure)
        return terminal, ended

    # -- the edge -----------------------------------------------------------------------------------------------------

    def partition(self, chat: Chat) -> int:
        return partition_of(session_key(chat.session.hex), self.settings.topics.session_partitions)

    def beside(self, chat: Chat) -> Chat:
        """Another chat of the same partition."""
        while self.partition(other := Chat()) != self.partition(chat):
            pass
        return other

    async def say(self, chat: Chat, text: str, **fields: Any) -> str:
        """Send a prompt; gives the response's id."""
        prompt = await self.prompt(chat, text, **fields)
        await self.send(prompt)
        return prompt.response

    async def prompt(
        self, chat: Chat, text: str, *, key: str | None = None, body: str = "b", **fields: Any
    ) -> PromptAccepted:
        lane = secrets.randbelow(self.settings.topics.topics[TOKENS].partitions)
        where = TopicPartition(TOKENS, lane)
        _, start = (await self.follower.bounds([where]))[where]
        response = new_response_id(KEYS, chat.user, chat.session, lane, start, now_ms())
        new, chat.spoken = not chat.spoken or chat.session.version == 8, True
        given = {
            "response": response,
            "session": chat.session,
            "user": chat.user,
            "tier": "paid",
            "accepted_at": now_ms(),
            "model": MODEL,
            "items": (Item(id=message_id(response, 0), role="user", parts=(Text(text=text),)),),
            "new_session": new,
            "route": Route(topic=TOKENS, partition=lane, start=start),
            "key_hash": key,
            "body_hash": body if key else None,
            "sampling": Sampling(),
        }
        return PromptAccepted(**given | fields)

    async def send(self, prompt: PromptAccepted, value: bytes | None = None) -> None:
        await self.producer.send_keyed(
            PROMPTS,
            value or encode(prompt),
            key=session_key(prompt.session.hex),
            count=self.settings.topics.session_partitions,
            headers=headers(
                prompt.type,
                response=prompt.response,
                session=prompt.session.hex,
                route=prompt.route,
                more=(("user", prompt.user.hex.encode()),),
            ),
        )

    async def delete(self, chat: Chat) -> None:
        event = SessionDeleted(session=chat.session, user=chat.user, at=now_ms())
        await self.log(event, self.partition(chat))

    async def log(self, event: TurnsEvent, partition: int) -> int:
        """Write to the state log by hand."""
        return await self.producer.send(
            TURNS, encode(event), key=session_key(event.session.hex), partition=partition, headers=headers(event.type)
        )

    # -- the worker ---------------------------------------------------------------------------------------------------

    async def begin(self, request: InferenceRequest, *texts: str) -> Fence:
        """Take the turn, and say a part of the answer."""
        fence = Fence(epoch=epoch_of(request.dispatch, 1, 1), writer=secrets.token_hex(4))
        deltas = [Delta(writer=fence.writer, seq=seq, text=text, tokens=1) for seq, text in enumerate(texts)]
        await self.write(request, fence, *deltas)
        return fence

    async def answer(self, request: InferenceRequest, *texts: str, **fields: Any) -> None:
        """A whole answer, and its end in the state log."""
        fence = await self.begin(request, *texts)
        given = {"kind": "completed", "model": MODEL, "ended_at": now_ms()} | fields
        terminal = Terminal(writer=fence.writer, seq=len(texts), **given)
        await self.write(request, terminal)
        await self.until(lambda: self.terminal(request.response))
        await self.log(turn_ended(request, self.routes[request.response], request.dispatch), self._where(request))
        await self.until(lambda: self.ends(request.response))

    async def write(self, request: InferenceRequest, *events: Fence | Delta | Terminal) -> None:
        route = request.route
        value = encode_route_record(events)
        await self.producer.send(route.topic, value, key=request.response.encode(), partition=route.partition)

    def _where(self, request: InferenceRequest) -> int:
        return partition_of(session_key(request.session.hex), self.settings.topics.session_partitions)

    def place(self, response: str) -> int:
        """Where the request says that the turn's TurnStarted stands."""
        record = next(record for request, record in self.requests if request.response == response)
        return int(header(record.headers, STARTED_HEADER) or -1)

    async def turn(self, chat: Chat, text: str, answer: str, **fields: Any) -> str:
        """One whole turn."""
        response = await self.say(chat, text, **fields)
        await self.answer(await self.request(response), answer)
        return response

    # -- the roles ----------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def orchestrating(self, settings: Settings | None = None) -> AsyncIterator[asyncio.Task[None]]:
        """An orchestrator, stopped as by SIGTERM."""
        stop = asyncio.Event()
        task = asyncio.create_task(orchestrator.serve(settings or self.settings, stop))
        try:
            yield task
        finally:
            stop.set()
            await asyncio.wait({task}, timeout=20)
            assert task.done()

    @asynccontextmanager
    async def history(self) -> AsyncIterator[None]:
        """History of the message store."""
        stop = asyncio.Event()
        task = asyncio.create_task(feed(self.settings, "messages", stop))
        try:
            yield
        finally:
            stop.set()
            await asyncio.wait_for(task, 20)

    async def kept(self) -> None:
        """The message store is brought up to everything that is in the log now, and the watermark with it."""
        wanted = {record.partition: record.offset + 1 for _, record in self.events}
        async with self.history():
            async with asyncio.timeout(60):
                while not await self._reached(wanted):
                    await asyncio.sleep(0.1)

    async def _reached(self, wanted: dict[int, int]) -> bool:
        committed = await self.committed("history-messages", TURNS)
        return all(committed.get(partition, 0) >= offset for partition, offset in wanted.items())

    async def committed(self, group: str, topic: str) -> dict[int, int]:
        return {w.partition: o.offset for w, o in (await self._offsets(group)).items() if w.topic == topic}

    async def claim(self, chat: Chat) -> Claim:
        found = (await self._offsets("orchestrator"))[TopicPartition(PROMPTS, self.partition(chat))]
        return Claim.decode(found.metadata, found.offset)

    async def _offsets(self, group: str) -> dict[TopicPartition, Any]:
        client = AIOKafkaAdminClient(bootstrap_servers=self.settings.kafka.bootstrap)
        await client.start()
        try:
            offsets: dict[TopicPartition, Any] = await client.list_consumer_group_offsets(group)
            return offsets
        finally:
            await client.close()
