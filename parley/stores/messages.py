"""Turns and what was said in them, in ScyllaDB or Cassandra: a view of chat.turns.

Writes are blind and idempotent: each record of the log is a row of its own, keyed by its offset, and readers fold the
rows of a turn by the rules of the protocol. So it does not matter how often or by how many processes a record is
written. Only two things depend on order. Writes carry the record's append time, and the deletion of a session carries
one that is later than any: whatever a stopped process still writes under a deleted session is dead on arrival. And
whoever applies records asks for the session's header first, so that what the log says after a deletion is not written.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from uuid import UUID

from cassandra.query import UNSET_VALUE, PreparedStatement
from pydantic import TypeAdapter

from parley.errors import ParleyError
from parley.ids import parse_message_id
from parley.settings import MessagesSettings
from parley.stores.cql import CqlClient, Row
from parley.stores.stored import SessionHeader, Standing, StoredTurn, standing, unstored
from schemas.base import NO_EPOCH, Epoch, Item, Millis, Part, Text
from schemas.turns import SessionChanged, SessionDeleted, TurnEnded, TurnStarted
from schemas.wire import BadRecord, decoder

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
BUCKET = 500
"""Turns in a partition: it stays small however long the chat."""
PAGE = 500
"""Rows of a page."""
LISTED = 10_000
"""Sessions of which a writer knows that their header and newest response are written, at most."""
DELETION_LEAD_US = 3_600_000_000
"""How much later than its record a deletion is stamped, in microseconds: more than brokers' clocks differ."""

_PARTS: TypeAdapter[tuple[Part, ...]] = TypeAdapter(tuple[Part, ...])
_RECORD: Callable[[bytes | None], TurnStarted | TurnEnded] = decoder(TurnStarted, TurnEnded)

_STATEMENTS = {
    "header": "SELECT user_id, last_turn, deleted_at FROM {keyspace}.session_header WHERE session_id = ?",
    "owner": "INSERT INTO {keyspace}.session_header (session_id, user_id) VALUES (?, ?)",
    "last_turn": "UPDATE {keyspace}.session_header USING TIMESTAMP ? SET last_turn = ? WHERE session_id = ?",
    "deleted": "INSERT INTO {keyspace}.session_header (session_id, user_id, deleted_at) VALUES (?, ?, ?)",
    "record": "INSERT INTO {keyspace}.turn_record (session_id, bucket, turn, log_offset, kind, response_id, event) "
    "VALUES (?, ?, ?, ?, ?, ?, ?) USING TIMESTAMP ?",
    "message": "INSERT INTO {keyspace}.message (session_id, bucket, turn, item, epoch, message_id, role, content, "
    "parts, status, token_count, created_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) USING TIMESTAMP ?",
    "response": "INSERT INTO {keyspace}.response_turn (response_id, turn) VALUES (?, ?) USING TIMESTAMP ?",
    "records": "SELECT turn, log_offset, response_id, event FROM {keyspace}.turn_record "
    "WHERE session_id = ? AND bucket = ? AND turn >= ? AND turn <= ?",
    "records_newest": "SELECT turn, log_offset, response_id, event FROM {keyspace}.turn_record "
    "WHERE session_id = ? AND bucket = ? AND turn >= ? AND turn <= ? ORDER BY turn DESC, log_offset DESC",
    "messages": "SELECT turn, item, epoch, message_id, role, content, parts, status FROM {keyspace}.message "
    "WHERE session_id = ? AND bucket = ? AND turn >= ? AND turn <= ?",
    "turn_of": "SELECT turn FROM {keyspace}.response_turn WHERE response_id = ?",
    "responses": "SELECT response_id FROM {keyspace}.turn_record WHERE session_id = ? AND bucket = ?",
    "forget_records": "DELETE FROM {keyspace}.turn_record USING TIMESTAMP ? WHERE session_id = ? AND bucket = ?",
    "forget_messages": "DELETE FROM {keyspace}.message USING TIMESTAMP ? WHERE session_id = ? AND bucket = ?",
    "forget_response": "DELETE FROM {keyspace}.response_turn USING TIMESTAMP ? WHERE response_id = ?",
}


def epoch_bytes(epoch: Epoch) -> bytes:
    """An epoch as bytes that sort as epochs do."""
    return b"".join(number.to_bytes(8) for number in epoch)


SENT = epoch_bytes(NO_EPOCH)
"""The epoch of what a user sent: it is the same in every run."""


def sent(response: str) -> bytes:
    """Where the items of a response's user are kept: a void start under a number that was given twice must not
    overwrite those of the turn that stands."""
    return SENT + blake2b(response.encode(), digest_size=8).digest()


