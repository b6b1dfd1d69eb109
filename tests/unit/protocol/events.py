"""What users and roles of the simulation say. Ids and messages are made once: schedules share them."""

from __future__ import annotations

from functools import lru_cache
from uuid import UUID

from parley.ids import Keys, message_id, new_response_id
from parley.session import Session
from schemas.base import Item, Route, Sampling, Text, Timings
from schemas.prompts import Cancel, InferenceRequest, OutputItem, PromptAccepted, Verdict
from schemas.routes import TerminalKind
from schemas.turns import TurnStarted

PROMPTS, TURNS, VERDICTS, CONTROL = "chat.prompts", "chat.turns", "chat.verdicts", "chat.control"
TOKENS = "chat.tokens"
POOLS = ("chat.inference.a", "chat.inference.b")
LANE = (TOKENS, 0)
"""All turns of the simulation share one lane: records of others lie between those of a turn."""
ANSWER_TOKENS = 3
"""Deltas of a full answer."""
MODEL = "m"
ACCEPTED = 1_700_000_000_000

_KEYS = Keys((b"a key of the edges, 32 bytes long",))


@lru_cache
def session_id(session: int) -> UUID:
    return UUID(int=(0x01890000_0000_7000_8000 << 48) + session)


@lru_cache
def user_id(session: int) -> UUID:
    return UUID(int=1 + session)


@lru_cache
def response_id(session: int, number: int) -> str:
    """Of the number-th prompt of a session."""
    return new_response_id(_KEYS, user_id(session), session_id(session), 0, 0, ACCEPTED + number)


@lru_cache
def said(response: str) -> tuple[Item, ...]:
    """What the user says in the turn."""
    return (Item(id=message_id(response, 0), role="user", parts=(Text(text=f"prompt of {response}"),)),)


def prompt(
    session: int, number: int, *, start: int, parent: str | None, key: str | None, body: str | None, now: int
) -> PromptAccepted:
    response = response_id(session, number)
    return PromptAccepted(
        response=response,
        session=session_id(session),
        user=user_id(session),
        tier="free",
        accepted_at=now,
        model=MODEL,
        items=said(response),
        parent=parent,
        new_session=number == 1,
        route=Route(topic=TOKENS, partition=0, start=start),
        key_hash=key,
        body_hash=body,
    )


def context_text(session: Session, parent: str | None) -> str | None:
    """What a model gets of the past: the answers on the path to `parent`. None: the parent is unknown."""
    path = session.path(parent)
    return None if path is None else " ".join(f"{turn.response[-4:]}:{turn.answer}" for turn in path if turn.answer)


def request(session: Session, decision: TurnStarted, verdict: Verdict | None, now: int) -> InferenceRequest:
    """The request of a standing TurnStarted, as consumers.orchestrator.planning makes it."""
    assert decision.pool is not None
    return InferenceRequest(
        response=decision.response,
        session=decision.session,
        user=decision.user,
        tier=decision.tier,
        turn=decision.turn,
        parent=decision.parent,
        dispatch=decision.dispatch,
        pool=decision.pool,
        model=decision.model,
        prompt=context_text(session, decision.parent) or "",
        prompt_tokens=1,
        max_tokens=ANSWER_TOKENS,
        sampling=_SAMPLING,
        output=OutputItem(id=message_id(decision.response, 1)),
        route=decision.route,
        deadline=decision.deadline,
        moderation_deadline=decision.moderation_deadline,
        verdict=verdict,
        template="t",
        timings=Timings(accepted=decision.accepted_at, dispatched=now),
    )


_SAMPLING = Sampling()


@lru_cache
def verdict(response: str, session: int, decision: TerminalKind | str) -> tuple[Verdict, bytes]:
    """A decision on a prompt, and its bytes."""
    event = Verdict.model_validate(
        {
            "response": response,
            "session": session_id(session),
            "stage": "input",
            "decision": decision,
            "policy": "p",
            "model": MODEL,
            "at": ACCEPTED,
        }
    )
    return event, event.model_dump_json().encode()


@lru_cache
def cancel(response: str, session: int) -> tuple[Cancel, bytes]:
    """A user's wish to end the turn, and its bytes."""
    event = Cancel(response=response, session=session_id(session), user=user_id(session), at=ACCEPTED)
    return event, event.model_dump_json().encode()
