"""One held partition of chat.prompts: its sessions as the fold of chat.turns, and the prompts that wait in them.

The fold begins where the log begins to be needed: at the watermark below which the message store has everything, or
before it (see `begin`). A session without a record from there on is not held; it is read from the store when it speaks.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from uuid import UUID

from aiokafka import TopicPartition

from consumers.orchestrator.conversation import Conversation, Prompt
from consumers.orchestrator.ending import end_on_route
from consumers.orchestrator.open_turns import OpenTurns
from consumers.orchestrator.tools import Tools
from parley.errors import failure
from parley.ids import response_address
from parley.log.dlq import dead_letter, unreadable
from parley.log.group import Held
from parley.log.ranges import Record
from parley.retrying import until_done, until_done_or_late
from parley.session import Session
from parley.side_inputs import SideInputs
from parley.topics import DLQ, TURNS
from schemas.base import Dispatch
from schemas.prompts import PromptAccepted
from schemas.routes import Opened
from schemas.turns import SessionChanged, TurnStarted
from schemas.wire import REPLAY_HEADER, BadRecord, TurnsEvent, decode_turns_event, decoder, header, route_of

log = logging.getLogger(__name__)

_prompt = decoder(PromptAccepted)


class ViewReset(Exception):
    """The message store is being built anew: what was forgotten here, or never read, may not be in it yet."""


class Shard:
    """Everything that the orchestrator knows of one partition, under one takeover."""

    def __init__(self, tools: Tools, held: Held) -> None:
        self.tools = tools
        self.held = held
        self.side = SideInputs(tools.follower, held.partition, tools.settings.protocol)
        self.requested: dict[str, Dispatch] = {}
        """Turns whose request this holder has had acknowledged, and under which dispatch."""
        self.open_turns = OpenTurns()
        self.live = False
        self._conversations: OrderedDict[UUID, Conversation] = OrderedDict()
        """The one that nothing has happened in for longest comes first."""
        self._since = 0
        """Every event that was appended at this time (ms) or later was folded."""
        self._stored = 0
        """The message store must have everything below this offset, or the fold and the store have a gap."""
        self._count = 0

    def follow(self, begin: int, since: int) -> None:
        """Fold the state log from an offset on, which is before every event appended at `since` (ms) or later."""
        self._stored, self._since = begin, since
        if not self.held.lost:
            self.tools.follower.follow(TURNS, self.held.partition, begin, self._on_turns)

    def go_on(self) -> None:
        """The fold has come to the end of what was there when the partition was taken: work may begin."""
        self.live = True
        for conversation in list(self._conversations.values()):
            conversation.proceed()

    def close(self) -> None:
        """The partition is gone; what ran for it has been cancelled."""
        self.side.stop()
        self.tools.follower.unfollow(TURNS, self.held.partition)

    def raised(self) -> Dispatch:
        """A dispatch greater than all before it in this partition."""
        self._count += 1
        return (self.held.takeover, self._count)

    @property
    def sessions(self) -> int:
        """How many are held."""
        return len(self._conversations)

    def conversation(self, session: UUID) -> Conversation:
        """The conversation of a session of this partition."""
        found = self._conversations.get(session)
        if found is None:
            found = self._conversations[session] = Conversation(self, Session(session))
        else:
            self._conversations.move_to_end(session)
        return found

    def begins(self, event: TurnsEvent) -> bool:
        """Nothing of the event's session is in the log before what was folded.

        A first turn alone does not tell: a TurnStarted that counted as failed may land when its turn has long ended.
        But no event of a session is older than the prompt that began it. Edges' clocks may be off by the margin.
        """
        if isinstance(event, SessionChanged):
            return event.opened
        if self.live or not isinstance(event, TurnStarted) or event.turn != 1:
            return False
        return event.accepted_at >= self._since + int(self.tools.settings.protocol.margin_s * 1000)

    async def catch_up(self) -> None:
        """Fold what is in the state log by now.

        Raises:
            ParleyError: log_unavailable.
        """
        where = TopicPartition(TURNS, self.held.partition)
        _, end = (await self.tools.follower.bounds([where]))[where]
        await self.tools.follower.reached(TURNS, self.held.partition, end - 1)

    def forget(self, watermark: int, size: int) -> None:
        """Let go of sessions that have been idle longest until the others take at most `size` bytes.

        Raises:
            ViewReset: the watermark has gone back.
        """
        if watermark < self._stored:
            raise ViewReset(f"history has gone back to {watermark} in {TURNS}-{self.held.partition}")
        over = sum(each.size + each.past.size for each in self._conversations.values()) - size
        for session, conversation in list(self._conversations.items()):
            if over <= 0:
                break
            if conversation.idle and conversation.newest < watermark:
                over -= conversation.size + conversation.past.size
                self._stored = max(self._stored, conversation.newest + 1)
                for response in conversation.session.turns:
                    self.requested.pop(response, None)
                del self._conversations[session]

    def accept(self, record: Record) -> None:
        """A prompt from the log.

        Raises:
            BadRecord: it can't be read.
        """
        if header(record.headers, REPLAY_HEADER) is not None:
            log.warning("a replayed prompt at offset %d was refused", record.offset)
            self.held.end(record.offset)
            return
        prompt = _prompt(record.value)
        self.conversation(prompt.session).accept(Prompt(prompt, record.offset, record.timestamp))

    async def give_up(self, record: Record, error: BadRecord) -> None:
        """A prompt that can't be read: its turn, which somebody may have been told of, is ended on its route alone."""
        log.error("no prompt at %s-%d offset %d: %s", record.topic, record.partition, record.offset, error)
        # A route that there never was would hold up all prompts after it.
        late_ms = record.timestamp + int(self.tools.settings.protocol.max_turn_age_s * 1000)
        await until_done_or_late(lambda: self._end_unread(record), f"the end of prompt {record.offset}", late_ms)
        partitions = self.tools.settings.topics.topics[DLQ].partitions
        await until_done(
            lambda: dead_letter(self.tools.producer, record, group=self.held.group, error=error, partitions=partitions)
        )
        self.held.end(record.offset)

    async def _end_unread(self, record: Record) -> None:
        session, user = header(record.headers, "session"), header(record.headers, "user")
        place = route_of(record.headers)
        if place is None or session is None or user is None:
            return  # no edge wrote this
        response, route = place
        try:
            opened = Opened(
                session=UUID(session),
                user=UUID(user),
                created_at=response_address(response).accepted_ms,
                waiting=False,
            )
        except ValueError:
            return  # nor this
        await self.tools.say(response, route, opened)
        model = ""  # nobody can read which one was asked for
        why = failure("unprocessable", "this turn can't be processed: try again")
        await end_on_route(self, response, route, model, "failed", why)

    def _on_turns(self, record: Record) -> None:
        self._since = min(self._since, record.timestamp)
        try:
            event = decode_turns_event(record.value)
        except BadRecord as error:
            unreadable(record, error)  # history gives it to the dead-letter queue; here it changes nothing
            return
        void = self.conversation(event.session).apply(event, record.offset, len(record.value or b""))
        self.open_turns.fold(event, void, record.offset)
        self.held.floor = self.open_turns.floor
