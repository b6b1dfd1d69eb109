"""The orchestrator: the control flow of consumers/orchestrator (shard.py, conversation.py, ending.py), step by step."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from typing import Any
from uuid import UUID

from consumers.orchestrator.planning import parent_of, started
from parley.errors import failure
from parley.session import Session, Turn
from parley.side_inputs import SideInputs
from schemas.base import Dispatch, Failure
from schemas.prompts import PromptAccepted
from schemas.routes import Opened
from schemas.turns import SessionDeleted, TurnEnded, TurnStarted
from schemas.wire import TurnsEvent

from . import events
from .ending import EndKind, end_turn
from .events import CONTROL, LANE, POOLS, TURNS, VERDICTS
from .log import Record, SendFailed
from .member import Held, Member, Task


class Shard:
    """Everything that the orchestrator knows of one partition, under one takeover."""

    def __init__(self, member: Orchestrator, held: Held) -> None:
        self.member = member
        self.held = held
        self.side = SideInputs(member.follower, held.partition, member.world.protocol)  # type: ignore[arg-type]
        self.requested: dict[str, Dispatch] = {}
        self.live = False
        self.conversations: dict[UUID, Conversation] = {}
        self._count = 0

    def raised(self) -> Dispatch:
        self._count += 1
        return (self.held.takeover, self._count)

    def conversation(self, session: UUID) -> Conversation:
        found = self.conversations.get(session)
        if found is None:
            found = self.conversations[session] = Conversation(self, self.member.world.session(session))
        return found

    def on_turns(self, record: Record) -> None:
        self.conversation(record.event.session).apply(record.event)

    def go_on(self) -> None:
        self.live = True
        for conversation in list(self.conversations.values()):
            conversation.proceed()


class Orchestrator(Member):
    """Reads prompts, runs each session's turns one after the other, answers for their ends."""

    shards: dict[int, Shard]

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.shards = {}

    def take(self, taken: list[Held]) -> Task:
        logs, follower, read = self.world.logs, self.follower, (TURNS, VERDICTS, CONTROL)
        ends = {held: [len(logs.log((topic, held.partition))) for topic in read] for held in taken}
        for held in taken:
            shard = self.shards[held.partition] = Shard(self, held)
            follower.follow(TURNS, held.partition, 0, shard.on_turns)
            shard.side.follow(0, 0)
        for held in taken:
            for topic, end in zip(read, ends[held], strict=True):
                if "replay-first" not in self.without:
                    yield from follower.reached(topic, held.partition, end - 1)
        for held in taken:
            if not held.lost:
                self.shards[held.partition].go_on()

    def record(self, held: Held, record: Record) -> None:
        self.shards[held.partition].conversation(record.event.session).accept(record)

    def drop(self, held: Held) -> None:
        shard = self.shards.get(held.partition)
        if shard is not None and shard.held is held:
            del self.shards[held.partition]
            shard.side.stop()
            self.follower.unfollow(TURNS, held.partition)


