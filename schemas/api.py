"""The public API's requests: what Parley takes of the Open Responses specification, strict but with friendly words.

Fields that the specification knows and Parley can't honour are refused by name (`unsupported`), never ignored; fields
that nobody knows are refused too, since a mistyped `temperatur` would silently do nothing.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator, model_validator

from parley.errors import ParleyError

MIN_OUTPUT_TOKENS = 16
"""The specification's minimum of max_output_tokens."""
MAX_ITEMS = 1_000
"""Items of one request's input."""

ShortText = Annotated[str, StringConstraints(max_length=64)]
GivenId = Annotated[str, StringConstraints(min_length=1, max_length=200)]
MetadataKey = Annotated[str, StringConstraints(max_length=64)]
MetadataValue = Annotated[str, StringConstraints(max_length=512)]
Metadata = Annotated[dict[MetadataKey, MetadataValue], Field(max_length=16)]
IdempotencyKey = Annotated[str, StringConstraints(min_length=1, max_length=255, pattern=r"^[\x20-\x7e]+$")]


class Request(BaseModel):
    """A body from outside: strict types, no unknown fields."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class ContentPart(BaseModel):
    """A part of a message. Which types can be used is said by `InputItem`, with a better message."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")

    type: str
    text: str | None = None
    refusal: str | None = None


class InputItem(BaseModel):
    """An item of the input: a message of text. Ids and states that come along from earlier answers are ignored."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")

    type: str | None = None
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: str | tuple[ContentPart, ...] | None = None

    @field_validator("content", mode="before")
    @classmethod
    def _list_as_tuple(cls, value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else value


class TextFormat(BaseModel):
    """How the answer's text is to be shaped; Parley answers in plain text."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")

    type: str


class TextOptions(Request):
    """Options of the answer's text."""

    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class StreamOptions(Request):
    """Options of the stream; obfuscation is never added."""

    include_obfuscation: bool | None = None


class ConversationReference(Request):
    """A conversation by its id."""

    id: GivenId


class CreateResponse(Request):
    """The body of POST /v1/responses and the rest of a `response.create` message."""

    model: Annotated[str, StringConstraints(min_length=1, max_length=200)] | None = None
    input: str | Annotated[tuple[InputItem, ...], Field(max_length=MAX_ITEMS)] | None = None
    instructions: str | None = None
    previous_response_id: GivenId | None = None
    conversation: GivenId | ConversationReference | None = None
    max_output_tokens: Annotated[int, Field(ge=MIN_OUTPUT_TOKENS)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    stop: tuple[Annotated[str, StringConstraints(min_length=1, max_length=256)], ...] | None = Field(None, max_length=4)
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    background: bool | None = None
    store: bool | None = None
    metadata: Metadata | None = None
    service_tier: Literal["auto", "default", "flex", "priority"] | None = None
    user: ShortText | None = None
    safety_identifier: ShortText | None = None
    prompt_cache_key: ShortText | None = None
    idempotency_key: IdempotencyKey | None = None
    """Over WebSocket, where a message has no headers; over HTTP the header Idempotency-Key."""

    text: TextOptions | None = None
    tools: tuple[dict[str, Any], ...] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: Annotated[int, Field(ge=1)] | None = None
    include: tuple[str, ...] | None = None
    reasoning: dict[str, Any] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    @field_validator("input", "tools", "include", mode="before")
    @classmethod
    def _list_as_tuple(cls, value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else value

    @field_validator("stop", mode="before")
    @classmethod
    def _one_stop(cls, value: Any) -> Any:
        if isinstance(value, str):
            return (value,)
        return tuple(value) if isinstance(value, list) else value

    @model_validator(mode="after")
    def _one_predecessor(self) -> CreateResponse:
        if self.conversation is not None and self.previous_response_id is not None:
            raise ValueError("conversation and previous_response_id exclude each other: give one of them")
        return self

    @property
    def conversation_id(self) -> str | None:
        """The named conversation."""
        return self.conversation.id if isinstance(self.conversation, ConversationReference) else self.conversation

    def refuse_unsupported(self) -> None:
        """Refuse by name what the specification knows and Parley doesn't do.

        Raises:
            ParleyError: unsupported.
        """
        if self.tools:
            raise unsupported("tools", "tools can't be used here: leave the field out")
        if self.tool_choice not in (None, "auto", "none"):
            raise unsupported("tool_choice", "there are no tools: leave the field out")
        if self.include and "message.output_text.logprobs" in self.include:
            raise unsupported("include", "log probabilities are not reported")
        if self.top_logprobs:
            raise unsupported("top_logprobs", "log probabilities are not reported")
        if self.reasoning and any(value is not None for value in self.reasoning.values()):
            raise unsupported("reasoning", "the models here don't reason apart from their answer: leave the field out")
        if self.text and self.text.format and self.text.format.type != "text":
            raise unsupported("text.format", "answers are plain text: only the format type 'text' can be used")


class CreateConversation(Request):
    """The body of POST /v1/conversations."""

    title: Annotated[str, StringConstraints(max_length=200)] | None = None
    metadata: Metadata | None = None


class UpdateConversation(Request):
    """The body of POST /v1/conversations/{id}: fields left out stay as they are."""

    title: Annotated[str, StringConstraints(min_length=1, max_length=200)] | None = None
    metadata: Metadata | None = None


def unsupported(param: str, message: str) -> ParleyError:
    """A part of the specification that Parley doesn't do."""
    return ParleyError("unsupported", f"{param} is not supported: {message}.", param=param)
