"""How the orchestrator ends a turn that may run somewhere: as one who takes it (protocol.md, section 2)."""

from __future__ import annotations

import logging
import secrets
from itertools import count
from typing import TYPE_CHECKING, Literal

from consumers.orchestrator.planning import ending
from parley import stages
from parley.clock import now_ms
from parley.endings import expired, lost, turn_ended
from parley.errors import ParleyError
from parley.log.producer import TopicUnknown
from parley.log.ranges import RouteGone
from parley.log.taking import is_lost, take_turn
from parley.session import Turn
from parley.topics import TURNS
from parley.transcript import Transcript
from schemas.base import Failure, Route, Timings, Usage, epoch_of
from schemas.routes import Fence, Opened, Terminal, TerminalKind
from schemas.turns import TurnStarted

if TYPE_CHECKING:
    from consumers.orchestrator.conversation import Conversation
    from consumers.orchestrator.shard import Shard

log = logging.getLogger(__name__)

FAILURES = ("overloaded", "expired", "store_unavailable", "store_inconsistent", "log_unavailable")
"""What an orchestrator ends turns with that is no fault of the caller's."""


async def end_turn(
    conversation: Conversation,
    about: TurnStarted,
    kind: TerminalKind | Literal["expired"],
    failure: Failure | None,
) -> None:
    """Write the turn's end, or return without it when somebody greater has the turn: the caller looks again.

    `about` is the standing TurnStarted, or what one would say of a turn that has none.

    Raises:
        ParleyError: log_unavailable: try again, which raises the dispatch.
    """
    shard = conversation.shard
    tools, held = shard.tools, shard.held
    started = ending(about, kind, failure, shard.raised())
    if not await conversation.log_started(started):
        return
    turn = conversation.session.turns[started.response]
    started = turn.started or started  # with the number that it got
    if kind == "expired" and turn.dispatched:  # asked now: a predecessor's TurnStarted may have landed before this one
        kind = "failed"
    if kind == "expired":
        ended = expired(started, started.dispatch, at=now_ms())
    else:
        seen = True
        try:
            fence, transcript = await _take_opened(shard, started)
        except (RouteGone, TopicUnknown) as error:
            if not await is_lost(tools.ranges, started.route, started.accepted_at, tools.settings.protocol):
                raise ParleyError("log_unavailable", str(error)) from error
            # Nobody can see what was there, or what is written now. Was there an end that this fold began too late to
            # see, the store has it.
            seen = False
            await conversation.past.learn()
            if turn.status is not None:
                return
            fence = _fence(shard, started, 1)
            transcript = Transcript(fence=fence)
        if transcript is None:
            return
        if transcript.terminal is None:
            terminal = Terminal(
                writer=fence.writer,
                seq=transcript.seq,
                kind=kind,
                failure=failure,
                refusal=tools.policy.refusal.input if kind == "refused" else None,
                model=started.model,
                usage=_released(started, transcript),
                ended_at=now_ms(),
            )
            if seen:
                await tools.say(started.response, started.route, terminal)
            transcript.apply(terminal)
            await held.prove(urgent=True)
        ended = turn_ended(
            started,
            transcript,
            started.dispatch,
            timings=Timings(accepted=started.accepted_at, ended=now_ms()),
        )
    offset = await tools.log_turn(ended, held.partition)
    stages.observe(ended)
    await tools.follower.reached(TURNS, held.partition, offset)


async def end_lost(conversation: Conversation, turn: Turn) -> None:
    """End a turn that the store has begun and the log does not know: its log was lost, and its route with it.

    The state log alone is told, under a dispatch above the lost one. That may be greater than any that this log sees
    for long, so nothing but an end is ever written under it.

    Raises:
        ParleyError: log_unavailable, store_unavailable; store_inconsistent: the store knows its end by now.
    """
    shard = conversation.shard
    await shard.catch_up()  # what is in the store was in its log before: were it this log, the turn would be folded now
    if turn.started is not None or turn.status is not None:
        return
    stored = await (await shard.tools.store.get()).turn_of(conversation.session.id, turn.response)
    if stored is None or stored.status is not None:
        raise ParleyError("store_inconsistent", f"turn {turn.number} of the session has changed in the store")
    await shard.held.prove(urgent=True)
    ended = lost(stored, shard.held.takeover, at=now_ms())
    log.error("turn %d of session %s is in the store alone: it is ended", turn.number, conversation.session.id)
    offset = await shard.tools.log_turn(ended, shard.held.partition)
    stages.observe(ended)
    await shard.tools.follower.reached(TURNS, shard.held.partition, offset)


async def _take_opened(shard: Shard, started: TurnStarted) -> tuple[Fence, Transcript | None]:
    """Take the turn. An end is seen by nobody on a route that was never opened: then open it, and take it again."""
    tools = shard.tools
    for run in count(1):
        fence = _fence(shard, started, run)
        transcript = await take_turn(tools.producer, tools.ranges, started.response, started.route, fence)
        if transcript is None or transcript.opened is not None:
            break
        opened = Opened(
            session=started.session,
            user=started.user,
            created_at=started.accepted_at,
            waiting=False,
            echo=started.echo,
        )
        await tools.say(started.response, started.route, opened)
    return fence, transcript


def _fence(shard: Shard, started: TurnStarted, run: int) -> Fence:
    return Fence(epoch=epoch_of(started.dispatch, shard.held.takeover, run), writer=secrets.token_hex(4))


def _released(started: TurnStarted, transcript: Transcript) -> Usage:
    """What an answer that broke off has cost: the text that was shown is counted like any other."""
    if not transcript.deltas:
        return Usage()
    tokens = transcript.tokens
    return Usage(input_tokens=started.prompt_tokens, output_tokens=tokens, generated_tokens=tokens)


async def end_on_route(
    shard: Shard, response: str, route: Route, model: str, kind: TerminalKind, failure: Failure
) -> None:
    """End a turn that can have no place in the session's log: on its route alone.

    It is in somebody else's session, or its number is not known since the store is down. Should a later holder begin
    it after all, its worker finds the terminal and repeats it.

    Raises:
        ParleyError: log_unavailable.
    """
    fence = Fence(epoch=epoch_of(shard.raised(), shard.held.takeover, 1), writer=secrets.token_hex(4))
    try:
        transcript = await take_turn(shard.tools.producer, shard.tools.ranges, response, route, fence)
    except RouteGone:
        return  # nobody reads it any more
    if transcript is not None and transcript.terminal is None:
        terminal = Terminal(
            writer=fence.writer, seq=transcript.seq, kind=kind, failure=failure, model=model, ended_at=now_ms()
        )
        await shard.tools.say(response, route, terminal)
