"""Users with real habits: they lose their sockets and resume on the other edge, cancel, leave, and come late.

Each has a conversation at a time and asks in it again and again, one prompt after the other. Every request that makes
something carries an idempotency key and is sent until it is answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
import websockets
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from tests.chaos.evidence import DELTA, TERMINALS, Asked, Event, Reading

LOST = (ConnectionClosed, InvalidHandshake, OSError, TimeoutError, httpx.HTTPError)
"""A connection that is gone, whatever the client calls it."""
PAUSE_S = (0.2, 1.0)
"""Before coming back."""
PATIENCE_S = 240.0
"""A turn that takes longer has a user who has given up, and a run that has failed."""
DEAD_S = 10.0
"""A socket that answers no ping for so long is dead."""
PERIOD_MS = 100


def request(prompt: str, words: int, conversation: str) -> dict[str, Any]:
    """For an answer of so many words, ten a second."""
    script = json.dumps({"first_ms": 50, "period_ms": PERIOD_MS, "words": words})
    return {
        "model": "synthetic",
        "input": f"{prompt}\n::script {script}",
        "conversation": conversation,
        "max_output_tokens": words + 20,
    }


class Refused(Exception):
    """The edge will not do it, now or later."""


@dataclass
class Heard:
    """One reader's view of one response while it grows."""

    reader: str
    events: list[Event] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    """When it heard of the turn's getting on: its acceptance, its beginning, its tokens."""
    response: str = ""
    done: bool = False

    def hear(self, event: dict[str, Any]) -> None:
        """Note an event of the response."""
        type_ = event["type"]
        text = event["delta"] if type_ == DELTA else event["response"]["status"] if type_ in TERMINALS else ""
        self.events.append(Event(event["sequence_number"], type_, text))
        if type_ == "response.created":
            self.response = event["response"]["id"]
        if type_ == "response.queued":
            self.times.clear()  # what it waits for is another turn of its session
        elif type_ in ("response.created", "response.in_progress", DELTA):
            self.times.append(time.monotonic())
        self.done = self.done or type_ in TERMINALS

    @property
    def last(self) -> int:
        """Number of the newest event; -1: none."""
        return self.events[-1].number if self.events else -1

    @property
    def deltas(self) -> int:
        """How many came."""
        return sum(event.type == DELTA for event in self.events)

    def reading(self) -> Reading:
        """As evidence."""
        return Reading(self.response, self.reader, tuple(self.events), self.done)


@dataclass
class Chatting:
    """All users of a run, and what they have seen."""

    edges: tuple[str, ...]
    key: str
    words: int
    seed: int
    think_s: float = 1.0
    asked: list[Asked] = field(default_factory=list)
    heard: list[Heard] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)
    """What no client should ever meet."""
    resumes: int = 0
    over: asyncio.Event = field(default_factory=asyncio.Event)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)
    _beside: set[asyncio.Task[None]] = field(default_factory=set)

    async def run(self, users: int) -> None:
        """Until `over` is set and every turn that was begun has been read to its end."""
        async with httpx.AsyncClient(
            headers={"authorization": f"Bearer {self.key}"}, timeout=30, limits=httpx.Limits(max_connections=200)
        ) as http:
            await asyncio.gather(*(User(self, number, http).run() for number in range(users)))
            while self._beside:
                await asyncio.wait(self._beside)

    def beside(self, work: Any) -> None:
        """Something that another device of a user does meanwhile."""
        task = asyncio.create_task(work)
        self._beside.add(task)
        task.add_done_callback(self._finished)

    def number(self) -> int:
        """Of the next prompt of all."""
        return next(self._numbers)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._beside.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.troubles.append(f"a second device: {error!r}")


