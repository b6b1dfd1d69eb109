"""What everybody saw of the turns: users, late readers, history, the state log, the count of usage. Plain values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

DELTA = "response.output_text.delta"
TERMINALS = frozenset(("response.completed", "response.incomplete", "response.failed"))


class Event(NamedTuple):
    """One public event, as a reader got it."""

    number: int
    type: str
    text: str = ""
    """Of a delta: its text. Of a terminal: the response's status."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One reader's view of one response, over all its connections."""

    response: str
    reader: str
    events: tuple[Event, ...]
    done: bool
    """It read on until it was told of the end; else it left before."""

    @property
    def text(self) -> str:
        """All that it was told."""
        return "".join(event.text for event in self.events if event.type == DELTA)


@dataclass(frozen=True, slots=True)
class Asked:
    """What one user wanted once: one prompt under one idempotency key, however often it was sent."""

    prompt: str
    """Unlike every other prompt of the run."""
    session: str
    """The user's name for it. Its prompts were asked one after the other."""
    words: int
    """What the engine was asked to make: w001 … up to this."""
    responses: tuple[str, ...]
    """The ids that `response.created` gave for it, in order."""
    cancelled: bool = False
    """The user asked for its end. It may have been too late."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A turn in the message store."""

    response: str
    session: str
    number: int
    prompt: str
    status: str | None
    """None: it has no end."""
    text: str
    lengths: tuple[int, ...]
    """Characters of each delta."""


@dataclass(frozen=True, slots=True)
class End:
    """A TurnEnded that stands, in the order of the log."""

    response: str
    status: str
    text: str
    output_tokens: int
    retryable: bool = False
    """It failed, and its key is free again."""


@dataclass(frozen=True, slots=True)
class Counted:
    """What usage has counted."""

    turns: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Evidence:
    """All of one run."""

    asked: tuple[Asked, ...]
    readings: tuple[Reading, ...]
    late: dict[str, Reading]
    """By response: the stream from its beginning, read after everything had come to rest."""
    kept: dict[str, Kept]
    """By response."""
    ends: tuple[End, ...]
    started: dict[str, str] = field(default_factory=dict)
    """By response: the prompt, of every turn that the state log has begun."""
    counted: Counted = Counted(0, 0)
