"""What every conversation of an orchestrator uses: the log, the store, the clock."""

from __future__ import annotations

from dataclasses import dataclass

from parley.clock import now_ms
from parley.drains import Drains
from parley.log.follower import Follower
from parley.log.partitions import session_key
from parley.log.producer import Producer
from parley.log.ranges import RangeReader
from parley.log.watermark import Watermark
from parley.safety.policy import Policy
from parley.settings import Settings
from parley.stores.lazy import LazyMessageStore
from parley.topics import CONTROL, TURNS
from schemas.base import Route
from schemas.prompts import Cancel, InferenceRequest
from schemas.routes import Opened, Terminal, encode_route_record
from schemas.turns import TurnEnded, TurnStarted
from schemas.wire import STARTED_HEADER, encode, headers


@dataclass(slots=True)
class Tools:
    """Made once a process."""

    settings: Settings
    producer: Producer
    follower: Follower
    ranges: RangeReader
    store: LazyMessageStore
    watermark: Watermark
    policy: Policy
    drains: Drains

    async def log_turn(self, event: TurnStarted | TurnEnded, partition: int) -> int:
        """Write to chat.turns; gives the offset.

        Raises:
            ParleyError: log_unavailable: it may land later.
        """
        about = headers(
            event.type,
            response=event.response,
            session=event.session.hex,
            dispatch=event.dispatch,
            traceparent=event.traceparent,
        )
        key = session_key(event.session.hex)
        return await self.producer.send(TURNS, encode(event), key=key, partition=partition, headers=about)

    async def say(self, response: str, route: Route, event: Opened | Terminal) -> int:
        """Write to a turn's route; gives the offset.

        Raises:
            ParleyError: log_unavailable: it may land later.
        """
        return await self.producer.send(
            route.topic,
            encode_route_record((event,)),
            key=response.encode(),
            partition=route.partition,
            headers=headers(event.type, response=response),
        )

    async def cancel(self, turn: TurnStarted, partition: int) -> None:
        """Have a turn ended by whoever runs it: its session was deleted.

        Raises:
            ParleyError: log_unavailable.
        """
        event = Cancel(response=turn.response, session=turn.session, user=turn.user, at=now_ms())
        about = headers(event.type, response=event.response, session=event.session.hex)
        key = session_key(event.session.hex)
        await self.producer.send(CONTROL, encode(event), key=key, partition=partition, headers=about)

    async def dispatch(self, request: InferenceRequest, partition: int, place: int | None) -> None:
        """Hand a turn to its pool. `place`: where its TurnStarted stands, for who can't read the request.

        Raises:
            ParleyError: log_unavailable: it may land later; request_too_large.
        """
        await self.producer.send(
            self.settings.topics.inference_topic(request.pool, request.tier),
            encode(request),
            key=session_key(request.session.hex),
            partition=partition,
            headers=headers(
                request.type,
                response=request.response,
                session=request.session.hex,
                route=request.route,
                deadline=request.deadline,
                dispatch=request.dispatch,
                traceparent=request.traceparent,
                more=() if place is None else ((STARTED_HEADER, b"%d" % place),),
            ),
        )
