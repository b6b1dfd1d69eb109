"""The words that several events share: ids, dispatch and epoch, routes, items, usage."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer

Tier = Literal["paid", "free"]
"""Subscription tier. Paid work is taken before free work, and shed after it."""

TIERS: tuple[Tier, ...] = ("paid", "free")

SessionId = Annotated[UUID, PlainSerializer(str, return_type=str, when_used="json")]
UserId = Annotated[UUID, PlainSerializer(str, return_type=str, when_used="json")]
ResponseId = Annotated[str, Field(pattern=r"^resp_[A-Za-z0-9_-]{56}$")]
MessageId = Annotated[str, Field(pattern=r"^msg_[A-Za-z0-9_-]{59}$")]
Millis = Annotated[int, Field(ge=0)]
"""Milliseconds since the Unix epoch."""

Dispatch = tuple[int, int]
"""(the orchestrator's takeover of the prompts partition, count): orders the decisions about one turn."""

Epoch = tuple[int, int, int, int]
"""(dispatch takeover, dispatch count, takeover of the writer, run): orders the runs of one turn."""

Traceparent = Annotated[str, Field(pattern=r"^00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$")]
"""The trace that a client's request is part of, and the span that asked (W3C Trace Context, version 00)."""

NO_EPOCH: Epoch = (0, 0, 0, 0)
"""The epoch of an end that has no fence: the turn never ran."""


def epoch_of(dispatch: Dispatch, takeover: int, run: int) -> Epoch:
    """The epoch of a holder's run of a turn under a dispatch."""
    return (dispatch[0], dispatch[1], takeover, run)


class Model(BaseModel):
    """A frozen, strict value. Unknown fields are ignored, so that old code reads what newer code wrote."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")


class Event(Model):
    """A value with its own place on a topic. `type` names it; `v` changes when old readers would misread it."""

    v: Literal[1] = 1


class Route(Model):
    """Where a turn's token events go, and from where to read them."""

    topic: str
    partition: int = Field(ge=0)
    start: int = Field(ge=0)
    """Offset of the route at acceptance: a lower bound of the turn's first record."""


class Text(Model):
    """A part of a message that somebody said."""

    type: Literal["text"] = "text"
    text: str


class Refusal(Model):
    """A part of an answer that says that, not why in detail, something was not answered."""

    type: Literal["refusal"] = "refusal"
    refusal: str


Part = Annotated[Text | Refusal, Field(discriminator="type")]


class Item(Model):
    """A message of a conversation."""

    id: MessageId
    role: Literal["user", "assistant", "system", "developer"]
    status: Literal["in_progress", "completed", "incomplete"] = "completed"
    parts: tuple[Part, ...]

    @property
    def text(self) -> str:
        """What was said, without refusals."""
        return "".join(part.text for part in self.parts if isinstance(part, Text))


class Usage(Model):
    """Tokens of one turn; three numbers that differ (DESIGN, promise 14)."""

    input_tokens: int = 0
    """The rendered prompt, counted by the pool's tokenizer."""
    output_tokens: int = 0
    """Released to the reader; what is billed."""
    generated_tokens: int = 0
    """Made by the engine, over all runs of the turn."""


class Sampling(Model):
    """How the engine is to choose tokens. None means the pool's default."""

    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, ge=0, le=1)
    frequency_penalty: float = Field(default=0.0, ge=-2, le=2)
    presence_penalty: float = Field(default=0.0, ge=-2, le=2)
    max_output_tokens: int | None = Field(default=None, ge=1)
    stop: tuple[str, ...] = ()
    seed: int | None = Field(default=None, ge=0)


class Timings(Model):
    """When each stage of a turn was reached, in milliseconds since the Unix epoch, by the writer's clock."""

    accepted: Millis | None = None
    opened: Millis | None = None
    moderated: Millis | None = None
    dispatched: Millis | None = None
    taken: Millis | None = None
    engine_started: Millis | None = None
    first_token: Millis | None = None
    released: Millis | None = None
    """First text on the route."""
    ended: Millis | None = None


class Failure(Model):
    """Why a turn failed, in the words of the error taxonomy."""

    code: str
    message: str
    retryable: bool


JsonObject = dict[str, Any]
