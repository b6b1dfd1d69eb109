"""What the tests of the stores share: events of a chat, settings of a fresh store, a proxy that can be cut."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any
from uuid import UUID, uuid4

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from parley import ids
from parley.settings import KafkaSettings, MessagesSettings, PostgresSettings, Settings
from schemas.base import NO_EPOCH, Dispatch, Epoch, Item, Route, Text
from schemas.turns import SessionChanged, SessionDeleted, TurnEnded, TurnStarted

KEYS = ids.Keys((b"a secret of the tests",))
NOW = 1_790_000_000_000
"""Milliseconds; the append time of a chat's first record."""


class Chat:
    """One session's events, with the fields that a test does not care about filled in."""

    def __init__(self, user: UUID | None = None, session: UUID | None = None) -> None:
        self.user = user or uuid4()
        self.session = session or ids.new_session()
        self._responses: dict[int, str] = {}

    def response(self, turn: int) -> str:
        if turn not in self._responses:
            made = ids.new_response_id(KEYS, self.user, self.session, 3, turn, NOW + turn)
            self._responses[turn] = made
        return self._responses[turn]

    def started(self, turn: int, dispatch: Dispatch = (1, 1), text: str | None = None, **fields: Any) -> TurnStarted:
        response = self.response(turn)
        said = Text(text=f"question {turn}" if text is None else text)
        values: dict[str, Any] = {
            "response": response,
            "session": self.session,
            "user": self.user,
            "tier": "paid",
            "turn": turn,
            "parent": self.response(turn - 1) if turn > 1 else None,
            "items": (Item(id=ids.message_id(response, 0), role="user", parts=(said,)),),
            "pool": "smol",
            "model": "smollm2-135m-instruct",
            "dispatch": dispatch,
            "route": Route(topic="chat.tokens", partition=3, start=turn),
            "accepted_at": NOW + turn,
            "deadline": NOW + turn + 10_000,
            "moderation_deadline": NOW + turn + 5_000,
        }
        return TurnStarted(**(values | fields))

    def ended(
        self,
        turn: int,
        dispatch: Dispatch = (1, 1),
        epoch: Epoch | None = None,
        text: str | None = None,
        **fields: Any,
    ) -> TurnEnded:
        response = self.response(turn)
        said = Text(text=f"answer {turn}" if text is None else text)
        epoch = (*dispatch, 1, 1) if epoch is None else epoch
        values: dict[str, Any] = {
            "response": response,
            "session": self.session,
            "user": self.user,
            "tier": "paid",
            "turn": turn,
            "parent": self.response(turn - 1) if turn > 1 else None,
            "dispatch": dispatch,
            "epoch": epoch,
            "status": "completed",
            "output": ()
            if epoch == NO_EPOCH
            else (Item(id=ids.message_id(response, 1), role="assistant", parts=(said,)),),
            "model": "smollm2-135m-instruct",
            "code": "test",
            "accepted_at": NOW + turn,
            "ended_at": NOW + turn + 500,
        }
        return TurnEnded(**(values | fields))

    def changed(self, **fields: Any) -> SessionChanged:
        return SessionChanged(session=self.session, user=self.user, at=NOW, **fields)

    def deleted(self) -> SessionDeleted:
        return SessionDeleted(session=self.session, user=self.user, at=NOW)


def messages_settings(store: Any, **changes: Any) -> MessagesSettings:
    """A keyspace of its own on the store that the fixture names."""
    values = {
        "hosts": (store.host,),
        "port": store.port,
        "datacenter": store.datacenter,
        "keyspace": f"t{uuid4().hex[:12]}",
    }
    return MessagesSettings.model_validate(values | changes)


async def fresh_database(dsn: str) -> PostgresSettings:
    """An empty database of its own on the server that the fixture names."""
    name = f"t{uuid4().hex[:12]}"
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        await connection.execute(f"CREATE DATABASE {name}".encode())
    return PostgresSettings.model_validate({"dsn": make_conninfo(dsn, dbname=name)})


def through(postgres: PostgresSettings, port: int) -> PostgresSettings:
    """The same database, reached over another port."""
    dsn = make_conninfo(postgres.dsn.get_secret_value(), host="127.0.0.1", port=port)
    return PostgresSettings.model_validate({"dsn": dsn})


def address_of(postgres: PostgresSettings) -> tuple[str, int]:
    """Host and port of a database."""
    parts = conninfo_to_dict(postgres.dsn.get_secret_value())
    return str(parts["host"]), int(str(parts.get("port") or 5432))


def all_settings(
    kafka: str = "127.0.0.1:1",
    messages: MessagesSettings | None = None,
    postgres: PostgresSettings | None = None,
    **fields: Any,
) -> Settings:
    return Settings(
        kafka=KafkaSettings.model_validate({"bootstrap": kafka}),
        messages=messages or MessagesSettings(),
        postgres=postgres or PostgresSettings(),
        **fields,
    )


class Proxy:
    """A TCP proxy on loopback.

    It can be cut (connections end, new ones are refused), muted (bytes stop), made to swallow answers, and healed.
    """

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._server: asyncio.Server | None = None
        self._pumps: set[asyncio.Task[None]] = set()
        self._open = asyncio.Event()
        self._swallowing = False
        self.port = 0

    async def __aenter__(self) -> Proxy:
        await self.heal()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.cut()

    async def heal(self) -> None:
        """Let bytes through, on the same port as before."""
        self._open.set()
        self._swallowing = False
        if self._server is None:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
            self.port = self._server.sockets[0].getsockname()[1]

    def mute(self) -> None:
        """Keep connections, hold every byte back."""
        self._open.clear()

    def swallow(self) -> None:
        """Let requests through, and lose every answer."""
        self._swallowing = True

    async def cut(self) -> None:
        """As if the server had died."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for pump in list(self._pumps):
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._pumps.add(task)
        try:
            upstream_reader, upstream_writer = await asyncio.open_connection(*self._target)
            try:
                await asyncio.gather(self._pump(reader, upstream_writer), self._pump(upstream_reader, writer, True))
            finally:
                upstream_writer.close()
        except (asyncio.CancelledError, OSError):
            pass
        finally:
            writer.close()
            self._pumps.discard(task)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answers: bool = False) -> None:
        while data := await reader.read(65_536):
            await self._open.wait()
            if answers and self._swallowing:
                continue
            writer.write(data)
            await writer.drain()
        with contextlib.suppress(OSError):
            writer.write_eof()
