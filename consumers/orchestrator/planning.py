"""What a turn's records say: parent, pool and context at its start, and the request that the pool gets. Pure."""

from __future__ import annotations

from parley.context import TEMPLATE_VERSION, Context, build_context
from parley.endings import output_id
from parley.errors import ParleyError
from parley.session import Session
from parley.settings import ProtocolSettings, Settings
from parley.tokenizers import load_tokenizer
from parley.topics import Pool
from schemas.base import Dispatch, Failure, Item, Sampling, Timings
from schemas.prompts import InferenceRequest, OutputItem, PromptAccepted, Verdict
from schemas.turns import TurnStarted


def plan(
    settings: Settings,
    session: Session,
    event: PromptAccepted,
    dispatch: Dispatch,
    now: int,
    drained: frozenset[str] = frozenset(),
) -> TurnStarted:
    """The decision to run a prompt, with its place in the session, on a pool that is not drained.

    Raises:
        ParleyError: it can't be run: unknown parent or model, too long, no pool takes new turns.
    """
    parent = parent_of(session, event)
    if event.parent is not None and event.parent in session.turns and session.turns[event.parent].forgotten:
        raise ParleyError("previous_response_not_found", "the response to follow was not to be stored")
    pool = settings.topics.route_pool(event.model, event.tier, without=drained)
    if pool is None:
        if settings.topics.route_pool(event.model, event.tier) is not None:
            raise ParleyError("overloaded", f"{event.model} takes no new turns at present: try again later")
        raise ParleyError("model_not_found", f"no pool serves {event.model}", param="model")
    context = _context(settings, session, pool, parent, event)
    better = settings.topics.route_pool(event.model, event.tier, context.prompt_tokens, without=drained)
    if better not in (None, pool):
        pool, context = better, _context(settings, session, better, parent, event)
    return started(settings.protocol, session, event, dispatch, now, pool=pool.name, parent=parent, context=context)


def _context(settings: Settings, session: Session, pool: Pool, parent: str | None, event: PromptAccepted) -> Context:
    truncate = event.truncation == "auto"
    return context_of(settings, session, pool, parent, event.items, event.instructions, event.sampling, truncate)


def started(
    protocol: ProtocolSettings,
    session: Session,
    event: PromptAccepted,
    dispatch: Dispatch,
    now: int,
    *,
    pool: str | None,
    parent: str | None,
    context: Context | None = None,
) -> TurnStarted:
    """A TurnStarted for a prompt. Its deadlines begin to run now: the turn's turn has come."""
    return TurnStarted(
        response=event.response,
        session=event.session,
        user=event.user,
        tier=event.tier,
        turn=session.last_number + 1,
        parent=parent,
        items=event.items,
        instructions=event.instructions,
        pool=pool,
        model=event.model,
        dispatch=dispatch,
        key_hash=event.key_hash,
        body_hash=event.body_hash,
        listed=event.listed,
        store=event.store,
        truncation=event.truncation,
        sampling=event.sampling,
        route=event.route,
        deadline=now + int(protocol.start_deadline_s * 1000),
        moderation_deadline=now + int(protocol.moderation_deadline_s * 1000),
        echo=event.echo,
        prompt_tokens=context.prompt_tokens if context else 0,
        dropped_turns=context.dropped_turns if context else 0,
        accepted_at=event.accepted_at,
        traceparent=event.traceparent,
    )


def ending(about: TurnStarted, kind: str, failure: Failure | None, dispatch: Dispatch) -> TurnStarted:
    """The decision to end a turn without running it (any more)."""
    return about.model_copy(update={"pool": None, "why": kind, "failure": failure, "dispatch": dispatch})


def parent_of(session: Session, event: PromptAccepted) -> str | None:
    """The turn that a prompt follows: the one it names, else the session's newest."""
    newest = session.newest
    return event.parent or (newest.response if newest else None)


def context_of(
    settings: Settings,
    session: Session,
    pool: Pool,
    parent: str | None,
    items: tuple[Item, ...],
    instructions: str | None,
    sampling: Sampling,
    truncate: bool,
) -> Context:
    """The prompt for the model.

    Raises:
        ParleyError: previous_response_not_found, context_length_exceeded.
    """
    path = session.path(parent)
    if path is None:
        raise ParleyError("previous_response_not_found", "the response to follow is not in this conversation")
    return build_context(
        pool,
        load_tokenizer(pool.tokenizer, settings.tokenizers_dir),
        path,
        items,
        instructions=instructions,
        max_output_tokens=sampling.max_output_tokens,
        truncate=truncate,
    )


def request(
    settings: Settings, session: Session, decision: TurnStarted, verdict: Verdict | None, now: int, seen: int | None
) -> InferenceRequest:
    """The request of a standing TurnStarted: whoever makes it from the same log makes the same prompt.

    `seen`: when the prompt came here, in ms; None: it came to an earlier holder, and is done with.

    Raises:
        ParleyError: the turn can't be run.
    """
    pool = settings.topics.pools.get(decision.pool or "")
    if pool is None:
        raise ParleyError("model_not_found", f"the pool {decision.pool} is gone")
    context = context_of(
        settings,
        session,
        pool,
        decision.parent,
        decision.items,
        decision.instructions,
        decision.sampling,
        decision.truncation == "auto",
    )
    return InferenceRequest(
        response=decision.response,
        session=decision.session,
        user=decision.user,
        tier=decision.tier,
        turn=decision.turn,
        parent=decision.parent,
        dispatch=decision.dispatch,
        pool=pool.name,
        model=decision.model,
        prompt=context.prompt,
        prompt_tokens=context.prompt_tokens,
        dropped_turns=context.dropped_turns,
        max_tokens=context.max_tokens,
        sampling=decision.sampling,
        output=OutputItem(id=output_id(decision)),
        route=decision.route,
        deadline=decision.deadline,
        moderation_deadline=decision.moderation_deadline,
        verdict=verdict,
        template=TEMPLATE_VERSION,
        listed=decision.listed,
        store=decision.store,
        timings=Timings(accepted=decision.accepted_at, opened=seen, dispatched=now),
        traceparent=decision.traceparent,
    )
