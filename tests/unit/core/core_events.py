"""Events for tests of the pure core: everything that a test does not name has a value that does not matter."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from parley.ids import Keys, message_id, new_response_id
from schemas.base import Epoch, Failure, Item, Refusal, Route, Text, Timings
from schemas.prompts import InferenceRequest, OutputItem
from schemas.routes import Delta, Fence, Opened, Terminal
from schemas.turns import TurnEnded, TurnStarted

KEYS = Keys((b"a key of the edges, 32 bytes long",))
USER = UUID(int=1)
SOMEBODY_ELSE = UUID(int=2)
SESSION = UUID("01890000-0000-7000-8000-000000000001")
ROUTE = Route(topic="chat.tokens", partition=3, start=7)
RUN_1: Epoch = (1, 1, 1, 1)


def response(number: int) -> str:
    """A response id of the session; the same for the same number."""
    found = _responses.get(number)
    if found is None:
        found = _responses[number] = new_response_id(KEYS, USER, SESSION, 3, 7, 1_700_000_000_000 + number)
    return found


_responses: dict[int, str] = {}


def said(text: str, role: str = "user", *, of: str | None = None, position: int = 0) -> Item:
    """A message."""
    return Item.model_validate(
        {"id": message_id(of or response(0), position), "role": role, "parts": (Text(text=text),)}
    )


def answered(text: str, *, refusal: str | None = None) -> tuple[Item, ...]:
    """An answer's items."""
    parts = (*((Text(text=text),) if text else ()), *((Refusal(refusal=refusal),) if refusal else ()))
    return (Item(id=message_id(response(0), 1), role="assistant", parts=parts),) if parts else ()


def opened(**fields: Any) -> Opened:
    return Opened(**{"session": SESSION, "user": USER, "created_at": 5, "waiting": False} | fields)


def fence(epoch: Epoch = RUN_1, writer: str = "w1") -> Fence:
    return Fence(epoch=epoch, writer=writer)


def delta(seq: int, text: str, writer: str = "w1", tokens: int = 1) -> Delta:
    return Delta(writer=writer, seq=seq, text=text, tokens=tokens)


def terminal(seq: int, writer: str = "w1", **fields: Any) -> Terminal:
    return Terminal(**{"writer": writer, "seq": seq, "kind": "completed", "model": "m", "ended_at": 9} | fields)


def started(number: int, **fields: Any) -> TurnStarted:
    """Turn `number` of the session, sent to a pool."""
    given = {
        "response": response(number),
        "session": SESSION,
        "user": USER,
        "tier": "free",
        "turn": number,
        "parent": response(number - 1) if number > 1 else None,
        "items": (said(f"question {number}", of=response(number)),),
        "pool": "synthetic",
        "model": "m",
        "dispatch": (1, number),
        "route": ROUTE,
        "deadline": 100,
        "moderation_deadline": 50,
        "accepted_at": 5,
    }
    return TurnStarted(**given | fields)


def ended(number: int, **fields: Any) -> TurnEnded:
    """The end of turn `number`: completed, under the dispatch that `started` gives it."""
    given = {
        "response": response(number),
        "session": SESSION,
        "user": USER,
        "tier": "free",
        "turn": number,
        "parent": response(number - 1) if number > 1 else None,
        "dispatch": (1, number),
        "epoch": (1, number, 1, 1),
        "status": "completed",
        "output": answered(f"answer {number}"),
        "model": "m",
        "code": "test",
        "accepted_at": 5,
        "ended_at": 9,
    }
    return TurnEnded(**given | fields)


def failed(*, retryable: bool) -> Failure:
    return Failure(code="engine_error", message="it failed", retryable=retryable)


def request(number: int = 1, **fields: Any) -> InferenceRequest:
    """What a pool gets for turn `number`."""
    given = {
        "response": response(number),
        "session": SESSION,
        "user": USER,
        "tier": "free",
        "turn": number,
        "parent": None,
        "dispatch": (1, number),
        "pool": "synthetic",
        "model": "m",
        "prompt": "p",
        "prompt_tokens": 1,
        "max_tokens": 10,
        "sampling": {},
        "output": OutputItem(id=message_id(response(number), 1)),
        "route": ROUTE,
        "deadline": 100,
        "moderation_deadline": 50,
        "template": "chatml-1",
        "timings": Timings(accepted=5),
    }
    return InferenceRequest.model_validate(given | fields)


class Member:
    """A group that takes note of what it can't go on after, and whose commits nobody looks at."""

    name = "group"

    def __init__(self) -> None:
        self.failures: list[BaseException] = []

    def commit_soon(self, *, urgent: bool = False, proof: bool = False) -> None:
        """Nothing to commit."""

    def fail(self, error: BaseException) -> None:
        self.failures.append(error)
