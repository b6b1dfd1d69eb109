"""Workers in this process on a real log and real engines; the orchestrator and moderation are played by the test."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx
import yaml
from click.testing import CliRunner

from inference_workers.main import equipped, working
from inference_workers.tools import Tools
from parley.clock import now_ms
from parley.health import Health
from parley.ids import Keys, message_id, new_response_id
from parley.log.group import Group
from parley.log.partitions import partition_of, session_key
from parley.log.producer import Producer
from parley.log.ranges import RangeReader
from parley.pools_cli import pool as pool_command
from parley.settings import Settings
from parley.transcript import Transcript
from schemas.base import Route, Sampling, Tier, Timings
from schemas.prompts import Cancel, InferenceRequest, OutputItem, Verdict
from schemas.routes import decode_route_record
from schemas.turns import TurnEnded
from schemas.wire import decoder, encode, header, headers

KEYS = Keys((b"a key of the edges, 32 bytes long",))
USER = UUID(int=1)
POOL = "synthetic"

_ended = decoder(TurnEnded)


def script(**how: Any) -> str:
    """A message by which the synthetic engine's answer goes as told."""
    return "::script " + json.dumps(how)


def words(count: int, first: int = 1) -> str:
    """What the synthetic engine says."""
    return " ".join(f"w{number:03d}" for number in range(first, first + count))


def session_in(partition: int, count: int) -> UUID:
    """A session whose records are in a partition."""
    while partition_of(session_key((session := uuid4()).hex), count) != partition:
        pass
    return session


def policy_file(folder: Path, hold_back: int) -> Path:
    """The policy with another hold-back, in words."""
    policy = yaml.safe_load(Settings().moderation.policy.read_text())
    path = folder / f"policy-{hold_back}.yaml"
    path.write_text(yaml.safe_dump(policy | {"hold_back": hold_back}))
    return path


@dataclass
class Running:
    """A worker."""

    tools: Tools
    group: Group
    health: Health

    @property
    def generation(self) -> int:
        """Of the group, as this member knows it: it rises with every rebalance."""
        return int(self.group._consumer._coordinator.generation)


@dataclass
class Lab:
    """The log, and the hands that write to it."""

    settings: Settings
    producer: Producer
    ranges: RangeReader

    async def ask(
        self,
        message: str,
        *,
        max_tokens: int = 100,
        partition: int = 0,
        tier: Tier = "free",
        start_s: float = 30.0,
        verdict: bool = True,
        **sampling: Any,
    ) -> InferenceRequest:
        """Send a request, allowed unless `verdict` is false, whose route is a lane."""
        topics = self.settings.topics
        session = session_in(partition, topics.session_partitions)
        lane = partition % topics.lanes
        start = await self.ranges.end_offset("chat.tokens", lane)
        response = new_response_id(KEYS, USER, session, lane, start, now_ms())
        allowed = Verdict(
            response=response, session=session, stage="input", decision="allow", policy="p", model="m", at=now_ms()
        )
        request = InferenceRequest(
            response=response,
            session=session,
            user=USER,
            tier=tier,
            turn=1,
            parent=None,
            dispatch=(1, 1),
            pool=POOL,
            model="synthetic",
            prompt=f"<|im_start|>user\n{message}<|im_end|>\n<|im_start|>assistant\n",
            prompt_tokens=len(message.split()),
            max_tokens=max_tokens,
            sampling=Sampling(**sampling),
            output=OutputItem(id=message_id(response, 1)),
            route=Route(topic="chat.tokens", partition=lane, start=start),
            deadline=now_ms() + int(start_s * 1000),
            moderation_deadline=now_ms() + 10_000,
            verdict=allowed if verdict else None,
            template="chatml-1",
            timings=Timings(accepted=now_ms()),
        )
        await self._send(topics.inference_topic(POOL, tier), request, partition)
        return request

    async def cancel(self, request: InferenceRequest) -> None:
        """The user's wish."""
        cancel = Cancel(response=request.response, session=request.session, user=USER, at=now_ms())
        await self._send("chat.control", cancel, self.partition_of(request))

    async def operate(self, *arguments: str) -> str:
        """`parley pool`, against the same log; gives what it prints. It runs an event loop of its own."""
        env = {"PARLEY_KAFKA__BOOTSTRAP": self.settings.kafka.bootstrap}
        result = await asyncio.to_thread(CliRunner().invoke, pool_command, list(arguments), env=env)
        assert result.exit_code == 0, result.output
        return result.stdout

    async def _send(self, topic: str, event: Any, partition: int) -> None:
        about = headers(event.type, response=event.response, session=event.session.hex)
        await self.producer.send(
            topic, encode(event), key=session_key(event.session.hex), partition=partition, headers=about
        )

    def partition_of(self, request: InferenceRequest) -> int:
        return partition_of(session_key(request.session.hex), self.settings.topics.session_partitions)

    async def fold(
        self, request: InferenceRequest, until: Callable[[Transcript], bool] | None = None, within_s: float = 60.0
    ) -> Transcript:
        """The route of a turn, read up to its end or up to where `until` holds."""
        transcript, route = Transcript(), request.route
        async with (
            asyncio.timeout(within_s),
            aclosing(self.ranges.follow(route.topic, route.partition, route.start)) as records,
        ):
            async for record in records:
                if record.key == request.response.encode():
                    for event in decode_route_record(record.value):
                        transcript.apply(event)
                    if transcript.terminal is not None or (until is not None and until(transcript)):
                        return transcript
        raise AssertionError("the route has ended")

    async def ended(self, request: InferenceRequest, within_s: float = 20.0) -> TurnEnded:
        """The turn's end in chat.turns, among whatever other tests have written there; there is one only."""
        partition = self.partition_of(request)
        async with asyncio.timeout(within_s), aclosing(self.ranges.follow("chat.turns", partition, 0)) as records:
            async for record in records:
                kind, whose = (header(record.headers, name) for name in ("type", "response"))
                if (kind, whose) == ("turn.ended", request.response):
                    return _ended(record.value)
        raise AssertionError("the log has ended")

    @asynccontextmanager
    async def worker(
        self, instance: str | None, *engines: str, own: int = 0, **settings: Any
    ) -> AsyncIterator[Running]:
        """A worker of the pool, once it holds its partitions. It is stopped as by SIGTERM."""
        settings = {"instance": instance, "engines": {POOL: engines}, **settings}
        mine = self.settings.model_copy(update=settings)
        health = Health()
        async with (
            equipped(mine, POOL, own) as (tools, follower),
            working(mine, tools, follower, health) as group,
        ):
            task = asyncio.create_task(group.run())
            try:
                async with asyncio.timeout(20):
                    while health.readiness():
                        assert not task.done(), task.exception()
                        await asyncio.sleep(0.02)
                yield Running(tools, group, health)
            finally:
                group.stop()
                await asyncio.wait_for(task, 20)


@dataclass(frozen=True)
class Gauges:
    """What an engine counts."""

    metrics_port: int
    http: httpx.AsyncClient

    async def active(self) -> int:
        """Slots that are taken."""
        return int(await self._read("engine_active_requests"))

    async def calls(self) -> int:
        """Requests that it has been asked, ever."""
        return int(await self._read("nv_inference_request_success") + await self._read("nv_inference_request_failure"))

    async def _read(self, name: str) -> float:
        lines = (await self.http.get(f"http://127.0.0.1:{self.metrics_port}/metrics")).text.splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name + "{"))
