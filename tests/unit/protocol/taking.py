"""Taking a turn, as parley.log.taking does it: fence, its offset, the route from the turn's start to it, the fold."""

from __future__ import annotations

from collections.abc import Generator

from parley.log.ranges import RouteGone
from parley.transcript import Transcript
from schemas.base import Route
from schemas.routes import Fence

from .events import LANE
from .log import Record
from .member import Member


def take_turn(
    member: Member, response: str, route: Route, fence: Fence, context: str | None = None
) -> Generator[None, None, Transcript | None]:
    """What the route said up to the fence, with the fence. None: someone greater has the turn.

    Raises:
        SendFailed: fence again, with a greater epoch.
        RouteGone: the route no longer holds the turn's start.
    """
    record = member.send(LANE, Record(fence, response, context=context))
    offset = yield from member.acknowledged(record)
    world = member.world
    if route.start < world.lane_begins:
        raise RouteGone
    transcript = world.transcript()
    if "read-back" in world.without:
        transcript.apply(fence)
        return transcript
    for found in world.logs.log(LANE)[route.start : offset + 1]:
        if found.response == response:
            transcript.apply(found.event)
    if transcript.terminal is not None or transcript.holds(fence) or "let-go" in world.without:
        return transcript
    return None
