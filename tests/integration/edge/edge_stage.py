"""A running edge on real Kafka, PostgreSQL and Cassandra, with the roles behind it played by a script.

The script reads chat.prompts and chat.control and writes the turn's route through the real producer, so each test says
itself what the orchestrator and the worker do, and when.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from aiokafka import AIOKafkaConsumer

from infra.local.checks import free_ports
from parley.log.producer import Producer
from parley.settings import EdgeSettings, Settings
from parley.stores.accounts import Accounts, User
from parley.topics import CONTROL, TURNS
from producers.edge.app import build_app
from producers.edge.main import Server, configure, listen
from producers.edge.service import Edge, open_edge
from schemas.base import Failure, Usage
from schemas.prompts import Cancel, PromptAccepted
from schemas.routes import Delta, Fence, Opened, Terminal, encode_route_record
from schemas.turns import TurnEnded, TurnStarted
from schemas.wire import TurnsEvent, decoder, encode, headers

RouteEvent = Opened | Fence | Delta | Terminal
Script = Callable[["Roles", PromptAccepted], Awaitable[None]]
_prompt, _cancel = decoder(PromptAccepted), decoder(Cancel)


@dataclass
class Roles:
    """Plays orchestrator and worker: every prompt is answered by the script that the test has set."""

    settings: Settings
    producer: Producer
    script: Script | None = None
    prompts: list[PromptAccepted] = field(default_factory=list)
    cancels: list[Cancel] = field(default_factory=list)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def listen(self, consumer: AIOKafkaConsumer) -> None:
        while True:
            for where, records in (await consumer.getmany(timeout_ms=1000)).items():
                for record in records:
                    if where.topic == CONTROL:
                        self.cancels.append(_cancel(record.value))
                        continue
                    prompt = _prompt(record.value)
                    self.prompts.append(prompt)
                    if self.script is not None:
                        task = asyncio.create_task(self.script(self, prompt))  # type: ignore[arg-type]
                        self.tasks.add(task)

    async def write(self, prompt: PromptAccepted, *events: RouteEvent) -> None:
        """One record on the turn's route."""
        await self.raw(prompt, encode_route_record(events))

    async def raw(self, prompt: PromptAccepted, value: bytes) -> None:
        """Any bytes on the turn's route."""
        route = prompt.route
        await self.producer.send(route.topic, value, key=prompt.response.encode(), partition=route.partition)

    def opened(self, prompt: PromptAccepted, **changes: Any) -> Opened:
        return Opened(
            session=prompt.session,
            user=prompt.user,
            created_at=prompt.accepted_at,
            echo=prompt.echo,
            **{"waiting": False, **changes},
        )

    async def begin(self, prompt: PromptAccepted, **changes: Any) -> None:
        await self.write(prompt, self.opened(prompt, **changes))
        await self.write(prompt, fence())

    async def state(self, event: TurnsEvent) -> None:
        """One record of the session's state log."""
        key, count = event.session.hex.encode(), self.settings.topics.session_partitions
        await self.producer.send_keyed(TURNS, encode(event), key=key, count=count, headers=headers(event.type))

    async def cancelled(self, prompt: PromptAccepted) -> None:
        """Wait for the user's cancel."""
        while not any(cancel.response == prompt.response for cancel in self.cancels):
            await asyncio.sleep(0.01)

    def failed_scripts(self) -> list[BaseException]:
        return [task.exception() for task in self.tasks if task.done() and task.exception() is not None]  # type: ignore[misc]


def fence(run: int = 1, writer: str = "w") -> Fence:
    return Fence(epoch=(1, 1, 1, run), writer=writer)


def delta(seq: int, text: str, writer: str = "w") -> Delta:
    return Delta(writer=writer, seq=seq, text=text, tokens=1)


def terminal(seq: int, kind: str = "completed", writer: str = "w", **more: Any) -> Terminal:
    return Terminal.model_validate(
        {
            "writer": writer,
            "seq": seq,
            "kind": kind,
            "model": "synthetic",
            "usage": Usage(input_tokens=7, output_tokens=seq, generated_tokens=seq),
            "ended_at": 1_800_000_000_000,
            **more,
        }
    )


