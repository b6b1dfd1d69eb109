"""The fold of a session's state log, chat.turns: which turns there are, which one stands, what each one said.

Pure and synchronous. Rules (protocol.md, section 2), in log order:

- a TurnStarted or TurnEnded with a lower dispatch than the greatest TurnStarted of its response is void;
- a TurnStarted after a valid end is void: an ended turn stays ended;
- so is the first TurnStarted of a response with a number that another one has: a predecessor's, sent before it was
  stopped, may land between, and its successor has given the number to another prompt;
- of several valid ends the one with the greatest epoch is the turn's;
- what another user says about the session is void.

A fold may begin in the middle of a session's log. Whose the session is, it then believes of turns and openings alone:
those were checked before they were written.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from uuid import UUID

from schemas.base import Epoch, Item, Millis
from schemas.turns import Feedback, SessionChanged, SessionDeleted, TurnEnded, TurnStarted
from schemas.wire import TurnsEvent


class Void(Enum):
    """Why an event of chat.turns changes nothing."""

    LOWER_DISPATCH = "dispatch lower than the standing one"
    ENDED = "the turn had ended"
    NUMBER_TAKEN = "another turn has its number"
    OTHER_USER = "not the session's user"


@dataclass(slots=True)
class Turn:
    """One prompt and its answer."""

    response: str
    number: int
    parent: str | None
    items: tuple[Item, ...] = ()
    started: TurnStarted | None = None
    """The standing decision; None for a turn that came from the store."""
    dispatched: bool = False
    """Some decision sent it to a pool, or to an end on its route: its route may hold something."""
    status: str | None = None
    """How it ended; None: it has not."""
    output: tuple[Item, ...] = ()
    epoch: Epoch | None = None
    """Of the end."""
    retryable: bool = False
    """It failed in a way that a retry may mend."""
    key_hash: str | None = None
    body_hash: str | None = None
    accepted_at: Millis = 0
    forgotten: bool = False
    """What was said in it was not to be stored, and is not known any more."""

    @property
    def answer(self) -> str:
        """The text that was shown, without refusals."""
        return "".join(item.text for item in self.output)

    @property
    def in_context(self) -> bool:
        """A later prompt of the session goes out with this turn before it."""
        if self.status in ("completed", "incomplete", "cancelled"):
            return True
        return self.status == "failed" and bool(self.answer)


@dataclass(slots=True)
class Session:
    """What the state log says about one session."""

    id: UUID
    user: UUID | None = None
    turns: dict[str, Turn] = field(default_factory=dict)
    beyond: int = 0
    """Turns up to this number are not held: no context reaches so far, unless `reaches` says so."""
    deleted_by: set[UUID] = field(default_factory=set)
    """Who said that the session is to go. Only its user's word counts, as far as it is known whose it is."""

    @property
    def deleted(self) -> bool:
        """Its user has deleted it."""
        return bool(self.deleted_by) if self.user is None else self.user in self.deleted_by

    @property
    def last_number(self) -> int:
        """The greatest turn number given; 0 before the first."""
        return max((turn.number for turn in self.turns.values()), default=0)

    @property
    def newest(self) -> Turn | None:
        """The turn with the greatest number."""
        return max(self.turns.values(), key=lambda turn: turn.number, default=None)

    def open_turns(self) -> list[Turn]:
        """Turns that were started and have not ended, in order."""
        return sorted((turn for turn in self.turns.values() if turn.status is None), key=lambda turn: turn.number)

    def keyed(self, key_hash: str, since: Millis = 0) -> Turn | None:
        """The turn, accepted at `since` or later, that an idempotency key stands for.

        A key whose turn failed retryably is free again.
        """
        turns = [
            turn
            for turn in self.turns.values()
            if turn.key_hash == key_hash and not turn.retryable and turn.accepted_at >= since
        ]
        return max(turns, key=lambda turn: turn.number, default=None)

    def path(self, parent: str | None) -> list[Turn] | None:
        """The turns that a prompt after `parent` remembers, oldest first; None when one of them is unknown.

        Refused turns, and failed ones without text, are left out: their own parent stands for them. A parent has a
        smaller number than its child: what the log says otherwise, in error, is no path, and no circle.
        """
        found: list[Turn] = []
        below = self.last_number + 1
        while parent is not None:
            turn = self.turns.get(parent)
            if turn is None and found and self.beyond:
                break
            if turn is None or turn.number >= below:
                return None
            below = turn.number
            if turn.in_context:
                found.append(turn)
            parent = turn.parent
        return found[::-1]

    def reaches(self, parent: str | None, turns: int) -> bool:
        """The path of a prompt after `parent` is held, or the last `turns` of it that are remembered."""
        below = self.last_number + 1
        while parent is not None and turns > 0:
            turn = self.turns.get(parent)
            if turn is None or turn.number >= below:
                return not self.beyond
            turns -= turn.in_context
            below, parent = turn.number, turn.parent
        return True

    def apply(self, event: TurnsEvent) -> Void | None:
        """Fold one event. None: it counts; else why it is void."""
        if self.user is None and _vouched(event):
            self.user = event.user
        if self.user is not None and event.user != self.user:
            return Void.OTHER_USER
        match event:
            case TurnStarted():
                return self._started(event)
            case TurnEnded():
                return self._ended(event)
            case SessionDeleted():
                self.deleted_by.add(event.user)
            case SessionChanged() | Feedback():
                pass
        return None

    def _started(self, event: TurnStarted) -> Void | None:
        turn = self.turns.get(event.response)
        if turn is None:
            if any(other.number == event.turn for other in self.turns.values()):
                return Void.NUMBER_TAKEN
            turn = self.turns[event.response] = Turn(event.response, event.turn, event.parent)
        elif turn.status is not None:
            return Void.ENDED
        elif turn.started is not None and event.dispatch < turn.started.dispatch:
            return Void.LOWER_DISPATCH
        turn.number, turn.parent, turn.items = event.turn, event.parent, event.items
        turn.accepted_at = event.accepted_at
        turn.key_hash, turn.body_hash = event.key_hash, event.body_hash
        turn.started = event
        turn.dispatched = turn.dispatched or event.pool is not None or event.why != "expired"
        return None

    def _ended(self, event: TurnEnded) -> Void | None:
        turn = self.turns.get(event.response)
        if turn is None:
            turn = self.turns[event.response] = Turn(event.response, event.turn, event.parent)
            turn.accepted_at = event.accepted_at
        if turn.started is not None and event.dispatch < turn.started.dispatch:
            return Void.LOWER_DISPATCH
        if turn.epoch is None or event.epoch > turn.epoch:
            turn.status, turn.output, turn.epoch = event.status, event.output, event.epoch
            turn.retryable = event.failure is not None and event.failure.retryable
        return None


def _vouched(event: TurnsEvent) -> bool:
    """Its writer had made sure that the session is its user's, or made the session."""
    return isinstance(event, TurnStarted | TurnEnded) or (isinstance(event, SessionChanged) and event.opened)