class Conversation:
    """A session: the fold of what happened, the prompts that wait, and the task that works them off."""

    def __init__(self, shard: Shard, session: Session) -> None:
        self.shard = shard
        self.held = shard.held
        self.member = shard.member
        self.world = shard.member.world
        self.without = shard.member.without
        self.session = session
        self._arriving: deque[Record] = deque()
        self._waiting: deque[Record] = deque()
        self._prompts: dict[str, Record] = {}
        self._opened: set[str] = set()
        self._aside: set[str] = set()
        self._numbering = False
        self._running = False

    # -- what comes in ------------------------------------------------------------------------------------------------

    def apply(self, event: TurnsEvent) -> None:
        self.session.apply(event)
        if isinstance(event, TurnEnded):
            self._settle(event.response)
        if self.session.deleted and isinstance(event, SessionDeleted):
            while self._waiting:
                self._end_aside(self._waiting[0], "failed", failure("not_found", "the conversation was deleted"))
        if self.shard.live:
            self.proceed()

    def accept(self, prompt: Record) -> None:
        """A key is judged in the order of the log, and what the first Opened says about it is what is done."""
        if self._arriving or prompt.event.key_hash is not None:
            self._arriving.append(prompt)
            if len(self._arriving) == 1:
                self.held.spawn(f"arrivals-{self.session.id}", self._arrive())
        else:
            self._admit(prompt, None)

    def _arrive(self) -> Task:
        while self._arriving:
            prompt = self._arriving[0]
            first: Opened | None = None
            if prompt.event.key_hash is not None and self.world.readable(prompt):
                opened = self._opened_as(prompt)
                first = opened if "first-opened" in self.without else (yield from self._first(prompt, opened))
            self._admit(prompt, first)
            self._arriving.popleft()
        self.proceed()

    def _first(self, prompt: Record, opened: Opened) -> Generator[None, None, Opened]:
        """The Opened that counts, once one of this holder stands in the log."""
        event: PromptAccepted = prompt.event
        while True:
            try:
                offset = yield from self.member.acknowledged(self.member.send(LANE, Record(opened, event.response)))
                break
            except SendFailed:
                yield
        route = self.world.logs.log(LANE)[event.route.start : offset + 1]
        return next(r.event for r in route if r.response == event.response and isinstance(r.event, Opened))

    def _opened_as(self, prompt: Record) -> Opened:
        event: PromptAccepted = prompt.event
        turn = self.session.turns.get(event.response)
        duplicate, conflict = self._duplicate(prompt)
        return Opened(
            session=event.session,
            user=event.user,
            created_at=event.accepted_at,
            waiting=turn is None and (bool(self._waiting) or self._serial() is not None) and duplicate is None,
            duplicate_of=duplicate,
            conflict=conflict,
        )

    def _admit(self, prompt: Record, first: Opened | None) -> None:
        event: PromptAccepted = prompt.event
        response = event.response
        turn = self.session.turns.get(response)
        late = self.world.too_old(prompt)
        opened = first or self._opened_as(prompt)
        duplicate = opened.duplicate_of
        over = late and turn is not None and turn.status is not None
        unopened = not late or (turn is not None and turn.dispatched and self.world.readable(prompt))
        if unopened and (first is None or "first-opened" in self.without):
            self._opened.add(response)
            self.held.spawn(f"opened-{response}", self._open(response, opened))
        if duplicate is not None or over:
            self.held.spawn(f"done-{response}", self._let_go(prompt))
            return
        self._prompts[response] = prompt
        if turn is not None:
            self._settle(response)
        elif late:
            self._end_aside(prompt, "expired", failure("expired", "the prompt waited too long"))
        elif len(self._waiting) >= self.world.protocol.waiting_turns:
            self._end_aside(prompt, "failed", failure("conversation_busy", "too many turns wait"))
        else:
            self._waiting.append(prompt)
            self.shard.side.on_cancel(response, lambda: self._cancel_waiting(prompt))
        self.proceed()

    def proceed(self) -> None:
        if not self._running and (self._waiting or self._serial() is not None):
            self._running = True
            self.held.spawn(f"session-{self.session.id}", self._run())

    def _duplicate(self, prompt: Record) -> tuple[str | None, bool]:
        event: PromptAccepted = prompt.event
        if event.key_hash is None or "dedupe" in self.without:
            return None, False
        for other in self._prompts.values():
            if other.event.key_hash == event.key_hash and other.event.response != event.response:
                return other.event.response, other.event.body_hash != event.body_hash
        turn = self.session.keyed(event.key_hash, prompt.timestamp - int(self.world.protocol.key_life_s * 1000))
        if turn is None or turn.response == event.response:
            return None, False
        return turn.response, turn.body_hash != event.body_hash

    def _open(self, response: str, opened: Opened) -> Task:
        while True:
            try:
                yield from self.member.acknowledged(self.member.send(LANE, Record(opened, response)))
                break
            except SendFailed:
                yield
        self._opened.discard(response)
        self._settle(response)

    def _let_go(self, prompt: Record) -> Task:
        yield from self._opened_written(prompt.event.response)
        self.held.end(prompt.offset)

    def _opened_written(self, response: str) -> Task:
        while response in self._opened and "opened-acked" not in self.without:
            yield

    # -- turns in their order -----------------------------------------------------------------------------------------

    def _serial(self) -> Turn | None:
        open_turns = self.session.open_turns()
        if "serial" in self.without:
            open_turns = [t for t in open_turns if self.shard.requested.get(t.response) is None]
        return next((turn for turn in open_turns if turn.response not in self._aside), None)

    def _run(self) -> Task:
        while True:
            yield
            try:
                for prompt in [p for p in self._waiting if p.event.response in self.session.turns]:
                    self._waiting.remove(prompt)
                    self.shard.side.off_cancel(prompt.event.response)
                    self._settle(prompt.event.response)
                if (turn := self._serial()) is not None:
                    yield from self._go_on(turn)
                elif self._waiting:
                    yield from self._begin(self._waiting[0])
                else:
                    break
            except SendFailed:
                continue
        self._running = False

    def _begin(self, prompt: Record) -> Task:
        decision = self._decide(prompt)
        if decision is None:
            return
        if "start-first" in self.without:
            decision = decision.model_copy(update={"turn": self.session.last_number + 1})
            sent = self.member.send((TURNS, self.held.partition), Record(decision, decision.response))
            asked = self._send_request(decision)
            yield from self.member.acknowledged(sent, asked)
            self.shard.requested[decision.response] = decision.dispatch
            yield from self.member.follower.reached(TURNS, self.held.partition, sent.offset)
        else:
            yield from self.log_started(decision)

    def _decide(self, prompt: Record) -> TurnStarted | None:
        event: PromptAccepted = prompt.event
        side, parent = self.shard.side, parent_of(self.session, event)
        verdict = side.verdict(event.response)
        if self.world.too_old(prompt):
            self._end_aside(prompt, "expired", failure("expired", "the prompt waited too long"))
        elif self.session.deleted:
            self._end_aside(prompt, "failed", failure("not_found", "there is no such conversation"))
        elif side.cancelled(event.response):
            self._end_aside(prompt, "cancelled", None)
        elif verdict is not None and verdict.decision == "block":
            self._end_aside(prompt, "refused", None)
        elif self.session.path(parent) is None:
            self._end_aside(prompt, "failed", failure("previous_response_not_found", "not in this conversation"))
        else:
            return self._started(event, self.world.choices.pick(POOLS), parent)
        return None

    def _started(self, event: PromptAccepted, pool: str | None, parent: str | None) -> TurnStarted:
        world = self.world
        return started(world.protocol, self.session, event, self.shard.raised(), world.now, pool=pool, parent=parent)

    def _go_on(self, turn: Turn) -> Task:
        decision = turn.started
        assert decision is not None, "the log holds the beginning of every turn"
        if decision.pool is None:
            yield from end_turn(self, decision, decision.why or "failed", decision.failure)
        elif self.world.overdue(decision):
            yield from end_turn(self, decision, "failed", failure("expired", "the answer did not come in time"))
        elif self.shard.requested.get(turn.response) != decision.dispatch:
            yield from self._opened_written(turn.response)
            if turn.response in self.world.too_large:
                yield from end_turn(self, decision, "failed", failure("request_too_large", "no broker takes it"))
                return
            yield from self.member.acknowledged(self._send_request(decision))
            self.shard.requested[turn.response] = decision.dispatch
            self.shard.side.off_cancel(turn.response)
        else:
            if self.session.deleted and not self.shard.side.cancelled(turn.response):
                event, value = events.cancel(turn.response, decision.user.int - 1)
                where = (CONTROL, self.held.partition)
                yield from self.member.acknowledged(self.member.send(where, Record(event, value=value)))
            deleted = self.session.deleted
            while (
                turn.status is None
                and turn.started is decision
                and self.session.deleted == deleted
                and not self.world.overdue(decision)
            ):
                yield
        self._settle(turn.response)

    def _send_request(self, decision: TurnStarted) -> Record:
        message = events.request(self.session, decision, self.shard.side.verdict(decision.response), self.world.now)
        return self.member.send((message.pool, self.held.partition), Record(message, message.response))

    # -- turns that end beside the running one ------------------------------------------------------------------------

    def _cancel_waiting(self, prompt: Record) -> None:
        if prompt in self._waiting and prompt.event.response not in self.session.turns:
            self._end_aside(prompt, "cancelled", None)

    def _end_aside(self, prompt: Record, kind: EndKind, why: Failure | None) -> None:
        if prompt in self._waiting:
            self._waiting.remove(prompt)
        response = prompt.event.response
        self.shard.side.off_cancel(response)
        self._aside.add(response)
        self.held.spawn(f"aside-{response}", self._finish_aside(prompt, kind, why))

    def _finish_aside(self, prompt: Record, kind: EndKind, why: Failure | None) -> Task:
        event: PromptAccepted = prompt.event
        while True:
            yield
            turn = self.session.turns.get(event.response)
            if turn is not None and turn.status is not None:
                break
            try:
                if kind != "expired":
                    yield from self._opened_written(event.response)
                turn = self.session.turns.get(event.response)
                about = turn.started if turn else None
                if about is None:
                    about = self._started(event, None, parent_of(self.session, event))
                yield from end_turn(self, about, kind, why)
            except SendFailed:
                continue
        self._aside.discard(event.response)
        self._settle(event.response)
        self.proceed()

    # -- the log ------------------------------------------------------------------------------------------------------

    def log_started(self, decision: TurnStarted) -> Task:
        """Send a TurnStarted, await its offset, fold to it: whether it stands there."""
        where = (TURNS, self.held.partition)
        while self._numbering:
            yield
        self._numbering = True
        try:
            known = self.session.turns.get(decision.response)
            number = known.number if known else self.session.last_number + 1
            decision = decision.model_copy(update={"turn": number})
            offset = yield from self.member.acknowledged(self.member.send(where, Record(decision, decision.response)))
            if "fold-to-start" in self.without:
                self.session.apply(decision)
                return True
            yield from self.member.follower.reached(*where, offset)
        finally:
            self._numbering = False
        turn = self.session.turns.get(decision.response)
        return (
            turn is not None
            and turn.status is None
            and turn.started is not None
            and turn.started.dispatch == decision.dispatch
        )

    def _settle(self, response: str) -> None:
        turn = self.session.turns.get(response)
        opening = response in self._opened and "opened-acked" not in self.without
        if turn is None or response in self._aside or opening or response not in self._prompts:
            return
        handed_over = turn.started is not None and self.shard.requested.get(response) == turn.started.dispatch
        if turn.status is not None or handed_over:
            self.held.end(self._prompts.pop(response).offset)
