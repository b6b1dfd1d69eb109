"""A turn as it is kept, and which of its records in chat.turns stand. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from uuid import UUID

from schemas.base import Dispatch, Epoch, Failure, Item, JsonObject, Millis, Tier, Timings, Usage
from schemas.turns import TurnEnded, TurnStarted


@dataclass(frozen=True, slots=True)
class SessionHeader:
    """What is known of a session as a whole."""

    session: UUID
    user: UUID
    last_turn: int
    """Number of its newest turn; 0: none yet."""
    deleted: bool


@dataclass(frozen=True, slots=True)
class StoredTurn:
    """A turn as the message store has it. Running turns have neither status nor output."""

    session: UUID
    turn: int
    response: str
    user: UUID
    tier: Tier
    parent: str | None
    kept: bool
    """False: the user asked not to store it. Its number is known, so that the session has no hole, its text is not."""
    status: str | None
    """As in TurnEnded; None while it runs."""
    reason: str | None
    failure: Failure | None
    instructions: str | None
    items: tuple[Item, ...]
    """What the user sent."""
    output: tuple[Item, ...]
    delta_lengths: tuple[int, ...]
    waited: bool
    usage: Usage
    timings: Timings
    model: str
    pool: str | None
    dispatch: Dispatch
    """Of the standing TurnStarted, or of the end where that is all there is."""
    epoch: Epoch | None
    """Of the standing end."""
    key_hash: str | None
    body_hash: str | None
    echo: JsonObject = field(default_factory=dict)
    accepted_at: Millis = 0
    ended_at: Millis | None = None
    listed: bool = True
    dropped_turns: int = 0
    """Earlier turns that the model did not see."""


@dataclass(slots=True)
class Standing:
    """What holds of one response, folded from its records in log order (protocol.md, section 2).

    A record whose dispatch is lower than that of the greatest TurnStarted before it is void, and so is a TurnStarted
    after a valid end. Of valid ends, which all say the same, the one with the greatest epoch is kept.
    """

    started: TurnStarted | None = None
    ended: TurnEnded | None = None

    def apply(self, event: TurnStarted | TurnEnded) -> bool:
        """Fold one record. False: it is void."""
        if self.started is not None and event.dispatch < self.started.dispatch:
            return False
        if isinstance(event, TurnStarted):
            if self.ended is not None:
                if self.started is None:
                    self.started = event  # what the user sent is known from it alone
                return False
            self.started = event
            return True
        if self.ended is None or event.epoch >= self.ended.epoch:
            self.ended = event
        return True

    def turn(self, items: tuple[Item, ...], output: tuple[Item, ...]) -> StoredTurn:
        """The turn with what was said.

        Raises:
            ValueError: no record was applied.
        """
        started, ended = self.started, self.ended
        about = started or ended
        if about is None:
            raise ValueError("a turn without records")
        return StoredTurn(
            session=about.session,
            turn=about.turn,
            response=about.response,
            user=about.user,
            tier=about.tier,
            parent=about.parent,
            kept=about.store,
            status=ended.status if ended else None,
            reason=ended.reason if ended else None,
            failure=ended.failure if ended else None,
            instructions=started.instructions if started else None,
            items=items,
            output=output,
            delta_lengths=ended.delta_lengths if ended else (),
            waited=ended.waited if ended else False,
            usage=ended.usage if ended else Usage(),
            timings=ended.timings if ended else Timings(),
            model=(ended or about).model,
            pool=(ended or about).pool,
            dispatch=about.dispatch,
            epoch=ended.epoch if ended else None,
            key_hash=started.key_hash if started else None,
            body_hash=started.body_hash if started else None,
            echo=started.echo if started else {},
            accepted_at=about.accepted_at,
            ended_at=ended.ended_at if ended else None,
            listed=about.listed,
            dropped_turns=ended.dropped_turns if ended else 0,
        )


def standing(events: Iterable[TurnStarted | TurnEnded]) -> Standing:
    """The fold of one response's records in log order."""
    fold = Standing()
    for event in events:
        fold.apply(event)
    return fold


def unstored(event: TurnStarted | TurnEnded) -> TurnStarted | TurnEnded:
    """The record without anything that was said or asked for: what is kept of a turn that is not to be stored."""
    if isinstance(event, TurnStarted):
        return event.model_copy(update={"items": (), "instructions": None, "echo": {}, "failure": None})
    return event.model_copy(update={"output": (), "delta_lengths": ()})
