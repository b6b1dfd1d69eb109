"""What a move does to what the group does: words for the operator, and the moves that can't be right. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from parley.errors import ParleyError
from parley.log.groups import GroupState
from parley.log.topic_rules import span
from parley.offsets.plan import Plan, name
from parley.settings import ProtocolSettings

EMPTY = "Empty"
"""Kafka's word for a group without members: the only state in which offsets can be committed from outside."""
RUN_AGAIN = "to run the past once more: `parley replay run`; what was given up goes back with `parley dlq redrive`"


@dataclass(frozen=True, slots=True)
class Known:
    """A group of Parley's."""

    group: str
    """Its name, or what it begins with."""
    stop: str
    """What its members are started with."""
    again: str
    """What becomes of records that are done and are read once more."""
    skipped: str
    """What becomes of records that are never read. Empty: see `require_sound`."""
    claims: bool = False
    """Its members take partitions over."""


KNOWN = (
    Known(
        "history-messages",
        "parley history --store messages",
        "the message store is given the same again, which changes nothing in it; orchestrators begin anew by "
        "themselves, since what lies above this group's offset they take from the log",
        "",
    ),
    Known(
        "history-sessions",
        "parley history --store sessions",
        "PostgreSQL is given the same again, which changes nothing in it",
        "lists of conversations lack what they say (openings, titles, deletions) until the offsets go back",
    ),
    Known(
        "parley-usage",
        "parley usage serve",
        "each turn is counted once, however often it is read",
        "their turns are not counted, and when the offsets go back later only some of them will be",
    ),
    Known(
        "traces",
        "parley traces",
        "traces of their turns are sent once more, under the same ids",
        "their turns have no trace",
    ),
    Known(
        "moderation",
        "parley moderation",
        f"prompts older than {{age}} are passed over, the first verdict on each of the others stands; {RUN_AGAIN}",
        "their prompts have no verdict: turns that wait for one fail, retryably, at the moderation deadline",
        claims=True,
    ),
    Known(
        "orchestrator",
        "parley orchestrator",
        "no answer is given twice: turns that have ended are found in the log, which is folded from its beginning, "
        f"and prompts older than {{age}} are never run; {RUN_AGAIN}",
        "prompts that were not begun are never answered, and who waits for one is never told",
        claims=True,
    ),
    Known(
        "worker-",
        "parley worker --pool {pool}",
        "no answer is given twice: ends are found on the routes and said again, and requests older than {age} are "
        f"passed over; {RUN_AGAIN}",
        "their turns have no end until the orchestrator ends them, {age} after their deadlines, and the next ones of "
        "their conversations wait for that",
        claims=True,
    ),
)


def known(group: str) -> Known | None:
    """What is known of a group."""
    return next(
        (one for one in KNOWN if group == one.group or (one.group[-1] == "-" and group.startswith(one.group))), None
    )


def require_sound(plan: Plan) -> None:
    """Some moves are right for nobody.

    Raises:
        ParleyError: invalid_request, with the reason.
    """
    if plan.group == "history-messages" and plan.skipped:
        raise ParleyError(
            "invalid_request",
            f"{plan.group} would skip {plan.skipped:,} records. What lies below its offset counts as stored, so "
            "conversations would go on without those turns (docs/protocol.md, section 2). What can't be stored it "
            "gives to chat.dlq by itself",
        )


def require_empty(state: GroupState) -> None:
    """Members go on from where they are, and commit that.

    Raises:
        ParleyError: invalid_request: the group's state, its members, and what to stop.
    """
    if (reason := in_use(state)) is not None:
        raise ParleyError("invalid_request", f"nothing was moved: {reason}")


def in_use(state: GroupState) -> str | None:
    """Why a group's offsets can't be moved now; None: they can."""
    if state.state == EMPTY:
        return None
    if not state.members:
        return f"{state.name} is {state.state}, and who its members are can't be seen"
    members = ", ".join(
        f"{member.name} at {member.host} with {len(member.assigned)} partitions" for member in state.members
    )
    count = len(state.members)
    one = known(state.name)
    stop = f"every `{one.stop.format(pool=state.name.removeprefix('worker-'))}`" if one else "them"
    return (
        f"{state.name} is {state.state} with {count} member{'s' if count > 1 else ''}: {members}. Stop {stop} "
        "first, and keep it stopped; one that has ended may count until its session runs out"
    )


def words(plan: Plan, protocol: ProtocolSettings) -> Iterator[str]:
    """What the operator should know before it is done."""
    one, age = known(plan.group), span(protocol.max_turn_age_s)
    if one is None:
        yield f"{plan.group} is none of Parley's groups: its owner knows whether it may read twice, or skip"
    if one is not None and plan.again:
        yield f"read again: {one.again.format(age=age)}"
    if one is not None and plan.skipped and one.skipped:
        yield f"skipped: {one.skipped.format(age=age)}"
    if plan.claimed and plan.needed:
        yield "its takeovers are numbered on from those before; which later records have ended is forgotten"
    if plan.claimed or (one is not None and one.claims):
        lost = [name(m.place.where) for m in plan.moves if m.place.commit is not None and not m.place.claim.takeover]
        if lost:
            yield (
                f"no claim in {', '.join(lost[:5])}{' …' if len(lost) > 5 else ''}: another tool has moved these "
                "offsets, so takeovers are numbered from 1 again, and turns that were open then may stay open"
            )
