"""Everything that was ever written, decoded once, in the order of the log."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from uuid import UUID

from aiokafka import TopicPartition

from parley.session import Session
from parley.topics import CONTROL, PROMPTS, TOKENS, TURNS, VERDICTS
from parley.transcript import Transcript, Void
from producers.edge.projection import Projection
from schemas.prompts import Cancel, InferenceRequest, PromptAccepted, Verdict
from schemas.routes import Delta, Fence, Opened, Terminal, decode_route_record
from schemas.turns import TurnEnded, TurnStarted
from schemas.wire import TurnsEvent, decode_turns_event, decoder
from tests.simulation.cluster import Record

_prompt, _verdict, _cancel, _request = map(decoder, (PromptAccepted, Verdict, Cancel, InferenceRequest))


@dataclass(slots=True)
class Turn:
    """What the log says about one response."""

    prompt: PromptAccepted
    projection: Projection
    deltas_at: list[int] = field(default_factory=list)
    """Place in the order of all records of each delta that counts."""
    events: list[tuple[int, Opened | Fence | Delta | Terminal, Void | None]] = field(default_factory=list)
    starts: list[TurnStarted] = field(default_factory=list)
    requests: list[tuple[int, InferenceRequest]] = field(default_factory=list)
    ends: list[tuple[int, TurnEnded]] = field(default_factory=list)
    """Those that are valid."""
    verdict: tuple[int, Verdict] | None = None
    cancelled: bool = False

    @property
    def expired(self) -> bool:
        """It was too old to be begun: nothing is said on its route."""
        return bool(self.ends) and self.ends[-1][1].status == "expired"

    @property
    def open(self) -> bool:
        """Somebody still has to see to it."""
        if self.dead or self.expired:
            return False
        return self.transcript.terminal is None or (bool(self.starts) and not self.ends)

    @property
    def transcript(self) -> Transcript:
        return self.projection.transcript

    @property
    def opened(self) -> Opened | None:
        return self.transcript.opened

    @property
    def dead(self) -> bool:
        """A duplicate of another turn, or in conflict with one: it never runs."""
        return self.opened is not None and (self.opened.duplicate_of is not None or self.opened.conflict)


class Journal:
    """Told of each record as it is appended."""

    def __init__(self) -> None:
        self.turns: dict[str, Turn] = {}
        self.sessions: dict[UUID, Session] = {}
        self.prompts: dict[TopicPartition, dict[int, str]] = defaultdict(dict)
        """Responses by offset, of prompts and of requests alike."""
        self.dispatches: dict[tuple[TopicPartition, int], tuple[int, int]] = {}
        self.problems: list[str] = []
        self._place = 0

    def note(self, record: Record) -> None:
        """A record."""
        self._place += 1
        where = TopicPartition(record.topic, record.partition)
        if record.topic == PROMPTS:
            prompt = _prompt(record.value)
            self.turns[prompt.response] = Turn(prompt, Projection(prompt.response))
            self.prompts[where][record.offset] = prompt.response
        elif record.topic == TOKENS:
            turn = self.turns[(record.key or b"").decode()]
            for event in decode_route_record(record.value or b""):
                void = turn.projection.apply(event)
                turn.events.append((self._place, event, void))
                if void is None and isinstance(event, Delta):
                    turn.deltas_at.append(self._place)
        elif record.topic == TURNS:
            self._note_turns(decode_turns_event(record.value))
        elif record.topic == VERDICTS:
            verdict = _verdict(record.value)
            turn = self.turns[verdict.response]
            if verdict.stage == "input" and turn.verdict is None:
                turn.verdict = self._place, verdict
        elif record.topic == CONTROL:
            self.turns[_cancel(record.value).response].cancelled = True
        elif record.topic.startswith("chat.inference."):
            request = _request(record.value)
            self.turns[request.response].requests.append((self._place, request))
            self.prompts[where][record.offset] = request.response
            self.dispatches[where, record.offset] = request.dispatch

    def _note_turns(self, event: TurnsEvent) -> None:
        session = self.sessions.setdefault(event.session, Session(event.session))
        void = session.apply(event)
        if isinstance(event, TurnStarted):
            self.turns[event.response].starts.append(event)
        elif isinstance(event, TurnEnded) and void is None:
            turn = self.turns[event.response]
            turn.ends.append((self._place, event))
            self._check_end(turn, event)

    def _check_end(self, turn: Turn, ended: TurnEnded) -> None:
        """What a view believes now must be what the route says for good."""
        fold = turn.transcript
        if ended.status == "expired":
            if fold.terminal is not None:
                self.problems.append(f"{short(ended.response)} is expired in chat.turns, ended on its route")
            return
        if fold.terminal is None:
            self.problems.append(f"{short(ended.response)} has ended in chat.turns, not on its route")
            return
        said = (ended.status, "".join(item.text for item in ended.output), ended.usage, ended.epoch)
        holds = (fold.terminal.kind, fold.text, fold.terminal.usage, fold.epoch)
        if said != holds:
            self.problems.append(f"{short(ended.response)} ended twofold: chat.turns {said}, route {holds}")


def short(response: str) -> str:
    """Enough of an id to tell turns apart."""
    return response[-6:]
