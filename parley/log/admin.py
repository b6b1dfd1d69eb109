"""The cluster's topics: looking at them, making them, changing them, and clearing away session topics.

aiokafka's admin client sends whole configurations (AlterConfigs, not its incremental successor), and such a request
resets what it does not name. So a change is sent together with everything that is set on the topic already.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import (
    GroupIdNotFound,
    InvalidGroupIdError,
    KafkaConnectionError,
    KafkaError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
    for_code,
)
from aiokafka.protocol.admin import ApiVersionRequest, DeleteGroupsRequest

from parley.errors import ParleyError
from parley.log.answers import mend_answers
from parley.log.topic_plan import LiveTopic
from parley.settings import KafkaSettings
from parley.topics import Topic, Topics

DYNAMIC_TOPIC_CONFIG = 1
"""Kafka's ConfigSource of a value that is set on the topic itself."""
SETTLE_TIMEOUT_S = 30.0
SETTLE_POLL_S = 0.05


class Admin:
    """A connection for administration. Every failure is a ParleyError log_unavailable of one line."""

    def __init__(self, client: AIOKafkaAdminClient, bootstrap: str) -> None:
        self._client = client
        self._bootstrap = bootstrap

    async def topics(self, names: Sequence[str] = ()) -> list[LiveTopic]:
        """The cluster's topics, with the settings of those that are named."""
        described = await self._describe(None)
        present = {topic["topic"] for topic in described}
        configs = await self._configs(ConfigResourceType.TOPIC, [name for name in names if name in present])
        return [
            LiveTopic(
                name=topic["topic"],
                partitions=len(topic["partitions"]),
                replication=max((len(partition["replicas"]) for partition in topic["partitions"]), default=0),
                config={name: value for name, (value, _) in configs.get(topic["topic"], {}).items()},
                own={
                    name: value
                    for name, (value, source) in configs.get(topic["topic"], {}).items()
                    if source == DYNAMIC_TOPIC_CONFIG
                },
                internal=bool(topic["is_internal"]),
            )
            for topic in described
        ]

    async def names(self) -> list[str]:
        """Every topic's name."""
        return [topic["topic"] for topic in await self._describe(None)]

    async def at_risk(self, min_insync_replicas: int) -> dict[str, str]:
        """Partitions that take no acknowledged writes now, as topic-partition, each with the reason."""
        found = {}
        for topic in await self._describe(None):
            for part in topic["partitions"]:
                name, in_sync = f"{topic['topic']}-{part['partition']}", len(part["isr"])
                if part["leader"] < 0:
                    found[name] = "no leader"
                elif in_sync < min_insync_replicas:
                    found[name] = f"{in_sync} of {len(part['replicas'])} replicas in sync"
        return found

    async def api_versions(self) -> dict[int, tuple[int, int]]:
        """Of each kind of request, by its number in Kafka's protocol: the oldest and newest version that is taken."""
        answer = await self._ask(self._client._send_request(ApiVersionRequest()))
        return {key: (oldest, newest) for key, oldest, newest in answer.api_versions}

    async def brokers(self) -> dict[str, dict[str, str]]:
        """The effective settings of each broker, by its id."""
        cluster = await self._ask(self._client.describe_cluster())
        settings: dict[str, dict[str, str]] = {}
        for broker in cluster["brokers"]:
            name = str(broker["node_id"])
            found = await self._configs(ConfigResourceType.BROKER, [name])
            settings[name] = {key: value for key, (value, _) in found[name].items()}
        return settings

    async def create(self, wanted: Iterable[Topic], *, replication: int, min_insync_replicas: int) -> list[str]:
        """Make topics and wait until every partition has a leader; gives the names of those that were not there.

        Raises:
            ParleyError: log_unavailable: the cluster can't be reached, or refuses; its words are in the message.
        """
        topics = list(wanted)
        if not topics:
            return []
        new = [
            NewTopic(topic.name, topic.partitions, replication, topic_configs=topic.config(min_insync_replicas))
            for topic in topics
        ]
        response = await self._ask(self._client.create_topics(new))
        made = []
        for name, code, message in response.topic_errors:
            if not code:
                made.append(name)
            elif for_code(code) is not TopicAlreadyExistsError:
                raise ParleyError("log_unavailable", f"could not create {name}: {message or for_code(code).__name__}")
        await self.wait_for_leaders({topic.name: topic.partitions for topic in topics})
        return made

    async def alter(self, changes: Mapping[str, Mapping[str, str]], live: Iterable[LiveTopic]) -> None:
        """Give topics these settings, and wait until brokers show them; what else is set on the topics stays.

        Raises:
            ParleyError: log_unavailable, as `create`.
        """
        own = {topic.name: topic.own for topic in live}
        resources = [
            ConfigResource(ConfigResourceType.TOPIC, name, {**own.get(name, {}), **settings})
            for name, settings in changes.items()
        ]
        if not resources:
            return
        for response in await self._ask(self._client.alter_configs(resources)):
            for code, message, _, name in response.resources:
                if code:
                    raise ParleyError(
                        "log_unavailable", f"could not change {name}: {message or for_code(code).__name__}"
                    )
        await self._wait_for_configs(changes)

    async def delete(self, names: Sequence[str]) -> list[str]:
        """Delete topics with their records, and wait until brokers know; gives the names of those that were there.

        Raises:
            ParleyError: log_unavailable, as `create`.
        """
        if not names:
            return []
        response = await self._ask(self._client.delete_topics(list(names)))
        deleted = []
        for name, code in response.topic_error_codes:
            if not code:
                deleted.append(name)
            elif for_code(code) is not UnknownTopicOrPartitionError:
                raise ParleyError("log_unavailable", f"could not delete {name}: {for_code(code).__name__}")
        await self._wait_for_absence(deleted)
        return deleted

    async def delete_group(self, name: str) -> bool:
        """Forget a group without members, with its commits; False: there was none.

        Raises:
            ParleyError: log_unavailable: the cluster can't be reached, or the group has members.
        """
        node = await self._ask(self._client.find_coordinator(name))
        # aiokafka knows the request, but its client has no method for it.
        response = await self._ask(self._client._send_request(DeleteGroupsRequest([name]), node))
        [(_, code)] = response.results
        if code and for_code(code) not in (GroupIdNotFound, InvalidGroupIdError):
            raise ParleyError("log_unavailable", f"could not delete the group {name}: {for_code(code).__name__}")
        return not code

    async def wait_for_leaders(self, partitions: Mapping[str, int], timeout_s: float = SETTLE_TIMEOUT_S) -> None:
        """Wait until the metadata shows a leader of every partition: until then sends and fetches of clients fail.

        Raises:
            ParleyError: log_unavailable: some still have none.
        """
        deadline = time.monotonic() + timeout_s
        waiting = dict(partitions)
        while True:
            for topic in await self._describe(list(waiting)):
                led = [part for part in topic["partitions"] if not part["error_code"] and part["leader"] >= 0]
                if len(led) >= waiting.get(topic["topic"], 1):
                    waiting.pop(topic["topic"], None)
            if not waiting:
                return
            if time.monotonic() > deadline:
                raise ParleyError("log_unavailable", f"no leader for all partitions of {', '.join(sorted(waiting))}")
            await asyncio.sleep(SETTLE_POLL_S)

    async def _wait_for_absence(self, names: Sequence[str]) -> None:
        deadline = time.monotonic() + SETTLE_TIMEOUT_S
        while left := sorted(set(names).intersection(await self.names())):
            if time.monotonic() > deadline:
                raise ParleyError("log_unavailable", f"brokers still show {', '.join(left)}")
            await asyncio.sleep(SETTLE_POLL_S)

    async def _wait_for_configs(self, wanted: Mapping[str, Mapping[str, str]]) -> None:
        """A change is the controller's first; brokers follow its log."""
        deadline = time.monotonic() + SETTLE_TIMEOUT_S
        while True:
            live = await self._configs(ConfigResourceType.TOPIC, list(wanted))
            late = [
                f"{name} of {topic}"
                for topic, settings in wanted.items()
                for name, value in settings.items()
                if live[topic].get(name, ("", 0))[0] != value
            ]
            if not late:
                return
            if time.monotonic() > deadline:
                raise ParleyError("log_unavailable", f"brokers do not show the change of {', '.join(late)}")
            await asyncio.sleep(SETTLE_POLL_S)

    async def _describe(self, names: list[str] | None) -> list[dict[str, Any]]:
        described: list[dict[str, Any]] = await self._ask(self._client.describe_topics(names))
        return described

    async def _configs(self, kind: ConfigResourceType, names: Sequence[str]) -> dict[str, dict[str, tuple[str, int]]]:
        """Value and ConfigSource of every setting, by resource."""
        if not names:
            return {}
        found: dict[str, dict[str, tuple[str, int]]] = {}
        for response in await self._ask(self._client.describe_configs([ConfigResource(kind, n) for n in names])):
            for code, message, _, name, entries in response.resources:
                if code:
                    raise ParleyError("log_unavailable", f"could not read the settings of {name}: {message}")
                found[name] = {key: (value, source) for key, value, _, source, *_ in entries}
        return found

    async def _ask(self, request: Any) -> Any:
        try:
            return await request
        except (KafkaError, OSError, TimeoutError) as error:
            raise unreachable(self._bootstrap, error) from error


