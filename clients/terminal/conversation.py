"""One answer, as its public events tell it, and the turns that a conversation's items are. Pure: no I/O, no terminal.

    sending -> waiting -> running -> completed | refused | incomplete | cancelled | failed

What is shown is always a beginning of the whole answer: events are taken in the order of their numbers, one that came
before shows nothing, and after a gap (`Gap`) the answer has to be resumed. clients/web/answer.js is this module's twin.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

Json = Mapping[str, Any]


class State(StrEnum):
    """Where an answer is."""

    SENDING = "sending"
    """Nothing is known of its acceptance."""
    WAITING = "waiting"
    """Accepted; an earlier turn or other people's come first."""
    RUNNING = "running"
    COMPLETED = "completed"
    REFUSED = "refused"
    """The prompt was not answered."""
    INCOMPLETE = "incomplete"
    """What there is was kept; `reason` says why it ends there."""
    CANCELLED = "cancelled"
    FAILED = "failed"

    @property
    def ended(self) -> bool:
        """Nothing more will come."""
        return self not in (State.SENDING, State.WAITING, State.RUNNING)


class Gap(Exception):
    """Events before this one are missing: resume after the last that was taken."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Why there is no answer, or no whole one."""

    code: str
    message: str
    retryable: bool = True


@dataclass(slots=True)
class Answer:
    """One response. `request` is the body of its response.create, while it has not been accepted."""

    request: Json | None = None
    id: str | None = None
    state: State = State.SENDING
    text: str = ""
    refusal: str = ""
    reason: str | None = None
    dropped: int = 0
    """Earlier turns that the model did not see."""
    problem: Problem | None = None
    stopping: bool = False
    """The user wants no more; the answer may still end in another way."""
    last: int = -1
    """The number of the last event taken."""

    def apply(self, event: Json) -> str:
        """Take one event; gives the text that it adds to what is shown.

        Raises:
            Gap: events before it are missing; nothing has changed.
        """
        number = event["sequence_number"]
        if number <= self.last:
            return ""
        if number != self.last + 1:
            raise Gap
        self.last = number
        match event["type"]:
            case "response.created":
                self.id = event["response"]["id"]
            case "response.queued":
                self.state = State.WAITING
            case "response.in_progress":
                self.state = State.RUNNING
            case "response.output_text.delta":
                self.text += event["delta"]
                return str(event["delta"])
            case "response.refusal.delta":
                # After text that was cut off, the refusal begins a paragraph.
                begin = "\n\n" if self.text and not self.refusal else ""
                self.refusal += event["delta"]
                return begin + str(event["delta"])
            case "response.completed" | "response.incomplete" | "response.failed":
                self._end(event["response"])
        return ""

    def settle(self, response: Json) -> None:
        """Take a response that has ended, whole, as it is kept."""
        parts = [part for item in response["output"] for part in item["content"]]
        self.id = response["id"]
        self.text = "".join(part.get("text", "") for part in parts)
        self.refusal = "".join(part.get("refusal", "") for part in parts)
        self._end(response)

    def fail(self, problem: Problem) -> None:
        """The answer can't be had: it was not accepted, or can't be followed."""
        self.state, self.problem = State.FAILED, problem

    @property
    def shown(self) -> str:
        """All that has been shown."""
        return self.text + ("\n\n" if self.text and self.refusal else "") + self.refusal

    @property
    def remark(self) -> str:
        """What is to be said about its end; empty where the text says enough."""
        match self.state:
            case State.INCOMPLETE:
                return REASONS.get(self.reason or "", "The answer is incomplete.")
            case State.COMPLETED if self.dropped:
                return f"The start of this chat no longer fits (turns left out: {self.dropped})."
            case State.CANCELLED:
                return "Stopped."
            case State.FAILED:
                said = self.problem.message if self.problem else "The answer failed."
                return f"{said} (/retry sends it again)" if self.problem is None or self.problem.retryable else said
        return ""

    def _end(self, response: Json) -> None:
        self.reason = (response.get("incomplete_details") or {}).get("reason")
        self.dropped = response.get("parley:dropped_turns", 0)
        if error := response.get("error"):
            self.fail(Problem(error["code"], error["message"], error.get("parley:retryable", True)))
        elif response["status"] == "completed" and self.refusal:
            self.state = State.REFUSED
        else:
            self.state = State(response["status"])


REASONS = {
    "max_output_tokens": "Cut off: the answer reached its length limit.",
    "content_filter": "Stopped by the content filter.",
}


@dataclass(slots=True)
class Turn:
    """A turn of the history."""

    response: str
    said: list[str] = field(default_factory=list)
    output: Json | None = None
    """The answer's item; None: the turn has left none."""

    @property
    def running(self) -> bool:
        """Its answer is on its way."""
        return self.output is not None and self.output["status"] == "in_progress"

    @property
    def end_is_unknown(self) -> bool:
        """The items don't say how it ended: the response does."""
        return self.output is None or self.output["status"] == "incomplete"


def turns(items: Iterable[Json]) -> list[Turn]:
    """A conversation's items, in order, as turns."""
    found: list[Turn] = []
    for item in items:
        if not found or found[-1].response != item["response_id"]:
            found.append(Turn(item["response_id"]))
        turn = found[-1]
        # Of several messages of the assistant the last is the answer: a turn's input ends with the user's.
        if turn.output is not None:
            turn.said.append(text_of(turn.output))
            turn.output = None
        if item["role"] == "assistant":
            turn.output = item
        else:
            turn.said.append(text_of(item))
    return found


def text_of(item: Json) -> str:
    """The text of an item."""
    return "".join(part.get("text") or part.get("refusal") or "" for part in item["content"])
