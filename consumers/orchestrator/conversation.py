"""One session at work: its turns one after the other, each from prompt to request, and to its end.

protocol.md, section 2. Nothing goes out under a dispatch before its TurnStarted is in the log and stands there: then
the request, or a fence of the orchestrator's own. A prompt is done with when its Opened, TurnStarted and
InferenceRequest are acknowledged, or its turn has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Literal

from consumers.orchestrator.cold import Past
from consumers.orchestrator.ending import end_lost, end_on_route, end_turn
from consumers.orchestrator.planning import parent_of, plan, request, started
from parley.clock import now_ms
from parley.errors import ParleyError, failure
from parley.log.producer import TopicUnknown
from parley.log.ranges import RouteGone
from parley.log.taking import is_lost, read_route
from parley.retrying import pause_s, until_done
from parley.session import Session, Turn, Void
from parley.topics import TURNS
from schemas.base import Failure
from schemas.prompts import PromptAccepted
from schemas.routes import Opened, TerminalKind
from schemas.turns import SessionDeleted, TurnEnded, TurnStarted
from schemas.wire import TurnsEvent

if TYPE_CHECKING:
    from consumers.orchestrator.shard import Shard

log = logging.getLogger(__name__)

EndKind = Literal["refused", "cancelled", "failed", "expired"]
OVERDUE_CHECK_S = 5.0
"""How often a running turn is checked for being overdue."""


@dataclass(frozen=True, slots=True, eq=False)
class Prompt:
    """A prompt that this holder has taken and is not done with."""

    event: PromptAccepted
    offset: int
    appended: int
    """The log's time of it, in ms."""
    seen: int = field(default_factory=now_ms)
    """When it came here, in ms."""

    @property
    def response(self) -> str:
        """The turn's name."""
        return self.event.response


