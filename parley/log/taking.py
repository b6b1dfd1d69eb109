"""Taking a turn, always the same way: fence, its offset, the route from the turn's start to it, the fold.

Every way to be wrong about "this turn has never run" has been found to give two readers two texts, so there is nothing
to leave out here (protocol.md, section 3).
"""

from __future__ import annotations

from pydantic import ValidationError

from parley.clock import now_ms
from parley.log.dlq import unreadable
from parley.log.producer import Producer
from parley.log.ranges import RangeReader
from parley.settings import ProtocolSettings
from parley.transcript import Transcript
from schemas.base import Route
from schemas.routes import Fence, decode_route_record, encode_route_record
from schemas.wire import BadRecord, describe, headers

ASKED = 5
"""How many answers it takes to believe that a route is lost."""


async def take_turn(
    producer: Producer, ranges: RangeReader, response: str, route: Route, fence: Fence
) -> Transcript | None:
    """What the route said up to the fence, with the fence. None: someone greater has the turn.

    Raises:
        ParleyError: log_unavailable: fence again, with a greater epoch.
        RouteGone: the route no longer holds the turn's start.
    """
    offset = await producer.send(
        route.topic,
        encode_route_record((fence,)),
        key=response.encode(),
        partition=route.partition,
        headers=headers("fence", response=response),
    )
    transcript = await read_route(ranges, response, route, offset)
    return transcript if transcript.terminal is not None or transcript.holds(fence) else None


async def read_route(ranges: RangeReader, response: str, route: Route, end: int) -> Transcript:
    """What the route says of the turn, up to the record at `end`.

    Raises:
        ParleyError: log_unavailable.
        RouteGone: the route no longer holds the turn's start.
    """
    transcript = Transcript()
    for record in await ranges.read(route.topic, route.partition, route.start, end):
        if record.key != response.encode():
            continue
        try:
            events = decode_route_record(record.value or b"")
        except ValidationError as error:
            unreadable(record, BadRecord(describe(error)))
            continue
        for event in events:
            transcript.apply(event)
    return transcript


async def is_lost(ranges: RangeReader, route: Route, accepted_at: int, protocol: ProtocolSettings) -> bool:
    """The turn's start is no longer in its route: the topic was deleted or made anew, or retention took it.

    Nobody can read then what was said there, and what is written now nobody reads; the turn can only be ended in the
    state log. The topic was there when the turn was accepted (ms): brokers that don't know it a margin later have not
    just failed to hear of it. One broker may be cut off from the others: several are asked, each time another by
    chance. While none answers nothing is lost.

    Raises:
        ParleyError: log_unavailable.
    """
    if now_ms() < accepted_at + protocol.margin_s * 1000:
        return False
    for _ in range(ASKED):
        if await ranges.holds(route.topic, route.partition, route.start):
            return False
    return True
