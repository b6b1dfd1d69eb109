"""Dead letters, and which of them may go back. Pure.

A letter goes back to the partition that it came from and nowhere else, once, marked, and only if those who read it
there take the same event twice without harm:

- an event that a view could not keep goes back to chat.turns as it was: the orchestrator's fold and all views are
  idempotent;
- a prompt becomes a new turn of its session, and only when the operator says so: its old response id is one that nobody
  was told of, or whose turn has ended;
- a request never goes back: its turn has ended, and whoever asked was told; nor do verdicts and cancels, which concern
  turns that are over.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from uuid import UUID

from parley.ids import Keys, message_id, new_response_id
from parley.log.dlq import PREFIX
from parley.log.partitions import partition_of, session_key
from parley.log.ranges import Record
from parley.topics import PROMPTS, TURNS, Topics
from schemas.base import Millis, Route
from schemas.prompts import PromptAccepted
from schemas.turns import Feedback, SessionChanged
from schemas.wire import REPLAY_HEADER, BadRecord, Headers, decode_turns_event, decoder, encode, header, headers

SOURCE_HEADER = "x-redrive-of"
"""On what was redriven: the place that the letter came from, as chat.turns-3@120."""
OPERATOR_HEADER = "x-redrive-by"
VIEWS = frozenset({"history-messages", "history-sessions", "parley-usage"})
"""Groups that keep views of chat.turns."""
_DROPPED = frozenset({"traceparent", "tracestate", "baggage", SOURCE_HEADER, OPERATOR_HEADER})
"""Headers of a hop: they would tie what happens now to what happened then."""

_prompt = decoder(PromptAccepted)


@dataclass(frozen=True, slots=True)
class Letter:
    """A record of chat.dlq: where it lies, where it came from, and why."""

    partition: int
    offset: int
    at: Millis
    """When it was given up."""
    topic: str
    """Where it came from; empty when the letter does not say."""
    source_partition: int
    source_offset: int
    source_at: Millis
    group: str
    error: str
    reason: str
    attempts: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    """The original's own."""
    size: int
    """Of the value, in bytes."""

    @property
    def name(self) -> str:
        """As operators give it: partition@offset of chat.dlq."""
        return f"{self.partition}@{self.offset}"

    @property
    def source(self) -> str:
        """The place that it came from. Two groups that give up the same record write two letters with one source."""
        return f"{self.topic}-{self.source_partition}@{self.source_offset}"

    @classmethod
    def of(cls, record: Record) -> Letter:
        """The letter in a record of chat.dlq. What it doesn't say is empty, or -1."""

        def text(name: str) -> str:
            return header(record.headers, PREFIX + name) or ""

        def number(name: str) -> int:
            return int(text(name)) if text(name).isdecimal() else -1

        return cls(
            partition=record.partition,
            offset=record.offset,
            at=int(record.timestamp),
            topic=text("topic"),
            source_partition=number("partition"),
            source_offset=number("offset"),
            source_at=number("timestamp"),
            group=text("group"),
            error=text("error"),
            reason=text("reason"),
            attempts=number("attempts"),
            key=record.key,
            value=record.value,
            headers=tuple((name, value) for name, value in record.headers if not name.startswith(PREFIX)),
            size=len(record.value or b""),
        )

    def without_original(self) -> Letter:
        """What the letter says, without the record that it is about: many can be held."""
        return replace(self, key=None, value=None, headers=())


@dataclass(frozen=True, slots=True)
class Past:
    """What the log says after the record that a letter is about."""

    complete: bool = True
    """Nothing after the record has been taken away by retention."""
    redriven_at: int | None = None
    """Offset at which its source's partition holds the same record, redriven."""
    said_later: bool = False
    """The user changed the same thing since: going back would undo that."""
    status: str | None = None
    """Of a prompt's turn: how it ended, or `running`; None: there is none in the log."""


@dataclass(frozen=True, slots=True)
class Redrive:
    """What would be sent."""

    letter: Letter
    value: bytes
    headers: Headers
    what: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why nothing is sent, and what to do instead."""

    letter: Letter
    why: str
    done: bool = False
    """It has been redriven: there is nothing to do."""


Mint = Callable[[PromptAccepted], PromptAccepted]
"""A prompt as a new turn's, accepted now."""


