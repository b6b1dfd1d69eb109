"""What happened to a conversation, small enough to keep as a test: its events, and what the pure parts make of them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any
from uuid import UUID

import orjson
import yaml
from pydantic import BaseModel, ConfigDict

from parley.safety.policy import Policy
from parley.session import Session
from parley.topics import TOKENS, TURNS, VERDICTS
from parley.transcript import Transcript
from schemas.prompts import Verdict
from schemas.routes import Delta, Fence, Opened, Terminal
from schemas.turns import Feedback, SessionChanged, SessionDeleted, TurnEnded, TurnStarted
from schemas.wire import EVENTS


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Happened(_Value):
    """An event with its topic, in the order of the log."""

    topic: str
    """`chat.tokens` also of a session's own topic."""
    response: str | None
    event: dict[str, Any]

    def decoded(self) -> BaseModel:
        """The event itself.

        Raises:
            pydantic.ValidationError: this version can't read it any more.
        """
        return EVENTS[self.event["type"]].model_validate_json(orjson.dumps(self.event))


class Seen(_Value):
    """What the pure parts make of the events."""

    state_log: tuple[str | None, ...]
    """Of each event of chat.turns: None, or why it is void."""
    turns: dict[str, tuple[int, str | None, str]]
    """Of each turn of the session: number, status, answer."""
    routes: dict[str, tuple[str | None, ...]]
    """Of each response's events on its route: None, or why it is void."""
    answers: dict[str, tuple[str, str | None]]
    """Of each response: the text of its route, and how that ended."""
    decisions: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Of each verdict on a prompt: what the policy says of its scores."""


class Incident(_Value):
    """Events and what was seen."""

    session: UUID
    policy: str | None = None
    """The policy's YAML, when it is the one that the verdicts name."""
    events: tuple[Happened, ...]
    seen: Seen

    @classmethod
    def load(cls, path: Path) -> Incident:
        """An incident that was exported.

        Raises:
            pydantic.ValidationError: the file is none.
        """
        return cls.model_validate_json(path.read_text("utf-8"))

    def rules(self) -> Policy | None:
        """The policy to judge by, if there is one.

        Raises:
            pydantic.ValidationError: this version has no such policy any more.
        """
        return None if self.policy is None else Policy.model_validate(yaml.safe_load(self.policy))

    def replayed(self) -> Seen:
        """What this version makes of the events."""
        return observe(self.session, self.events, self.rules())


def observe(session: UUID, events: Iterable[Happened], policy: Policy | None = None) -> Seen:
    """Replay the events in memory."""
    state, transcripts = Session(session), dict[str, Transcript]()
    state_log: list[str | None] = []
    routes: dict[str, list[str | None]] = {}
    decisions: list[tuple[str, tuple[str, ...]]] = []
    for each in events:
        event = each.decoded()
        if each.topic == TURNS:
            assert isinstance(event, TurnStarted | TurnEnded | SessionChanged | SessionDeleted | Feedback)
            state_log.append(_why(state.apply(event)))
        elif each.topic == TOKENS and each.response is not None:
            assert isinstance(event, Opened | Fence | Delta | Terminal)
            void = transcripts.setdefault(each.response, Transcript()).apply(event)
            routes.setdefault(each.response, []).append(_why(void))
        elif each.topic == VERDICTS and policy is not None:
            assert isinstance(event, Verdict)
            if event.stage == "input":
                decision = policy.decide("input", event.scores)
                decisions.append((decision.action, decision.categories))
    return Seen(
        state_log=tuple(state_log),
        turns={turn.response: (turn.number, turn.status, turn.answer) for turn in state.turns.values()},
        routes={response: tuple(voids) for response, voids in routes.items()},
        answers={r: (t.text, t.terminal.kind if t.terminal else None) for r, t in transcripts.items()},
        decisions=tuple(decisions),
    )


def _why(void: Any) -> str | None:
    return None if void is None else str(void.value)
