"""Writing a turn's route under one fence: deltas and the terminal in order, and nothing after a record that failed."""

from __future__ import annotations

import asyncio

from aiokafka.structs import RecordMetadata

from parley.errors import ParleyError
from parley.log.producer import Producer
from parley.transcript import Transcript
from schemas.base import Route
from schemas.routes import Delta, Terminal, encode_delta, encode_route_record


class Pen:
    """Of one run of a turn. `transcript` is what the route says once everything written has arrived.

    Every method raises ParleyError (log_unavailable) once a record of the run was not acknowledged: the turn is fenced
    again, and goes on from what the log says.
    """

    def __init__(self, producer: Producer, response: str, route: Route, transcript: Transcript) -> None:
        assert transcript.fence is not None
        self.transcript = transcript
        self._writer = transcript.fence.writer
        self._producer = producer
        self._key = response.encode()
        self._route = route
        self._generation = producer.generation(route.topic, route.partition)
        self._failed = False

    async def say(self, text: str, tokens: int) -> None:
        """Send a delta; does not wait for its acknowledgement."""
        self.check()
        seq, route = self.transcript.seq, self._route
        await self._producer.post(
            route.topic,
            encode_delta(self._writer, seq, text, tokens),
            key=self._key,
            partition=route.partition,
            on_done=self._sent,
        )
        self.transcript.apply(Delta(writer=self._writer, seq=seq, text=text, tokens=tokens))

    async def end(self, terminal: Terminal) -> None:
        """Send the terminal; returns when it and all before it are in the log."""
        self.check()
        route = self._route
        value = encode_route_record((terminal,))
        await self._producer.send(route.topic, value, key=self._key, partition=route.partition)
        self.check()
        self.transcript.apply(terminal)

    def check(self) -> None:
        """Raises unless all is well so far."""
        if self._failed:
            raise ParleyError("log_unavailable", "a record of the turn was not acknowledged")
        if self._producer.generation(self._route.topic, self._route.partition) != self._generation:
            # Another turn's record has failed there. What this one has on its way would be overtaken, and be void.
            raise ParleyError("log_unavailable", "the turn's route has moved to a fresh producer")

    def _sent(self, done: asyncio.Future[RecordMetadata]) -> None:
        if done.cancelled() or done.exception() is not None or done.result().offset < 0:
            self._failed = True
