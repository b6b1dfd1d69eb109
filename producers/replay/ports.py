"""What a role in shadow reads and writes with: the ports that live roles have, to the replay's own topics only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping

from aiokafka import TopicPartition
from aiokafka.structs import RecordMetadata

from parley.log.follower import Follower, Handler
from parley.log.producer import Producer
from parley.log.ranges import RangeReader, Record
from parley.settings import KafkaSettings
from producers.replay.shadow import Shadow
from schemas.wire import Headers


class ShadowProducer(Producer):
    """A way into the replay's own topics, and into no others."""

    def __init__(self, settings: KafkaSettings, shadow: Shadow, *, linger_ms: int | None = None) -> None:
        super().__init__(settings, shadow.name("producer"), linger_ms=linger_ms)
        self._shadow = shadow

    async def post(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None,
        partition: int,
        headers: Headers = (),
        on_done: Callable[[asyncio.Future[RecordMetadata]], None] | None = None,
    ) -> asyncio.Future[RecordMetadata]:
        """As a producer's, to the replay's topic of that name."""
        return await super().post(
            self._shadow.name(topic),
            value,
            key=key,
            partition=partition,
            headers=self._shadow.marked(headers),
            on_done=on_done,
        )


class ShadowRanges(RangeReader):
    """A reader of the replay's own routes."""

    def __init__(self, settings: KafkaSettings, shadow: Shadow) -> None:
        super().__init__(settings, shadow.name("ranges"))
        self._shadow = shadow

    def follow(self, topic: str, partition: int, start: int) -> AsyncGenerator[Record, None]:
        """As a reader's, of the replay's topic of that name."""
        return super().follow(self._shadow.name(topic), partition, start)

    async def end_offset(self, topic: str, partition: int) -> int:
        """As a reader's, of the replay's topic of that name."""
        return await super().end_offset(self._shadow.name(topic), partition)


class ShadowFollower(Follower):
    """A follower of the replay's own side inputs."""

    def __init__(self, settings: KafkaSettings, shadow: Shadow) -> None:
        super().__init__(settings, shadow.name("follower"))
        self._shadow = shadow

    def follow(self, topic: str, partition: int, start: int, handle: Handler) -> None:
        """As a follower's, of the replay's topic of that name."""
        super().follow(self._shadow.name(topic), partition, start, handle)

    def unfollow(self, topic: str, partition: int) -> None:
        """As a follower's."""
        super().unfollow(self._shadow.name(topic), partition)

    async def reached(self, topic: str, partition: int, offset: int) -> None:
        """As a follower's."""
        await super().reached(self._shadow.name(topic), partition, offset)

    async def bounds(self, wheres: Iterable[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        """As a follower's, by the names that were asked for."""
        names = {self._own(where): where for where in wheres}
        return {names[where]: found for where, found in (await super().bounds(names)).items()}

    async def since(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """As a follower's, by the names that were asked for."""
        names = {self._own(where): where for where in times}
        own = {where: times[asked] for where, asked in names.items()}
        return {names[where]: found for where, found in (await super().since(own)).items()}

    def _own(self, where: TopicPartition) -> TopicPartition:
        return TopicPartition(self._shadow.name(where.topic), where.partition)
