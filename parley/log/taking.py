"""Taking a turn, always the same way: fence, its offset, the route from the turn's start to it, the fold.

Every way to be wrong about "this turn has never run" has been found to give two readers two texts, so there is nothing
to leave out here (protocol.md, section 3).
"""

from __future__ import annotations

from pydantic import ValidationError

from parley.log.dlq import unreadable
from parley.log.producer import Producer
from parley.log.ranges import RangeReader
from parley.transcript import Transcript
from schemas.base import Route
from schemas.routes import Fence, decode_route_record, encode_route_record
from schemas.wire import BadRecord, describe, headers


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
