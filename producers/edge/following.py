"""What one socket follows: a conversation's turns, one after the other, whoever asked for them.

A socket shows one response at a time. Turns that begin meanwhile wait in line, those that the socket has shown already
(its own, or resumed ones) are passed over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from uuid import UUID

import orjson

from producers.edge.resource import item_object
from schemas.turns import TurnStarted

LONGEST_LINE = 32
"""A socket that is busy with something else for so many turns has lost the thread: it is sent to begin anew."""


class Following:
    """The turns of a conversation that a socket has yet to show."""

    __slots__ = ("_deleted", "_line", "_user", "_wake", "conversation", "overrun", "session")

    def __init__(
        self, conversation: str, session: UUID, user: UUID, wake: Callable[[], None], deleted: Callable[[], None]
    ) -> None:
        """`wake` is called when a turn has joined the line, `deleted` when the conversation is no more."""
        self.conversation = conversation
        self.session = session
        self.overrun = False
        """More turns have begun than the line holds."""
        self._user = user
        self._wake = wake
        self._deleted = deleted
        self._line: deque[TurnStarted] = deque()

    def began(self, turn: TurnStarted) -> None:
        """A turn of the session has begun."""
        if turn.user == self._user:
            self.overrun = self.overrun or len(self._line) >= LONGEST_LINE
            self._line.append(turn)
            self._wake()

    def deleted(self) -> None:
        """The session was deleted."""
        self._deleted()

    def next(self) -> TurnStarted | None:
        """The turn that is to be shown next."""
        return self._line.popleft() if self._line else None

    def announcement(self, turn: TurnStarted) -> bytes:
        """What is said before the events of a turn that somebody else may have asked for."""
        return orjson.dumps(
            {
                "type": "parley:turn",
                "conversation": self.conversation,
                "response_id": turn.response,
                "previous_response_id": turn.parent,
                "turn": turn.turn,
                "input": [item_object(item) for item in turn.items],
            }
        )
