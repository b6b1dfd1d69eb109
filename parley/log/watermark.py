"""How far a view has come: the committed offsets of its group, below which its store has everything."""

from __future__ import annotations

from collections.abc import Iterable

from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from parley.errors import ParleyError
from parley.log.admin import started_client
from parley.settings import KafkaSettings


class Watermark:
    """Asks for one group's offsets on one topic."""

    def __init__(self, settings: KafkaSettings, group: str, topic: str, name: str) -> None:
        self._settings = settings
        self._group = group
        self._topic = topic
        self._name = name
        self._client: AIOKafkaAdminClient

    async def start(self) -> None:
        """Connect.

        Raises:
            ParleyError: log_unavailable.
        """
        self._client = await started_client(self._settings, self._name)

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