class MessageStore:
    """The message store. Methods raise ParleyError: store_unavailable; where turns are read, store_inconsistent."""

    def __init__(self, client: CqlClient, keyspace: str, statements: dict[str, PreparedStatement]) -> None:
        self.keyspace = keyspace
        self._client = client
        self._statements = statements
        self._listed: dict[UUID, tuple[int, str]] = {}
        """The newest turn of a session by its number and response, as this process has written them."""

    @classmethod
    async def connect(cls, settings: MessagesSettings) -> MessageStore:
        """Connect and prepare, without blocking the loop.

        Raises:
            ParleyError: store_unavailable: no host answers, or `parley migrate` has not run.
        """
        client = await CqlClient.connect(settings)
        try:
            prepared = {
                name: await client.prepare(text.format(keyspace=settings.keyspace))
                for name, text in _STATEMENTS.items()
            }
        except BaseException:
            await asyncio.shield(client.close())
            raise
        for statement in prepared.values():
            statement.fetch_size = PAGE
        return cls(client, settings.keyspace, prepared)

    async def close(self) -> None:
        """Disconnect."""
        await self._client.close()

    # -- reading ------------------------------------------------------------------------------------------------------

    async def header(self, session: UUID) -> SessionHeader | None:
        """Whose the session is and how far it has come; None: the store knows nothing of it."""
        rows = await self._run("header", session)
        if not rows or rows[0].user_id is None:
            return None
        return SessionHeader(session, rows[0].user_id, rows[0].last_turn or 0, rows[0].deleted_at is not None)

    async def turns(
        self, session: UUID, *, after: int = 0, before: int | None = None, limit: int, newest_first: bool = False
    ) -> list[StoredTurn]:
        """Up to `limit` turns with numbers above `after` and below `before`, oldest or newest first.

        Fewer than `limit` means that there are no more. Empty for a deleted session.
        """
        header = await self.header(session)
        if header is None or header.deleted or limit <= 0:
            return []
        low, high = after + 1, header.last_turn if before is None else min(before - 1, header.last_turn)
        found: list[StoredTurn] = []
        buckets: Iterable[int] = range(low // BUCKET, high // BUCKET + 1)
        for bucket in reversed(list(buckets)) if newest_first else buckets:
            slice_ = (max(low, bucket * BUCKET), min(high, bucket * BUCKET + BUCKET - 1))
            found += await self._bucket(session, bucket, slice_, limit - len(found), newest_first)
            if len(found) >= limit:
                break
        return found

    async def turn_of(self, session: UUID, response: str) -> StoredTurn | None:
        """The turn of a response, or None when it is not stored or its session was deleted."""
        rows = await self._run("turn_of", response)
        if not rows:
            return None
        turn = rows[0].turn
        turns = await self.turns(session, after=turn - 1, before=turn + 1, limit=1)
        return turns[0] if turns and turns[0].response == response else None

    async def _bucket(
        self, session: UUID, bucket: int, numbers: tuple[int, int], limit: int, newest_first: bool
    ) -> list[StoredTurn]:
        name = "records_newest" if newest_first else "records"
        rows = self._client.rows(self._statements[name], (session, bucket, *numbers))
        first = await _first_turns(rows, limit)
        if not first:
            return []
        said: dict[int, list[Row]] = {number: [] for number in first}
        span = (session, bucket, min(first), max(first))
        async for row in self._client.rows(self._statements["messages"], span):
            if row.turn in said:
                said[row.turn].append(row)
        try:
            return [_turn(_fold(records), said[number]) for number, records in first.items()]
        except ValueError as error:
            # Of a newer version, say. It concerns this session alone, and nobody else's reader may fail over it.
            raise ParleyError("store_inconsistent", f"session {session} has a turn that can't be read") from error

    # -- writing, by history alone ------------------------------------------------------------------------------------

    async def write_started(self, event: TurnStarted, *, offset: int, appended: Millis) -> None:
        """Keep a TurnStarted that stands at `offset` of its partition of chat.turns.

        Raises:
            BadRecord: a value of it fits no column.
        """
        with _storable():
            await self._write(event, event.items, sent(event.response), offset, appended)

    async def write_ended(self, event: TurnEnded, *, offset: int, appended: Millis) -> None:
        """Keep a TurnEnded that stands at `offset` of its partition of chat.turns.

        Raises:
            BadRecord: a value of it fits no column.
        """
        with _storable():
            await self._write(event, event.output, epoch_bytes(event.epoch), offset, appended)

    async def write_changed(self, event: SessionChanged) -> None:
        """Keep whose a session is that has no turn yet."""
        await self._run("owner", event.session, event.user)

    async def delete(self, event: SessionDeleted, *, appended: Millis) -> None:
        """Forget everything that was said in a session. That it was deleted, and whose it was, stays."""
        session = event.session
        await self._run("deleted", session, event.user, _time(appended))
        header = await self.header(session)
        stamp = appended * 1000 + DELETION_LEAD_US
        for bucket in range((header.last_turn if header else 0) // BUCKET + 1):
            rows = self._client.rows(self._statements["responses"], (session, bucket))
            responses = {row.response_id async for row in rows}
            await asyncio.gather(*(self._run("forget_response", stamp, response) for response in responses))
            await self._run("forget_messages", stamp, session, bucket)
            await self._run("forget_records", stamp, session, bucket)

    async def _write(
        self, event: TurnStarted | TurnEnded, items: tuple[Item, ...], epoch: bytes, offset: int, appended: Millis
    ) -> None:
        """A record and its messages are seen together: they are of one partition, and written in one request."""
        session, turn, stamp = event.session, event.turn, appended * 1000
        bucket = turn // BUCKET
        record = (event if event.store else unstored(event)).model_copy(
            update={"items": ()} if isinstance(event, TurnStarted) else {"output": ()}
        )
        said: list[tuple[object, ...]] = []
        if event.store:
            tokens = event.usage.output_tokens if isinstance(event, TurnEnded) else UNSET_VALUE
            at = _time(event.ended_at if isinstance(event, TurnEnded) else event.accepted_at)
            said = [(session, bucket, turn, *_columns(item, epoch), tokens, at, stamp) for item in items]
        kept = (session, bucket, turn, offset, event.type, event.response, record.model_dump_json(), stamp)
        if self._listed.get(session) != (turn, event.response):  # a turn's end finds that its start has done this
            await self._together(
                ("owner", (session, event.user)),
                ("last_turn", (turn, turn, session)),
                ("response", (event.response, turn, stamp)),
            )
            self._listed.pop(session, None)
            self._listed[session] = (turn, event.response)
            if len(self._listed) > LISTED:
                del self._listed[next(iter(self._listed))]
        await self._together(*(("message", values) for values in said), ("record", kept))

    async def _together(self, *named: tuple[str, tuple[object, ...]]) -> None:
        await self._client.write(*((self._statements[name], values) for name, values in named))

    async def _run(self, name: str, *values: object) -> list[Row]:
        return await self._client.execute(self._statements[name], values)


def _columns(item: Item, epoch: bytes) -> tuple[object, ...]:
    """item, epoch, message_id, role, content, parts, status. Parts only where the content alone does not say it all."""
    _, position = parse_message_id(item.id)
    plain = len(item.parts) == 1 and isinstance(item.parts[0], Text)
    parts = UNSET_VALUE if plain else _PARTS.dump_json(item.parts).decode()
    return position, epoch, item.id, item.role, item.text, parts, item.status


def _item(row: Row) -> Item:
    parts = (Text(text=row.content or ""),) if row.parts is None else _PARTS.validate_json(row.parts)
    return Item.model_validate({"id": row.message_id, "role": row.role, "status": row.status, "parts": parts})


async def _first_turns(rows: AsyncGenerator[Row], limit: int) -> dict[int, list[Row]]:
    """The records of the first `limit` turns: a turn is complete when a row of the next one is seen."""
    turns: dict[int, list[Row]] = {}
    async with aclosing(rows):
        async for row in rows:
            if row.turn not in turns and len(turns) == limit:
                break
            turns.setdefault(row.turn, []).append(row)
    return turns


def _fold(records: list[Row]) -> Standing:
    """The standing of the turn's response: that of its first record, should a number ever have been given twice."""
    ordered = sorted(records, key=lambda row: row.log_offset)
    mine = [row for row in ordered if row.response_id == ordered[0].response_id]
    return standing(_RECORD(row.event.encode()) for row in mine)


def _turn(fold: Standing, said: list[Row]) -> StoredTurn:
    """The turn with the items of its user and those of its standing end. An end without an epoch never ran."""
    end = epoch_bytes(fold.ended.epoch) if fold.ended else SENT
    mine = fold.turn((), ())
    asked = sent(mine.response)
    items = tuple(_item(row) for row in said if row.epoch == asked)
    output = tuple(_item(row) for row in said if row.epoch == end != SENT)
    return replace(mine, items=items, output=output)


@contextmanager
def _storable() -> Iterator[None]:
    """Turns "no column takes this value" into BadRecord: trying again will not help."""
    try:
        yield
    except (OverflowError, TypeError, ValueError, struct.error) as error:
        raise BadRecord(f"can't be stored: {type(error).__name__}") from error


def _time(ms: Millis) -> datetime:
    return EPOCH + timedelta(milliseconds=ms)  # OverflowError beyond the year 9999, on every platform