def started(prompt: PromptAccepted, turn: int = 1, **more: Any) -> TurnStarted:
    """The orchestrator's decision to run a prompt."""
    fields: dict[str, Any] = {
        "response": prompt.response,
        "session": prompt.session,
        "user": prompt.user,
        "tier": prompt.tier,
        "turn": turn,
        "parent": prompt.parent,
        "items": prompt.items,
        "pool": "synthetic",
        "model": "synthetic",
        "dispatch": (1, turn),
        "route": prompt.route,
        "deadline": 0,
        "moderation_deadline": 0,
        "echo": prompt.echo,
        "accepted_at": prompt.accepted_at,
    }
    return TurnStarted.model_validate(fields | more)


def ended(start: TurnStarted, status: str = "completed", **more: Any) -> TurnEnded:
    """The end of a started turn, without output."""
    same = ("response", "session", "user", "tier", "turn", "parent", "dispatch", "model", "accepted_at")
    fields: dict[str, Any] = {name: getattr(start, name) for name in same}
    fields |= {"epoch": (*start.dispatch, 1, 1), "status": status, "output": (), "code": "test", "ended_at": 1}
    return TurnEnded.model_validate(fields | more)


def answer(*pieces: str, gap: float = 0.0) -> Script:
    """A script that answers with these pieces."""

    async def play(roles: Roles, prompt: PromptAccepted) -> None:
        await roles.begin(prompt)
        for seq, piece in enumerate(pieces):
            await roles.write(prompt, delta(seq, piece))
            if gap:
                await asyncio.sleep(gap)
        await roles.write(prompt, terminal(len(pieces)))

    return play


async def refuse(roles: Roles, prompt: PromptAccepted) -> None:
    """A blocked prompt."""
    await roles.begin(prompt)
    await roles.write(prompt, terminal(0, "refused", refusal="I can't help with that."))


def failure(code: str = "engine_unavailable") -> Failure:
    return Failure(code=code, message="The engine went away.", retryable=True)


@dataclass(frozen=True)
class Person:
    """Somebody with a key."""

    user: User
    key: str
    key_id: str

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key}"}


async def person(accounts: Accounts) -> Person:
    user = await accounts.create_user(f"{secrets.token_hex(6)}@example.org", "free")
    key_id, key = await accounts.create_key(user.user_id, "test")
    return Person(user, key, key_id)


@dataclass
class Running:
    """An edge that serves."""

    edge: Edge
    server: Server
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def ws_url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/v1/responses"


@contextlib.asynccontextmanager
async def running(base: Settings, **edge: Any) -> AsyncIterator[Running]:
    """An edge on a free port with these edge settings."""
    settings = base.model_copy(update={"edge": EdgeSettings(port=0, **edge), "instance": None})
    listener = listen(settings.edge)
    async with open_edge(settings) as service:
        server = Server(configure(build_app(service), settings.edge), service)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        while not server.started:
            await asyncio.sleep(0.01)
        try:
            yield Running(service, server, listener.getsockname()[1])
        finally:
            server.should_exit = server.force_exit = True
            await serving
    listener.close()


@dataclass
class Apart:
    """An edge in a process of its own."""

    process: asyncio.subprocess.Process
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def ws_url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/v1/responses"

    def rss_mib(self) -> float:
        """Its resident memory."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGESIZE") / 2**20


@contextlib.asynccontextmanager
async def apart(base: Settings, **edge: Any) -> AsyncIterator[Apart]:
    """An edge as operators run it: `parley edge`, with these edge settings."""
    (port,) = free_ports(1)
    store = base.messages
    variables = {
        "PARLEY_ID_KEYS": json.dumps([key.get_secret_value() for key in base.id_keys]),
        "PARLEY_KAFKA__BOOTSTRAP": base.kafka.bootstrap,
        "PARLEY_POSTGRES__DSN": base.postgres.dsn.get_secret_value(),
        "PARLEY_MESSAGES__HOSTS": json.dumps(store.hosts),
        "PARLEY_MESSAGES__PORT": str(store.port),
        "PARLEY_MESSAGES__DATACENTER": store.datacenter,
        "PARLEY_EDGE__PORT": str(port),
        "PARLEY_LOG_LEVEL": "WARNING",
    } | {f"PARLEY_EDGE__{name.upper()}": str(value) for name, value in edge.items()}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "parley", "edge"), env=os.environ | variables
    )
    try:
        async with httpx.AsyncClient() as http, asyncio.timeout(60):
            while process.returncode is None:
                with contextlib.suppress(httpx.TransportError):
                    if (await http.get(f"http://127.0.0.1:{port}/health/ready")).status_code == 200:
                        break
                await asyncio.sleep(0.1)
        assert process.returncode is None, f"the edge ended with {process.returncode}"
        yield Apart(process, port)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
