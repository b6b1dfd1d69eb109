"""How the orchestrator ends a turn that may run somewhere: consumers/orchestrator/ending.py, step by step."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Literal

from consumers.orchestrator.planning import ending
from parley.endings import expired, turn_ended
from parley.log.ranges import RouteGone
from parley.transcript import Transcript
from schemas.base import Failure, Usage, epoch_of
from schemas.routes import Fence, Opened, Terminal, TerminalKind
from schemas.turns import TurnStarted

from .events import LANE, TURNS
from .log import Record
from .member import Task
from .taking import take_turn

if TYPE_CHECKING:
    from .orchestrator import Conversation

EndKind = TerminalKind | Literal["expired"]


def end_turn(conversation: Conversation, about: TurnStarted, kind: EndKind, why: Failure | None) -> Task:
    """End a turn that may run somewhere, as one who takes it."""
    held, member, world = conversation.held, conversation.member, conversation.world
    where = (TURNS, held.partition)
    decision = ending(about, kind, why, conversation.shard.raised())
    if "log-end" not in conversation.without and not (yield from conversation.log_started(decision)):
        return
    turn = conversation.session.turns.get(about.response)
    decision = (turn.started if turn and "log-end" not in conversation.without else None) or decision
    ran = turn is not None and turn.dispatched
    if kind == "expired" and ran:
        kind = "failed"
    if kind == "expired":
        if "expired-off-route" in conversation.without:
            yield from take_turn(member, about.response, about.route, _fence(conversation, decision, 1))
        ended = expired(decision, decision.dispatch, at=world.now)
    else:
        try:
            fence, transcript = yield from _take_opened(conversation, decision)
        except RouteGone:  # nobody can see what was there, or what is written now
            fence = _fence(conversation, decision, 1)
            transcript = conversation.world.transcript()
            transcript.apply(fence)
        if transcript is None:
            return
        if transcript.terminal is None:
            terminal = Terminal(
                writer=fence.writer,
                seq=transcript.seq,
                kind=kind,
                failure=why,
                refusal="no" if kind == "refused" else None,
                model=decision.model,
                usage=Usage(output_tokens=transcript.tokens),
                ended_at=world.now,
            )
            if "orchestrator-fence" not in conversation.without:
                record = Record(terminal, about.response, before=tuple(transcript.deltas))
                yield from member.acknowledged(member.send(LANE, record))
                yield from held.prove()
            transcript.apply(terminal)
        ended = turn_ended(decision, transcript, world.ended_under(decision.dispatch, transcript))
    offset = yield from member.acknowledged(member.send(where, Record(ended, about.response)))
    yield from member.follower.reached(*where, offset)


def _fence(conversation: Conversation, decision: TurnStarted, run: int) -> Fence:
    epoch = epoch_of(decision.dispatch, conversation.held.takeover, run)
    return Fence(epoch=epoch, writer=str(conversation.world.fresh()))


def _take_opened(
    conversation: Conversation, decision: TurnStarted
) -> Generator[None, None, tuple[Fence, Transcript | None]]:
    """Take the turn. Nobody sees an end on a route that was never opened: then open it, and take it again."""
    member, world = conversation.member, conversation.world
    run = 0
    while True:
        run += 1
        fence = _fence(conversation, decision, run)
        if "orchestrator-fence" in conversation.without:
            alone = world.transcript()
            alone.apply(fence)
            return fence, alone
        transcript = yield from take_turn(member, decision.response, decision.route, fence)
        if transcript is None or transcript.opened is not None or "read-back" in conversation.without:
            return fence, transcript
        opened = Opened(session=decision.session, user=decision.user, created_at=decision.accepted_at, waiting=False)
        yield from member.acknowledged(member.send(LANE, Record(opened, decision.response)))