class User:
    """One of them."""

    def __init__(self, chatting: Chatting, number: int, http: httpx.AsyncClient) -> None:
        self._all = chatting
        self._name = f"user {number}"
        self._http = http
        self._dice = random.Random(f"{chatting.seed}-{number}")
        self._edge = number

    async def run(self) -> None:
        """Chat until all is over."""
        await asyncio.sleep(self._dice.uniform(0, 2 * self._all.think_s))
        while not self._all.over.is_set():
            try:
                async with asyncio.timeout(PATIENCE_S):
                    conversation = await self.open()
            except TimeoutError:
                self._all.troubles.append(f"{self._name}: no conversation could be opened in {PATIENCE_S:.0f} s")
                continue
            for _ in range(self._dice.randint(2, 6)):
                if self._all.over.is_set():
                    break
                await self._turn(conversation)
                await asyncio.sleep(self._all.think_s * self._dice.uniform(0.2, 1.8))

    async def open(self) -> str:
        """A conversation of its own."""
        key = f"{self._all.seed}-open-{self._all.number()}"
        while True:
            try:
                answer = await self._http.post(
                    f"{self._place()}/v1/conversations", json={}, headers={"idempotency-key": key}
                )
                if answer.status_code == httpx.codes.OK:
                    return str(answer.json()["id"])
                if answer.status_code < 500 and answer.status_code != httpx.codes.TOO_MANY_REQUESTS:
                    raise Refused(f"a conversation: {answer.status_code} {answer.text}")
            except LOST:
                pass
            await self._move()

    async def _turn(self, conversation: str) -> None:
        number = self._all.number()
        prompt = f"{self._name} says {self._all.seed}-{number}."
        body = request(prompt, self._all.words, conversation)
        heard = Heard(self._name)
        seen: list[str] = []
        habit = self._dice.choices(
            ("stays", "cancels", "leaves", "is followed", "is read beside", "cuts"), (40, 12, 10, 13, 13, 12)
        )[0]
        begun: set[str] = set()
        after = self._dice.randint(1, self._all.words - 5)

        def on_event() -> bool:
            """What this user does at this point. True: leaves."""
            if heard.response and heard.response not in seen:
                seen.append(heard.response)
            if heard.done or heard.deltas < after or "habit" in begun:
                return False
            begun.add("habit")
            if habit == "cancels":
                self._all.beside(self._cancel(heard.response))
            elif habit == "is read beside":
                self._all.beside(self._read_beside(heard.response))
            return habit == "leaves"

        if habit == "is followed":
            self._all.beside(self._follow(conversation, prompt))
        stream = self.over_sse if self._dice.random() < 0.25 else self.over_websocket
        cut_after = self._dice.randint(2, self._all.words) if habit == "cuts" else None
        try:
            async with asyncio.timeout(PATIENCE_S):
                await stream(body, f"{self._all.seed}-{number}", heard, on_event, cut_after)
        except TimeoutError:
            where = f"event {heard.last} of {heard.response}" if heard.events else "no answer"
            self._all.troubles.append(f"{self._name}: gave up after {PATIENCE_S:.0f} s at {where}")
        except Refused as error:
            self._all.troubles.append(f"{self._name}: {error}")
        self._all.asked.append(
            Asked(body["input"], conversation, self._all.words, tuple(seen), cancelled=habit == "cancels")
        )
        if heard.response:
            self._all.heard.append(heard)

    # -- ways of reading ----------------------------------------------------------------------------------------------

    async def over_websocket(
        self, body: dict[str, Any], key: str, heard: Heard, on_event: Callable[[], bool], cut_after: int | None
    ) -> None:
        """Ask, and read to the end; whatever happens to the socket, go on where it stopped."""
        while not heard.done:
            try:
                async with self._socket() as socket:
                    if heard.response:
                        await self._resume(socket, heard)
                    else:
                        await socket.send(json.dumps({"type": "response.create", "idempotency_key": key} | body))
                    async for frame in socket:
                        if self._take(heard, json.loads(frame)):
                            break
                        if on_event():
                            return
                        if heard.done:
                            return
                        if cut_after is not None and heard.deltas >= cut_after:
                            cut_after = None
                            socket.transport.abort()
                            break
            except LOST:
                pass
            await self._move()

    async def over_sse(
        self, body: dict[str, Any], key: str, heard: Heard, on_event: Callable[[], bool], cut_after: int | None
    ) -> None:
        """The same over HTTP."""
        while not heard.done:
            try:
                if heard.response:
                    asking = self._http.stream("GET", self._of(heard.response, heard.last))
                else:
                    asking = self._http.stream(
                        "POST",
                        f"{self._place()}/v1/responses",
                        json=body | {"stream": True},
                        headers={"idempotency-key": key},
                    )
                async with asking as answer:
                    async for event in self._events(answer):
                        if self._take(heard, event):
                            break
                        if on_event():
                            return
                        if cut_after is not None and heard.deltas >= cut_after:
                            cut_after = None
                            break
            except LOST:
                pass
            if not heard.done:
                await self._move()

    async def _follow(self, conversation: str, prompt: str) -> None:
        """Another device, which knows only the conversation: it shows the turn with this prompt."""
        edge = self._edge + 1
        heard = Heard(f"{self._name}'s other device")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                while not heard.done:
                    try:
                        async with self._socket(edge) as socket:
                            if heard.response:
                                await self._resume(socket, heard)
                            else:
                                await socket.send(json.dumps({"type": "parley:follow", "conversation": conversation}))
                                if not await self._announced(socket, prompt, heard):
                                    return
                            async for frame in socket:
                                if self._take(heard, json.loads(frame)) or heard.done:
                                    break
                    except LOST:
                        pass
                    edge += 1
                    await asyncio.sleep(self._dice.uniform(*PAUSE_S))
        if heard.events:
            self._all.heard.append(heard)

    @staticmethod
    async def _announced(socket: websockets.ClientConnection, prompt: str, heard: Heard) -> bool:
        """Until the turn with this prompt is announced. False: another one is, or it was over before we came."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(30):
                async for frame in socket:
                    event = json.loads(frame)
                    if event["type"] == "parley:turn":
                        heard.response = event["response_id"]
                        return prompt in json.dumps(event["input"])
        return False

    async def _read_beside(self, response: str) -> None:
        """Another reader of a response that runs, from its beginning, on the other edge."""
        heard = Heard(f"{self._name}'s late reader", response=response)
        edge = self._edge + 1
        async with asyncio.timeout(PATIENCE_S):
            while not heard.done:
                try:
                    async with self._http.stream("GET", self._of(response, heard.last, edge)) as answer:
                        async for event in self._events(answer):
                            if self._take(heard, event):
                                break
                except LOST:
                    pass
                edge += 1
                await asyncio.sleep(self._dice.uniform(*PAUSE_S))
        self._all.heard.append(heard)

    async def _cancel(self, response: str) -> None:
        """Until some edge has taken it."""
        edge = self._edge + 1
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    url = f"{self._place(edge)}/v1/responses/{response}/cancel"
                    answer = await self._http.post(url)
                    if answer.status_code == httpx.codes.OK:
                        return
                    if answer.status_code < 500:
                        self._all.troubles.append(f"cancel of {response}: {answer.status_code} {answer.text}")
                        return
                except LOST:
                    pass
                edge += 1
                await asyncio.sleep(self._dice.uniform(*PAUSE_S))

    # -- the parts ----------------------------------------------------------------------------------------------------

    def _take(self, heard: Heard, event: dict[str, Any]) -> bool:
        """Note an event. True: this connection is of no more use.

        Raises:
            Refused: the edge will not do what it is asked, now or later.
        """
        type_ = event["type"]
        if type_ == "error":
            code = event["error"]["code"]
            status = event.get("status", 503)
            if status >= 500 or status == httpx.codes.TOO_MANY_REQUESTS or code in ("internal", "slow_reader"):
                return True
            raise Refused(f"{code} for {heard.response or 'a prompt'}: {event['error']['message']}")
        if not type_.startswith("parley:"):
            heard.hear(event)
        return False

    async def _resume(self, socket: websockets.ClientConnection, heard: Heard) -> None:
        self._all.resumes += 1
        resume = {"type": "parley:resume", "response_id": heard.response, "starting_after": heard.last}
        await socket.send(json.dumps(resume))

    @contextlib.asynccontextmanager
    async def _socket(self, edge: int | None = None) -> AsyncIterator[websockets.ClientConnection]:
        async with websockets.connect(
            self._place(edge).replace("http", "ws", 1) + "/v1/responses",
            subprotocols=[websockets.Subprotocol("parley.v1")],
            additional_headers={"authorization": f"Bearer {self._all.key}"},
            compression=None,
            max_size=None,
            open_timeout=DEAD_S,
            ping_interval=DEAD_S / 2,
            ping_timeout=DEAD_S,
            close_timeout=1,
            proxy=None,
        ) as socket:
            yield socket

    async def _events(self, answer: httpx.Response) -> AsyncIterator[dict[str, Any]]:
        """Of a stream of server-sent events.

        Raises:
            Refused: the edge will not do it, now or later.
            httpx.HTTPError: it can't do it now.
        """
        if answer.status_code >= 500 or answer.status_code == httpx.codes.TOO_MANY_REQUESTS:
            raise httpx.HTTPError(f"status {answer.status_code}")
        if answer.status_code != httpx.codes.OK:
            raise Refused(f"{answer.status_code} {(await answer.aread()).decode()}")
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                yield json.loads(line[6:])

    def _place(self, edge: int | None = None) -> str:
        return self._all.edges[(self._edge if edge is None else edge) % len(self._all.edges)]

    def _of(self, response: str, after: int, edge: int | None = None) -> str:
        resumed = f"&starting_after={after}" if after >= 0 else ""
        self._all.resumes += after >= 0
        return f"{self._place(edge)}/v1/responses/{response}?stream=true{resumed}"

    async def _move(self) -> None:
        """Come back a little later, elsewhere."""
        self._edge += 1
        await asyncio.sleep(self._dice.uniform(*PAUSE_S))
