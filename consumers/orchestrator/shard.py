"""One held partition of chat.prompts: its sessions as the fold of chat.turns, and the prompts that wait in them."""

from __future__ import annotations

import logging
from uuid import UUID

from consumers.orchestrator.conversation import Conversation, Prompt
from consumers.orchestrator.tools import Tools
from parley.log.dlq import dead_letter
from parley.log.group import Held
from parley.log.ranges import Record
from parley.retrying import until_done
from parley.session import Session
from parley.side_inputs import SideInputs
from parley.topics import PROMPTS, TURNS
from schemas.base import Dispatch
from schemas.prompts import PromptAccepted
from schemas.wire import REPLAY_HEADER, BadRecord, decode_turns_event, decoder, header

log = logging.getLogger(__name__)

_prompt = decoder(PromptAccepted)


class Shard:
    """Everything that the orchestrator knows of one partition, under one takeover."""

    def __init__(self, tools: Tools, held: Held) -> None:
        self.tools = tools
        self.held = held
        self.side = SideInputs(tools.follower, held.partition, tools.settings.protocol)
        self.requested: dict[str, Dispatch] = {}
        """Turns whose request this holder has had acknowledged, and under which dispatch."""
        self.live = False
        self._conversations: dict[UUID, Conversation] = {}
        self._count = 0

    def follow(self, begin: int) -> None:
        """Fold the state log from an offset on."""
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

    def conversation(self, session: UUID) -> Conversation:
        """The conversation of a session of this partition."""
        found = self._conversations.get(session)
        if found is None:
            found = self._conversations[session] = Conversation(self, Session(session))
        return found

    def accept(self, record: Record) -> None:
        """A prompt from the log. One that can't be read goes to the dead-letter queue and blocks nothing."""
        if header(record.headers, REPLAY_HEADER) is not None:
            log.warning("a replayed prompt at offset %d was refused", record.offset)
            self.held.end(record.offset)
            return
        try:
            prompt = _prompt(record.value)
        except BadRecord as error:
            self.held.spawn(self._give_up(record, error), f"dlq-{record.offset}")
            return
        self.conversation(prompt.session).accept(Prompt(prompt, record.offset, record.timestamp))

    async def _give_up(self, record: Record, error: BadRecord) -> None:
        """Nobody was told that this was accepted: an edge writes what it can read. So there is no turn to end."""
        log.error("no prompt at %s-%d offset %d: %s", record.topic, record.partition, record.offset, error)
        partitions = self.tools.settings.topics.session_partitions
        await until_done(
            lambda: dead_letter(self.tools.producer, record, group=PROMPTS, error=error, partitions=partitions)
        )
        self.held.end(record.offset)

    def _on_turns(self, record: Record) -> None:
        try:
            event = decode_turns_event(record.value)
        except BadRecord as error:
            # History gives it to the dead-letter queue; here it changes nothing.
            log.warning("no event at %s-%d offset %d: %s", record.topic, record.partition, record.offset, error)
            return
        self.conversation(event.session).apply(event)
