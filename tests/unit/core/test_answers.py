"""A coordinator that can't tell a group's offsets is not a group that has committed nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.client import AIOKafkaClient
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.errors import GroupLoadInProgressError, KafkaError, NotCoordinatorForGroupError
from aiokafka.protocol.commit import OffsetFetchResponse_v3

from parley.log.answers import mend_answers, mended

WHERE = TopicPartition("chat.prompts", 3)


@pytest.fixture
def client(request: pytest.FixtureRequest) -> AIOKafkaClient:
    """A connection to a coordinator that gives one answer. The class stays as it is: others of it are at work."""

    class Answering(AIOKafkaClient):  # type: ignore[misc]
        @mended
        async def send(self, *_: Any, **__: Any) -> Any:
            return request.param

    return Answering.__new__(Answering)


def coordinator(client: AIOKafkaClient) -> Any:
    """A member's side of its group."""
    made = GroupCoordinator.__new__(GroupCoordinator)
    made.__dict__.update(group_id="g", _client=client, coordinator_id=1, coordinator_dead=lambda: None)
    return made


LOADING, MOVED = OffsetFetchResponse_v3(0, [], 14), OffsetFetchResponse_v3(0, [], 16)
COMMITTED = OffsetFetchResponse_v3(0, [("chat.prompts", [(3, 120, "claim", 0)])], 0)


@pytest.mark.parametrize(
    ("client", "error"),
    [(LOADING, GroupLoadInProgressError), (MOVED, NotCoordinatorForGroupError)],
    indirect=["client"],
    ids=["it loads the group", "it has lost the group"],
)
async def test_its_error_is_heard(client: AIOKafkaClient, error: type[KafkaError]) -> None:
    """A member would take its partitions over under number 1, from the log's beginning, and a view read all of it."""
    with pytest.raises(error):
        await coordinator(client)._do_fetch_commit_offsets([WHERE])
    admin = AIOKafkaAdminClient.__new__(AIOKafkaAdminClient)
    admin.__dict__.update(_client=client)
    with pytest.raises(error):
        await admin.list_consumer_group_offsets("g", 1, [WHERE])


@pytest.mark.parametrize("client", [COMMITTED], indirect=True)
async def test_what_it_does_tell_is_believed(client: AIOKafkaClient) -> None:
    found = await coordinator(client)._do_fetch_commit_offsets([WHERE])
    assert (found[WHERE].offset, found[WHERE].metadata) == (120, "claim")


@pytest.mark.parametrize("client", [SimpleNamespace(error_code=14)], indirect=True)
async def test_other_answers_are_left_to_who_asked(client: AIOKafkaClient) -> None:
    assert (await client.send(1, None)).error_code == 14


def test_every_client_is_mended_once() -> None:
    mend_answers()
    mend_answers()
    assert not hasattr(AIOKafkaClient.send.__wrapped__, "__wrapped__")
