"""The end of a turn as chat.turns keeps it, made from what the route says."""

from __future__ import annotations

from typing import Any

from parley import __version__
from parley.errors import failure
from parley.ids import message_id
from parley.stores.stored import StoredTurn
from parley.transcript import Transcript
from schemas.base import NO_EPOCH, Dispatch, Item, Part, Refusal, Text, Timings, epoch_of
from schemas.prompts import InferenceRequest
from schemas.routes import Terminal
from schemas.turns import TurnEnded, TurnStarted


def output_of(item_id: str, text: str, terminal: Terminal) -> tuple[Item, ...]:
    """The answer's items: one message with what was released and, if there is one, the refusal; none before any."""
    parts: list[Part] = []
    if text:
        parts.append(Text(text=text))
    if terminal.refusal is not None:
        parts.append(Refusal(refusal=terminal.refusal))
    if not parts:
        return ()
    whole = terminal.kind in ("completed", "refused")
    return (Item(id=item_id, role="assistant", status="completed" if whole else "incomplete", parts=tuple(parts)),)


def turn_ended(
    of: TurnStarted | InferenceRequest, transcript: Transcript, dispatch: Dispatch, **more: Any
) -> TurnEnded:
    """The end that a route's fold gives, said under `dispatch`. `more`: fields that only its writer knows.

    It has the terminal's time, not that of its own writing: whoever repeats an end says the same, and a stored answer
    replays with the events that were shown.
    """
    terminal, fence = transcript.terminal, transcript.fence
    assert terminal is not None
    assert fence is not None
    return TurnEnded(
        **_about(of),
        dispatch=dispatch,
        epoch=fence.epoch,
        status=terminal.kind,
        reason=terminal.reason,
        failure=terminal.failure,
        output=output_of(output_id(of), transcript.text, terminal),
        delta_lengths=tuple(map(len, transcript.deltas)),
        waited=transcript.opened is not None and transcript.opened.waiting,
        usage=terminal.usage,
        dropped_turns=terminal.dropped_turns,
        continued_at=tuple(transcript.joins),
        ended_at=terminal.ended_at,
        **more,
    )


def expired(of: TurnStarted, dispatch: Dispatch, *, at: int) -> TurnEnded:
    """The end of a turn that was too old to be started and never ran: it has no terminal on any route."""
    return TurnEnded(
        **_about(of),
        dispatch=dispatch,
        epoch=NO_EPOCH,
        status="expired",
        failure=of.failure,
        output=(),
        timings=Timings(accepted=of.accepted_at, ended=at),
        ended_at=at,
    )


def lost(of: StoredTurn, takeover: int, *, at: int) -> TurnEnded:
    """The end of a turn whose log was lost with its text, said by the holder with this takeover.

    Takeovers count from 1 again in a new log: the dispatch is above the one that the store has.
    """
    dispatch = (max(takeover, of.dispatch[0] + 1), 0)
    return TurnEnded(
        response=of.response,
        session=of.session,
        user=of.user,
        tier=of.tier,
        turn=of.turn,
        parent=of.parent,
        model=of.model,
        pool=of.pool,
        accepted_at=of.accepted_at,
        listed=of.listed,
        store=of.kept,
        code=__version__,
        dispatch=dispatch,
        epoch=epoch_of(dispatch, takeover, 1),
        status="failed",
        failure=failure("log_unavailable", "the answer was lost: ask again"),
        output=(),
        timings=Timings(accepted=of.accepted_at, ended=at),
        ended_at=at,
    )


def output_id(of: TurnStarted | InferenceRequest) -> str:
    """The id of the answer's message: its position follows the input items'."""
    return of.output.id if isinstance(of, InferenceRequest) else message_id(of.response, len(of.items))


def _about(of: TurnStarted | InferenceRequest) -> dict[str, Any]:
    return {
        "response": of.response,
        "session": of.session,
        "user": of.user,
        "tier": of.tier,
        "turn": of.turn,
        "parent": of.parent,
        "model": of.model,
        "pool": of.pool,
        "accepted_at": of.timings.accepted or 0 if isinstance(of, InferenceRequest) else of.accepted_at,
        "traceparent": of.traceparent,
        "listed": of.listed,
        "store": of.store,
        "code": __version__,
    }
