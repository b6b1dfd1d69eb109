"""How far a view has come: the committed offsets of its group, below which its store has everything."""

from __future__ import annotations

from collections.abc import Iterable

from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from parley.errors import ParleyError
from parley.settings import KafkaSettings


class Watermark:
    """Asks for one group's offsets on one topic."""

    def __init__(self, settings: KafkaSettings, group: str, topic: str, name: str) -> None:
        self._group = group
        self._topic = topic
        self._client = AIOKafkaAdminClient(
            bootstrap_servers=settings.bootstrap,
            client_id=name,
            request_timeout_ms=settings.request_timeout_ms,
        )

    async def start(self) -> None:
        """Connect.

        Raises:
            ParleyError: log_unavailable.
        """
        try:
            await self._client.start()
        except (KafkaError, OSError) as error:
            await self._client.close()
            raise ParleyError("log_unavailable", "no broker answers") from error

    async def stop(self) -> None:
        """Disconnect."""
        await self._client.close()

    async def read(self, partitions: Iterable[int]) -> dict[int, int]:
        """The committed offset of each partition; 0 where the group has committed nothing.

        Raises:
            ParleyError: log_unavailable.
        """
        wheres = [TopicPartition(self._topic, partition) for partition in partitions]
        try:
            found = await self._client.list_consumer_group_offsets(self._group, partitions=wheres)
        except (KafkaError, OSError, TimeoutError) as error:
            raise ParleyError("log_unavailable", f"the offsets of {self._group} can't be read: {error!r}") from error
        return {where.partition: max(0, found[where].offset) if where in found else 0 for where in wheres}