class Conversation:
    """A session: the fold of what happened, the prompts that wait, and the task that works them off."""

    def __init__(self, shard: Shard, session: Session) -> None:
        self.shard = shard
        self.session = session
        self.past = Past(shard, session)
        self.newest = -1
        """Offset of the newest event of the session in the state log, as far as this holder has folded it."""
        self.size = 0
        """Bytes of the events that were folded."""
        self._arriving: deque[Prompt] = deque()
        """Prompts that can't be judged before the session's past is known, and those behind them."""
        self._waiting: deque[Prompt] = deque()
        self._prompts: dict[str, Prompt] = {}
        """Prompts that are not done with, by response."""
        self._opened: dict[str, asyncio.Task[None]] = {}
        self._aside: set[str] = set()
        """Turns that are being ended beside the running one: busy, cancelled while waiting, deleted, refused."""
        self._numbering = asyncio.Lock()
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    # -- what comes in ------------------------------------------------------------------------------------------------

    def apply(self, event: TurnsEvent, offset: int, size: int) -> Void | None:
        """An event of the state log, with its place and its size in bytes. None: it counts; else why it is void."""
        self.newest = offset
        self.size += size
        self.past.known = self.past.known or self.shard.begins(event)
        void = self.session.apply(event)
        self._changed.set()
        if isinstance(event, TurnEnded):
            self._settle(event.response)  # whoever sees to the turn may just be waiting to try again
        if self.session.deleted and isinstance(event, SessionDeleted):
            while self._waiting:
                self._end_aside(self._waiting[0], "failed", failure("not_found", "the conversation was deleted"))
        if self.shard.live:
            self.proceed()
        return void

    @property
    def idle(self) -> bool:
        """Nothing is going on: what is known of the session may be forgotten."""
        busy = self._arriving or self._prompts or self._opened or self._aside or self.session.open_turns()
        return not busy and (self._task is None or self._task.done())

    def accept(self, prompt: Prompt) -> None:
        """A prompt of this session. Those with a key are judged one after the other."""
        event = prompt.event
        if prompt.response in self._prompts or any(other.response == prompt.response for other in self._arriving):
            log.warning("the prompt at offset %d is in the log twice: the first one counts", prompt.offset)
            self.shard.held.end(prompt.offset)
            return
        # The session of a key is the same for all who send that key: only without one it is surely new. All that
        # has happened since a prompt came was folded, so a session that it began is known.
        self.past.known = self.past.known or (event.new_session and event.key_hash is None)
        self.past.may_be_empty = self.past.may_be_empty or event.new_session
        if event.key_hash is None and not self._arriving:
            self._admit(prompt)
            return
        self._arriving.append(prompt)
        if len(self._arriving) == 1:
            self.shard.held.spawn(self._arrive(), f"arrivals-{self.session.id}")

    async def _arrive(self) -> None:
        """In the order of the log; those with a key as soon as it can be judged.

        That takes the session's past, or the start deadline without it. And the first Opened decides: had a holder
        before this one answered the prompt as a duplicate of a turn that has failed since, it would run unseen.
        """
        while self._arriving:
            prompt = self._arriving[0]
            unknown: ParleyError | None = None
            first: Opened | None = None
            if prompt.event.key_hash is not None:
                try:
                    await self.past.learn_for(prompt.response)
                except ParleyError as error:
                    unknown = error
                if self._age_ms(prompt) <= self._readable_ms:
                    first = await self._first_opened(prompt)
            self._admit(prompt, unknown, first)
            self._arriving.popleft()
        self.proceed()

    def _admit(self, prompt: Prompt, unknown: ParleyError | None = None, first: Opened | None = None) -> None:
        """`first`: the Opened that stands on the prompt's route, if that is known."""
        response = prompt.response
        turn = self.session.turns.get(response)
        opened = first or self._opened_as(prompt)
        age_ms = self._age_ms(prompt)
        late = age_ms > self.shard.tools.settings.protocol.max_turn_age_s * 1000
        # What comes too late never ran and has no route; unless it did run, and its Opened may have been lost.
        seen = not late or (turn is not None and turn.dispatched and age_ms <= self._readable_ms)
        if seen and first is None:
            self._opened[response] = self.shard.held.spawn(self._open(prompt.event, opened), "opened")
        if opened.duplicate_of is not None or (late and turn is not None and turn.status is not None):
            self.past.done(response)
            self.shard.held.spawn(self._let_go(prompt), "done")
            return
        self._prompts[response] = prompt
        if turn is not None:
            self._settle(response)  # an earlier holder began it
        elif late:
            self._expire(prompt)
        elif unknown is not None:
            self._end_aside(prompt, "failed", unknown.failure())
        elif len(self._waiting) >= self.shard.tools.settings.protocol.waiting_turns:
            busy = failure(
                "conversation_busy", "too many turns wait in this conversation: try again when one has ended"
            )
            self._end_aside(prompt, "failed", busy)
        else:
            self._waiting.append(prompt)
            self.shard.side.on_cancel(response, lambda: self._cancel_waiting(prompt))
        self.proceed()

    def _opened_as(self, prompt: Prompt) -> Opened:
        event = prompt.event
        duplicate, conflict = self._duplicate(prompt)
        turn = self.session.turns.get(prompt.response)
        return Opened(
            session=event.session,
            user=event.user,
            created_at=event.accepted_at,
            waiting=turn is None and (bool(self._waiting) or self._serial() is not None) and duplicate is None,
            duplicate_of=duplicate,
            conflict=conflict,
            echo=event.echo,
        )

    async def _first_opened(self, prompt: Prompt) -> Opened:
        """Write Opened; the one that counts, which may be an earlier holder's."""
        tools, event, opened = self.shard.tools, prompt.event, self._opened_as(prompt)

        async def written_and_read() -> Opened:
            offset = await self._say_opened(event, opened)
            if offset is None:
                return opened
            transcript = await read_route(tools.ranges, event.response, event.route, offset)
            return transcript.opened or opened

        try:
            return await until_done(written_and_read)
        except RouteGone:
            return opened  # nobody reads it any more

    @property
    def _readable_ms(self) -> float:
        """As long after a prompt somebody may still read its route."""
        protocol = self.shard.tools.settings.protocol
        return (protocol.resume_window_s + protocol.max_turn_age_s) * 1000

    @staticmethod
    def _age_ms(prompt: Prompt) -> int:
        return now_ms() - prompt.appended

    def proceed(self) -> None:
        """Work off what is to be done, if nobody does."""
        if self._task is not None and not self._task.done():
            self._changed.set()
        elif self._waiting or self._serial() is not None:
            self._task = self.shard.held.spawn(self._run(), f"session-{self.session.id}")

    def _duplicate(self, prompt: Prompt) -> tuple[str | None, bool]:
        """(the response that an idempotency key already stands for, whether the body differs)."""
        event = prompt.event
        if event.key_hash is None:
            return None, False
        since = prompt.appended - int(self.shard.tools.settings.protocol.key_life_s * 1000)
        for other in self._prompts.values():
            if other.event.key_hash == event.key_hash and other.response != event.response and other.appended >= since:
                return other.response, other.event.body_hash != event.body_hash
        turn = self.session.keyed(event.key_hash, since)
        if turn is None or turn.response == event.response:
            return None, False
        return turn.response, turn.body_hash != event.body_hash

    async def _open(self, event: PromptAccepted, opened: Opened) -> None:
        """Write Opened to the route, again until it is acknowledged: the first one counts."""
        await until_done(lambda: self._say_opened(event, opened))
        self._opened.pop(event.response, None)
        self._settle(event.response)

    async def _say_opened(self, event: PromptAccepted, opened: Opened) -> int | None:
        """Where it stands on the route; None: the route's topic was deleted, and nobody reads it any more.

        Raises:
            ParleyError: log_unavailable: it may land later.
        """
        try:
            return await self.shard.tools.say(event.response, event.route, opened)
        except TopicUnknown:
            tools = self.shard.tools
            if not await is_lost(tools.ranges, event.route, event.accepted_at, tools.settings.protocol):
                raise  # it may appear yet
            return None

    async def _let_go(self, prompt: Prompt) -> None:
        await self._opened_written(prompt.response)
        self.shard.held.end(prompt.offset)

    async def _opened_written(self, response: str) -> None:
        if (task := self._opened.get(response)) is not None:
            await asyncio.shield(task)

    # -- turns in their order -----------------------------------------------------------------------------------------

    def _serial(self) -> Turn | None:
        """The started turn whose end the next one waits for."""
        return next((turn for turn in self.session.open_turns() if turn.response not in self._aside), None)

    async def _run(self) -> None:
        attempt = 0
        while True:
            try:
                for prompt in [p for p in self._waiting if p.response in self.session.turns]:
                    # Its TurnStarted had counted as failed and is in the log, or the store has the turn.
                    self._waiting.remove(prompt)
                    self.shard.side.off_cancel(prompt.response)
                    self._settle(prompt.response)
                if (turn := self._serial()) is not None:
                    await self._go_on(turn)
                elif self._waiting:
                    await self._begin(self._waiting[0])
                else:
                    return
                attempt = 0
            except ParleyError as error:
                log.warning("session %s waits: %s", self.session.id, error)
                await asyncio.sleep(pause_s(attempt))
                attempt += 1

    async def _begin(self, prompt: Prompt) -> None:
        """A prompt's turn has come."""
        try:
            await self.past.learn_for(prompt.response, prompt.event.parent)
        except ParleyError as error:
            if prompt in self._waiting:
                self._end_aside(prompt, "failed", error.failure())
            return
        if prompt not in self._waiting or prompt.response in self.session.turns or self._serial() is not None:
            return
        if self._is_being_ended(parent_of(self.session, prompt.event)):
            # Beside. What of it belongs to the conversation, and to this prompt's memory, is known when it has ended.
            await self._until_news()
            return
        try:
            decision = self._decide(prompt)
        except ParleyError as error:
            if error.kind.retryable and error.kind.code != "overloaded":
                raise
            self._end_aside(prompt, "failed", error.failure())  # a drained pool is for the user to wait for
            return
        if decision is not None:
            await self.log_started(decision)  # the loop goes on with the turn as the log has it

    def _decide(self, prompt: Prompt) -> TurnStarted | None:
        """The decision to run a prompt, or None: the turn is being ended.

        Raises:
            ParleyError: it can't be run.
        """
        protocol, side = self.shard.tools.settings.protocol, self.shard.side
        verdict = side.verdict(prompt.response)
        if self._age_ms(prompt) > protocol.max_turn_age_s * 1000:
            self._expire(prompt)
        elif self.session.deleted or self.session.user not in (None, prompt.event.user):
            raise ParleyError("not_found", "there is no such conversation")
        elif side.cancelled(prompt.response):
            self._end_aside(prompt, "cancelled", None)
        elif verdict is not None and verdict.decision == "block":
            self._end_aside(prompt, "refused", None)
        else:
            tools = self.shard.tools
            drained = tools.drains.pools
            return plan(tools.settings, self.session, prompt.event, self.shard.raised(), now_ms(), drained)
        return None

    async def _go_on(self, turn: Turn) -> None:
        """A started turn without an end: its request is sent if this holder has not, or its end is written."""
        decision = turn.started
        if decision is None:
            await end_lost(self, turn)
        elif decision.pool is None:
            await self._finish(decision, turn, decision.why or "failed", decision.failure)
        elif now_ms() > decision.deadline + self.shard.tools.settings.protocol.max_turn_age_s * 1000:
            await self._finish(decision, turn, "failed", failure("expired", "the answer did not come in time"))
        elif self.shard.requested.get(turn.response) != decision.dispatch:
            await self._resume(decision, turn)
        else:
            if self.session.deleted and not self.shard.side.cancelled(turn.response):
                await self.shard.tools.cancel(decision, self.shard.held.partition)
            await self._until_changed(turn)
        self._settle(turn.response)

    async def _finish(
        self, decision: TurnStarted, turn: Turn, kind: TerminalKind | Literal["expired"], why: Failure | None
    ) -> None:
        """End a turn, if it is open indeed: the fold may have begun after its end. The store is not waited for."""
        with contextlib.suppress(ParleyError):
            await self.past.learn()
        if turn.status is None and turn.started is decision:
            await end_turn(self, decision, kind, why)

    async def _resume(self, decision: TurnStarted, turn: Turn) -> None:
        """Hand a turn over, if it is open indeed: the fold may have begun after its end.

        While the store is away only those who had the request can go on. A prompt that is not done with may have had
        none: it ends at its deadline.
        """
        try:
            await self.past.learn(decision.parent)
        except ParleyError as error:
            if turn.response not in self._prompts or now_ms() < decision.deadline:
                raise
            await end_turn(self, decision, "failed", error.failure())
            return
        if turn.status is None and turn.started is decision:
            await self._hand_over(decision, turn)

    async def _hand_over(self, decision: TurnStarted, turn: Turn) -> None:
        verdict = self.shard.side.verdict(turn.response)
        try:
            await self._opened_written(turn.response)  # a writer that finds the route knows whether the turn waited
            seen = prompt.seen if (prompt := self._prompts.get(turn.response)) is not None else None
            message = request(self.shard.tools.settings, self.session, decision, verdict, now_ms(), seen)
            place = self.shard.open_turns.place(turn.response)
            await self.shard.tools.dispatch(message, self.shard.held.partition, place)
        except ParleyError as error:
            if error.kind.retryable:
                raise
            await end_turn(self, decision, "failed", error.failure())
        else:
            if self.shard.side.cancelled(turn.response):
                # While the request could not be sent: who takes it over later may not read the log from so far back.
                await self.shard.tools.cancel(decision, self.shard.held.partition)
            self.shard.requested[turn.response] = decision.dispatch
            self.shard.side.off_cancel(turn.response)  # from here on a cancel is the worker's

    def _is_being_ended(self, response: str | None) -> bool:
        turn = self.session.turns.get(response or "")
        return response in self._aside if turn is None else turn.status is None

    async def _until_news(self) -> None:
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(OVERDUE_CHECK_S):
                await self._changed.wait()

    async def _until_changed(self, turn: Turn) -> None:
        """Until the turn has ended or stands otherwise, or it is time to look whether it is overdue."""
        decision, deleted = turn.started, self.session.deleted
        while turn.status is None and turn.started is decision and self.session.deleted == deleted:
            self._changed.clear()
            try:
                async with asyncio.timeout(OVERDUE_CHECK_S):
                    await self._changed.wait()
            except TimeoutError:
                return

    # -- turns that end beside the running one --------------------------------------------------------------------

    def _cancel_waiting(self, prompt: Prompt) -> None:
        if prompt in self._waiting and prompt.response not in self.session.turns:
            self._end_aside(prompt, "cancelled", None)

    def _expire(self, prompt: Prompt) -> None:
        self._end_aside(prompt, "expired", failure("expired", "the prompt waited too long to be answered"))

    def _end_aside(self, prompt: Prompt, kind: EndKind, why: Failure | None) -> None:
        if prompt in self._waiting:
            self._waiting.remove(prompt)
        self.shard.side.off_cancel(prompt.response)
        self._aside.add(prompt.response)
        self.shard.held.spawn(self._finish_aside(prompt, kind, why), f"aside-{kind}")

    async def _finish_aside(self, prompt: Prompt, kind: EndKind, why: Failure | None) -> None:
        for attempt in count():
            turn = self.session.turns.get(prompt.response)
            if turn is not None and turn.status is not None:
                break
            if attempt:
                await asyncio.sleep(pause_s(attempt - 1))
            try:
                if kind != "expired":
                    await self._opened_written(prompt.response)
                if not await self._has_a_place(prompt):
                    await self._end_without_place(prompt, kind, why)
                    break
                turn = self.session.turns.get(prompt.response)  # an earlier holder's decision may have landed since
                about = (turn.started if turn else None) or self._undispatched(prompt.event)
                await end_turn(self, about, kind, why)
            except ParleyError as error:
                log.warning("a turn has not ended yet: %s", error)
        self._aside.discard(prompt.response)
        self._settle(prompt.response)
        self.proceed()

    async def _has_a_place(self, prompt: Prompt) -> bool:
        """The session's log can hold the turn: it is its user's, and the turns before it are known."""
        try:
            await self.past.learn_for(prompt.response)
        except ParleyError:
            return False
        return self.session.user in (None, prompt.event.user)

    async def _end_without_place(self, prompt: Prompt, kind: EndKind, why: Failure | None) -> None:
        event = prompt.event
        ends: TerminalKind = "cancelled" if kind == "cancelled" else "failed"
        if self._age_ms(prompt) <= self._readable_ms:  # else nobody is there to be told
            if kind == "expired":  # too late to be opened before it was known that it can end nowhere else
                await self.shard.tools.say(event.response, event.route, self._opened_as(prompt))
            why = why or failure("store_unavailable", "the conversation can't be read: try again")
            await end_on_route(self.shard, event.response, event.route, event.model, ends, why)
        self._done(prompt.response)

    def _undispatched(self, event: PromptAccepted) -> TurnStarted:
        protocol = self.shard.tools.settings.protocol
        parent = parent_of(self.session, event)
        return started(protocol, self.session, event, self.shard.raised(), now_ms(), pool=None, parent=parent)

    # -- the log ------------------------------------------------------------------------------------------------------

    async def log_started(self, decision: TurnStarted) -> bool:
        """Send a TurnStarted, await its offset, fold to it: whether it stands there.

        One at a time in a session, so that turn numbers have no holes.

        Raises:
            ParleyError: log_unavailable: it may land later; a greater dispatch voids it.
        """
        partition = self.shard.held.partition
        async with self._numbering:
            known = self.session.turns.get(decision.response)
            number = known.number if known else self.session.last_number + 1
            decision = decision.model_copy(update={"turn": number})
            offset = await self.shard.tools.log_turn(decision, partition)
            await self.shard.tools.follower.reached(TURNS, partition, offset)
        turn = self.session.turns.get(decision.response)
        return (
            turn is not None
            and turn.status is None
            and turn.started is not None
            and turn.started.dispatch == decision.dispatch
        )

    def _settle(self, response: str) -> None:
        """Be done with a turn's prompt when it is in other hands or has ended."""
        turn = self.session.turns.get(response)
        if turn is None or response in self._aside or response in self._opened or response not in self._prompts:
            return
        handed_over = turn.started is not None and self.shard.requested.get(response) == turn.started.dispatch
        if turn.status is not None or handed_over:
            self._done(response)

    def _done(self, response: str) -> None:
        self.past.done(response)
        self.shard.held.end(self._prompts.pop(response).offset)
