"""A session that the log no longer holds, read from the message store."""

from __future__ import annotations

from parley.errors import ParleyError
from parley.session import Session, Turn
from parley.stores.lazy import LazyMessageStore

PAGE = 200


async def load_turns(store: LazyMessageStore, session: Session) -> None:
    """Add the turns that the store has and the fold lacks.

    Raises:
        ParleyError: store_unavailable; store_inconsistent: a number below the last is missing.
    """
    messages = await store.get()
    header = await messages.header(session.id)
    if header is None:
        return
    session.user = session.user or header.user
    if header.deleted:
        session.deleted_by.add(header.user)
    after = 0
    while after < header.last_turn and not session.deleted:
        page = await messages.turns(session.id, after=after, limit=PAGE)
        for stored in page:
            after = stored.turn
            known = session.turns.get(stored.response)
            if known is None:
                session.turns[stored.response] = Turn(
                    response=stored.response,
                    number=stored.turn,
                    parent=stored.parent,
                    items=stored.items,
                    dispatched=True,
                    status=stored.status,
                    output=stored.output,
                    epoch=stored.epoch,
                    retryable=stored.failure is not None and stored.failure.retryable,
                    key_hash=stored.key_hash,
                    body_hash=stored.body_hash,
                )
            elif known.started is None:  # the log has kept its end only: what the user said is in the store
                known.items, known.key_hash, known.body_hash = stored.items, stored.key_hash, stored.body_hash
        if len(page) < PAGE:
            break
    if session.deleted:
        return
    numbers = {turn.number for turn in session.turns.values()}
    missing = [number for number in range(1, header.last_turn) if number not in numbers]
    if missing:
        raise ParleyError("store_inconsistent", f"turn {missing[0]} of the session is not in the store yet")
