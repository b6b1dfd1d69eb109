"""Kafka's log of commits: where a group's are, and what they say."""

from __future__ import annotations

import struct

import pytest
from aiokafka import TopicPartition

from consumers.history.main import group_of
from consumers.lag.commits import commits_partition, decode_commit
from consumers.lag.groups import expected
from consumers.moderation.main import GROUP as MODERATION
from consumers.orchestrator.main import GROUP as ORCHESTRATOR
from consumers.usage.names import APP
from parley.settings import ProtocolSettings
from parley.topics import load_topics


def text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


KEY = struct.pack(">h", 1) + text("worker-smol") + text("chat.turns") + struct.pack(">i", 7)
VALUE = struct.pack(">hq", 3, 1_234) + struct.pack(">i", -1) + text("{}") + struct.pack(">q", 99)


def test_a_commit() -> None:
    assert decode_commit(KEY, VALUE) == ("worker-smol", TopicPartition("chat.turns", 7), 1_234)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (KEY, None),
        (None, VALUE),
        (struct.pack(">h", 2) + text("worker-smol"), VALUE),
        (KEY[:9], VALUE),
        (KEY, b"\x00"),
        (b"\x00", VALUE),
    ],
    ids=["removed", "no key", "a group's own record", "cut key", "cut value", "one byte"],
)
def test_what_is_no_commit(key: bytes | None, value: bytes | None) -> None:
    assert decode_commit(key, value) is None


def test_the_partition_is_java_s_hash_of_the_name() -> None:
    """`"hello".hashCode()` is 99162322; of a hash below zero the absolute value, 0 for the lowest."""
    assert commits_partition("hello", 50) == 99_162_322 % 50
    assert commits_partition("polygenelubricants", 50) == 0  # its hash is -2^31
    assert commits_partition("worker-synthetic", 50) == 46


def test_the_names_are_those_of_the_roles() -> None:
    """Roles do not import each other, so the table of groups repeats their names."""
    topics = load_topics()
    names = [group.name for group in expected(topics, ProtocolSettings())]
    workers = [f"worker-{pool}" for pool in topics.pools]
    assert names == [MODERATION, ORCHESTRATOR, *workers, group_of("messages"), group_of("sessions"), APP]
