"""A session whose past the fold doesn't have: its turns are read from the message store.

Below the watermark (the committed offset of `history-messages`) everything is in the store, above it everything is in
the log and was folded. So the two together are the whole session; where both know a turn, the log's word stands, except
that an end which only the store has is one that the fold began too late to see.
"""

from __future__ import annotations

import asyncio
import logging
from itertools import count
from typing import TYPE_CHECKING

from parley.clock import now_ms
from parley.errors import ParleyError
from parley.retrying import pause_s
from parley.session import Session, Turn
from parley.stores.lazy import LazyMessageStore
from parley.stores.stored import StoredTurn
from schemas.base import Millis

if TYPE_CHECKING:
    from consumers.orchestrator.shard import Shard

log = logging.getLogger(__name__)

PAGE = 500
TURN_SIZE = 1_000
"""Bytes that a turn takes beside its text."""


class Past:
    """What came in a session before the events that were folded."""

    def __init__(self, shard: Shard, session: Session) -> None:
        self.known = False
        """The session's turns are all here: the fold has seen it begin, or its past was read from the store."""
        self.may_be_empty = False
        """A prompt has said that it begins the session: neither log nor store need know of it."""
        self.size = 0
        """Bytes of the turns that came from the store."""
        self._shard = shard
        self._session = session
        self._learning = asyncio.Lock()
        self._came: dict[str, int] = {}
        """When the past was first asked for on behalf of a prompt, in ms: its start deadline runs from then."""

    async def learn(self, parent: str | None = None) -> None:
        """Know the past: that of a session which the fold has not seen begin is read from the store, once.

        Of a very long one as much as a context after `parent` (default: the newest turn) can hold, and as keys live.
        One that is known nowhere began nowhere: a store that has lost everything is no reason to number from 1 again.

        Raises:
            ParleyError: store_unavailable, store_inconsistent: the turn waits; it never runs with a shorter memory.
        """
        async with self._learning:
            if not self.known:
                await self._shard.catch_up()  # it may begin just now
            session, settings = self._session, self._shard.tools.settings
            enough = max(pool.context for pool in settings.topics.pools.values())  # a turn has a token at least
            if not self.known:
                since = now_ms() - int(settings.protocol.key_life_s * 1000)
                await load_turns(self._shard.tools.store, session, enough, since)
                if session.user is None and not self.may_be_empty:
                    raise ParleyError("store_inconsistent", "the message store knows nothing of the session")
                self.known = True
                self._loaded()
            newest = session.newest
            if not session.reaches(parent or (newest.response if newest else None), enough):
                await load_turns(self._shard.tools.store, session)
                self._loaded()

    def _loaded(self) -> None:
        turns = self._session.turns.values()
        texts = (item.text for turn in turns if turn.started is None for item in (*turn.items, *turn.output))
        self.size = sum(map(len, texts)) + TURN_SIZE * len(turns)
        for turn in turns:
            if turn.status is not None:
                self._shard.open_turns.close(turn.response)

    async def learn_for(self, response: str, parent: str | None = None) -> None:
        """`learn` for a prompt, tried until its start deadline.

        Raises:
            ParleyError: as there, of the last attempt.
        """
        if self.known and not self._session.beyond:
            return
        came = self._came.setdefault(response, now_ms())
        deadline = came + int(self._shard.tools.settings.protocol.start_deadline_s * 1000)
        why = ParleyError("store_unavailable", "the message store does not answer in time")
        for attempt in count():
            try:
                async with asyncio.timeout((deadline - now_ms()) / 1000):
                    await self.learn(parent)
                return
            except TimeoutError:
                raise why from None
            except ParleyError as error:
                why = error
                log.warning("session %s waits for its past: %s", self._session.id, error)
                pause = pause_s(attempt)
                if now_ms() + pause * 1000 >= deadline:
                    raise
                await asyncio.sleep(pause)

    def done(self, response: str) -> None:
        """The prompt needs nothing more."""
        self._came.pop(response, None)


async def load_turns(
    store: LazyMessageStore, session: Session, enough: float = float("inf"), since: Millis = 0
) -> None:
    """Add what the store has and the fold lacks.

    Newest first, until `enough` turns are remembered and all turns that were accepted at `since` or later are there.

    Raises:
        ParleyError: store_unavailable; store_inconsistent: a number up to the last is missing.
    """
    messages = await store.get()
    header = await messages.header(session.id)
    if header is not None:
        session.user = session.user or header.user
        if header.deleted:
            session.deleted_by.add(header.user)
    if session.deleted:
        return
    last = max(session.last_number, header.last_turn if header else 0)
    low, remembered = session.beyond + 1 if session.beyond else last + 1, 0
    if header is None:
        low = 1  # there is nothing to be had
    while low > 1:
        page = await messages.turns(session.id, before=low, limit=PAGE, newest_first=True)
        remembered += sum(_add(session, stored).in_context for stored in page)
        low = page[-1].turn if len(page) == PAGE else 1
        if page and remembered >= enough and page[-1].accepted_at < since:
            break
    numbers = {turn.number for turn in session.turns.values()}
    missing = next((number for number in range(low, last + 1) if number not in numbers), None)
    if missing is not None:
        raise ParleyError("store_inconsistent", f"turn {missing} of the session is not in the store yet")
    session.beyond = low - 1


def _add(session: Session, stored: StoredTurn) -> Turn:
    turn = session.turns.get(stored.response)
    if turn is None:
        turn = session.turns[stored.response] = Turn(stored.response, stored.turn, stored.parent, dispatched=True)
    if turn.started is None:  # at most its end is in the log that was folded: what the user said is in the store
        turn.items, turn.accepted_at = stored.items, stored.accepted_at
        turn.key_hash, turn.body_hash = stored.key_hash, stored.body_hash
        turn.forgotten = not stored.kept
    if turn.status is None and stored.status is not None:
        turn.status, turn.output, turn.epoch = stored.status, stored.output, stored.epoch
        turn.retryable = stored.failure is not None and stored.failure.retryable
    return turn