def unreachable(bootstrap: str, error: BaseException) -> ParleyError:
    """The one line for a cluster that does not answer."""
    if isinstance(error, KafkaConnectionError):
        return ParleyError("log_unavailable", f"no Kafka broker answers at {bootstrap} (PARLEY_KAFKA__BOOTSTRAP)")
    return ParleyError("log_unavailable", f"Kafka at {bootstrap} failed: {str(error) or type(error).__name__}")


async def started_client(settings: KafkaSettings, client_id: str) -> AIOKafkaAdminClient:
    """aiokafka's client for administration, connected. The caller closes it.

    Raises:
        ParleyError: log_unavailable: no broker answers.
    """
    mend_answers()
    client = AIOKafkaAdminClient(
        bootstrap_servers=settings.bootstrap, client_id=client_id, request_timeout_ms=settings.request_timeout_ms
    )
    try:
        await client.start()
    except (KafkaError, OSError) as error:
        await client.close()
        raise unreachable(settings.bootstrap, error) from error
    return client


@asynccontextmanager
async def connect(settings: KafkaSettings) -> AsyncIterator[Admin]:
    """An admin connection.

    Raises:
        ParleyError: log_unavailable: no broker answers.
    """
    client = await started_client(settings, "parley-admin")
    try:
        yield Admin(client, settings.bootstrap)
    finally:
        await client.close()


async def ensure_session_topic(admin: Admin, topics: Topics, session_hex: str) -> bool:
    """Make a session's token topic unless it is there; False when as many as allowed exist: use a lane instead.

    The limit is soft: edges that ask at the same moment may pass it by one each.

    Raises:
        ParleyError: log_unavailable.
    """
    topic = topics.session_topic(session_hex)
    names = await admin.names()
    if topic.name not in names:
        if sum(name.startswith(topics.session_topics.prefix) for name in names) >= topics.session_topics.limit:
            return False
        await admin.create([topic], replication=topics.replication, min_insync_replicas=topics.min_insync_replicas)
    return True
