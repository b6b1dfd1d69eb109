"""The end of a turn whose request can't be read.

The headers say which turn it is, where its route is, under which dispatch it came, and where its TurnStarted stands:
that says all that the end has to say. So the turn is taken and ended as any other, at once, and the session's next turn
begins. A TurnStarted that can't be read either, or a request without these headers, leaves the end to the orchestrator,
who answers for it once the turn is too old.
"""

from __future__ import annotations

import secrets

from inference_workers.pen import Pen
from inference_workers.tools import Tools
from parley import stages
from parley.clock import now_ms
from parley.endings import turn_ended
from parley.errors import failure
from parley.log.group import Held
from parley.log.ranges import Record, RouteGone
from parley.log.taking import take_turn
from parley.topics import TURNS
from schemas.base import Dispatch, Timings, epoch_of
from schemas.routes import Fence, Terminal
from schemas.turns import TurnStarted
from schemas.wire import STARTED_HEADER, BadRecord, decoder, header, turn_of

_started = decoder(TurnStarted)


async def end_unread(tools: Tools, held: Held, record: Record, run: int) -> None:
    """End the turn of an unreadable request, as far as its headers tell which. `run` counts the attempts, from 1.

    Raises:
        ParleyError: log_unavailable: again, with a greater epoch.
    """
    if (turn := turn_of(record.headers)) is None:
        return
    response, route, dispatch = turn
    fence = Fence(epoch=epoch_of(dispatch, held.takeover, run), writer=secrets.token_hex(4))
    try:
        transcript = await take_turn(tools.tokens, tools.ranges, response, route, fence)
    except RouteGone:
        return  # nobody reads it any more
    if transcript is None:
        return  # somebody greater has the turn
    if transcript.terminal is None:
        terminal = Terminal(
            writer=fence.writer,
            seq=transcript.seq,
            kind="failed",
            failure=failure("unprocessable", "this turn can't be processed: try again"),
            model=tools.pool.model,
            ended_at=now_ms(),
        )
        await Pen(tools.tokens, response, route, transcript).end(terminal)
        await held.prove()
    if (started := await _decision(tools, held, record, response, dispatch)) is not None:
        timings = Timings(accepted=started.accepted_at, ended=now_ms())
        ended = turn_ended(started, transcript, dispatch, timings=timings)
        await tools.log_end(ended, held.partition)
        stages.observe(ended)


async def _decision(tools: Tools, held: Held, record: Record, response: str, dispatch: Dispatch) -> TurnStarted | None:
    """The TurnStarted whose request it was."""
    offset = header(record.headers, STARTED_HEADER) or ""
    if not offset.isdecimal():
        return None
    try:
        found = await tools.ranges.read(TURNS, held.partition, int(offset), int(offset))
        started = _started(found[0].value) if found else None
    except (RouteGone, BadRecord):
        return None
    return started if started is not None and (started.response, started.dispatch) == (response, dispatch) else None
