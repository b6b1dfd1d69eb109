"""The fold of a turn's route: the one text and the one end that every reader sees.

Pure and synchronous. A transcript is fed the route's events of one response in log order, from the turn's start.

States (protocol.md, section 3):

=========  ==============================  ================================  =================================
state      Fence                           Delta                             Terminal
=========  ==============================  ================================  =================================
none/open  greater epoch: becomes current  current writer and next seq:      current writer and next seq: the
           (the text stays); else void     appended; else void               turn has ended; else void
ended      void                            void                              void
=========  ==============================  ================================  =================================

The first Opened counts and may come at any time; it has no epoch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from schemas.base import Epoch
from schemas.routes import Delta, Fence, Opened, Terminal


class Void(Enum):
    """Why an event of a route changes nothing."""

    OPENED_AGAIN = "opened again"
    ENDED = "after the end"
    OLD_EPOCH = "fence of an epoch that is not greater"
    OTHER_WRITER = "not the current writer"
    WRONG_SEQ = "not the next in sequence"


@dataclass(slots=True)
class Transcript:
    """What the route of one response says so far."""

    opened: Opened | None = None
    fence: Fence | None = None
    """The current run's; None before the first."""
    deltas: list[str] = field(default_factory=list)
    tokens: int = 0
    """Tokens in the deltas."""
    terminal: Terminal | None = None
    joins: list[int] = field(default_factory=list)
    """Characters that the answer had at each fence after the first text."""
    voids: int = 0

    @property
    def text(self) -> str:
        """The answer so far."""
        return "".join(self.deltas)

    @property
    def seq(self) -> int:
        """The number that the next delta or terminal must carry."""
        return len(self.deltas)

    @property
    def epoch(self) -> Epoch | None:
        """Of the current run."""
        return self.fence.epoch if self.fence else None

    def holds(self, fence: Fence) -> bool:
        """This fence's writer may go on: no greater one has come."""
        return self.fence is not None and self.fence.writer == fence.writer and self.fence.epoch == fence.epoch

    def apply(self, event: Opened | Fence | Delta | Terminal) -> Void | None:
        """Fold one event. None: it counts; else why it is void."""
        reason = self._judge(event)
        if reason is not None:
            self.voids += 1
            return reason
        match event:
            case Opened():
                self.opened = event
            case Fence():
                if self.deltas:
                    self.joins.append(sum(map(len, self.deltas)))
                self.fence = event
            case Delta():
                self.deltas.append(event.text)
                self.tokens += event.tokens
            case Terminal():
                self.terminal = event
        return None

    def _judge(self, event: Opened | Fence | Delta | Terminal) -> Void | None:
        if isinstance(event, Opened):
            return Void.OPENED_AGAIN if self.opened else None
        if self.terminal is not None:
            return Void.ENDED
        if isinstance(event, Fence):
            return Void.OLD_EPOCH if self.fence and event.epoch <= self.fence.epoch else None
        if self.fence is None or event.writer != self.fence.writer:
            return Void.OTHER_WRITER
        return Void.WRONG_SEQ if event.seq != self.seq else None