def decide(
    letter: Letter, past: Past, topics: Topics, *, as_new_turn: bool, mint: Mint, operator: str
) -> Redrive | Refusal:
    """Whether a letter goes back, and as what."""
    if (why := _hopeless(letter, topics)) is not None:
        return Refusal(letter, why)
    if letter.topic == PROMPTS and not as_new_turn:
        return Refusal(letter, "a prompt goes back only as a new turn of its session: say --as-new-turn")
    if past.redriven_at is not None:
        return Refusal(letter, f"done: {letter.topic} holds it at offset {past.redriven_at}", done=True)
    if not past.complete:
        return Refusal(letter, f"{letter.topic} no longer holds what came after it: was it redriven? Nobody can tell")
    try:
        if letter.topic == PROMPTS:
            return _new_turn(letter, past, topics, mint, operator)
        return _event(letter, past, topics, operator)
    except BadRecord as error:
        return Refusal(letter, f"this version can't read it either, it would only come back: {error}")


def _hopeless(letter: Letter, topics: Topics) -> str | None:
    """Why nothing could ever make it go back; None: it may."""
    if not letter.topic or letter.source_partition < 0 or letter.source_offset < 0:
        return "the letter does not say where it came from"
    if (before := header(letter.headers, SOURCE_HEADER)) is not None:
        return f"it was redriven before, from {before}, and failed again: once is enough"
    if header(letter.headers, REPLAY_HEADER) is not None:
        return "it was written by a replay: live roles refuse it"
    if letter.topic.startswith(topics.inference_prefix):
        return "a request never runs again: its turn has ended, and the user was told; a retry is the user's"
    if letter.topic not in (TURNS, PROMPTS):
        return f"records of {letter.topic} concern turns that are over: going back would change nothing"
    if letter.topic == TURNS and letter.group not in VIEWS:
        return f"{letter.group or 'its group'} is no view: only views take an event twice"
    return None


def _event(letter: Letter, past: Past, topics: Topics, operator: str) -> Redrive | Refusal:
    event = decode_turns_event(letter.value)
    if not _at_home(letter, event.session, topics):
        return Refusal(letter, "its key is not its session's: views would see it out of order")
    if isinstance(event, SessionChanged | Feedback) and past.said_later:
        return Refusal(letter, "the user changed the same thing since: going back would undo that")
    assert letter.value is not None
    return Redrive(letter, letter.value, _marked(letter, operator), event.type)


def _at_home(letter: Letter, session: UUID, topics: Topics) -> bool:
    """It came from where its session's records are."""
    key = session_key(session.hex)
    return letter.key == key and letter.source_partition == partition_of(key, topics.topics[letter.topic].partitions)


def _new_turn(letter: Letter, past: Past, topics: Topics, mint: Mint, operator: str) -> Redrive | Refusal:
    prompt = _prompt(letter.value)
    if not _at_home(letter, prompt.session, topics):
        return Refusal(letter, "its key is not its session's, or its partition")
    if past.status not in (None, "failed", "expired"):
        return Refusal(letter, f"its turn is in the log and {past.status}: a new turn would answer twice")
    new = mint(prompt)
    about = headers(new.type, response=new.response, session=new.session.hex, route=new.route)
    mark = tuple(pair for pair in _marked(letter, operator) if pair[0] in (SOURCE_HEADER, OPERATOR_HEADER))
    return Redrive(letter, encode(new), (*about, *mark), f"new turn {new.response}")


def _marked(letter: Letter, operator: str) -> Headers:
    kept = tuple((name, value) for name, value in letter.headers if name not in _DROPPED)
    return (*kept, (SOURCE_HEADER, letter.source.encode()), (OPERATOR_HEADER, operator.encode()))


def new_turn(prompt: PromptAccepted, source: str, *, keys: Keys, route: Route, now_ms: Millis) -> PromptAccepted:
    """The prompt as a new turn of its session on a lane, accepted now.

    It has an idempotency key: the client's own, so that a retry of the client's and this are one turn, or one made of
    the letter's source, so that two operators' are. The session may have gone on since, so it is not a new one.
    """
    response = new_response_id(keys, prompt.user, prompt.session, route.partition, route.start, now_ms)
    output = len(prompt.items)
    renamed = {item.id: message_id(response, n) for n, item in enumerate(prompt.items)}
    renamed[message_id(prompt.response, output)] = message_id(response, output)
    items = tuple(item.model_copy(update={"id": renamed[item.id]}) for item in prompt.items)
    echo = {name: renamed.get(value, value) if isinstance(value, str) else value for name, value in prompt.echo.items()}
    digest = hashlib.sha256(f"redrive {source}".encode()).hexdigest()
    return prompt.model_copy(
        update={
            "response": response,
            "accepted_at": now_ms,
            "items": items,
            "echo": echo,
            "new_session": False,
            "route": route,
            "key_hash": prompt.key_hash or digest,
            "body_hash": prompt.body_hash or digest,
        }
    )
