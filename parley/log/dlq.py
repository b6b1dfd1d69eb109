"""The dead-letter queue: a record that can't be processed, as it was, with where it came from and why.

Whoever gives up on a record that belongs to a turn has ended the turn first (protocol.md, section 8).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from aiokafka.structs import ConsumerRecord
from prometheus_client import Counter

from parley.errors import ParleyError
from parley.log.producer import Producer
from parley.topics import DLQ

log = logging.getLogger(__name__)

PREFIX = "x-dlq-"
NOTHING = b""
UNREADABLE = Counter(
    "parley_unreadable_records_total",
    "Records that could not be read and were passed over by a reader whose business they are not to keep.",
    ("topic",),
)

LETTERS = Counter("parley_dead_letters_total", "Records that a group gave up.", ("group",))


def unreadable(record: ConsumerRecord[bytes | None, bytes | None], error: BaseException) -> None:
    """Say and count that a record is passed over: a verdict, a cancel, an event of a log that is only folded."""
    log.warning("%s-%d offset %d can't be read: %s", record.topic, record.partition, record.offset, error)
    # Session topics are as many as conversations.
    topic = "session topics" if record.topic.startswith("chat.tokens.s.") else record.topic
    UNREADABLE.labels(topic).inc()


async def dead_letter(
    producer: Producer,
    record: ConsumerRecord[bytes | None, bytes | None],
    *,
    group: str,
    error: BaseException,
    partitions: int,
    attempts: int = 1,
) -> int:
    """Write the original key, value and headers to chat.dlq and wait until it is in the log; gives its offset.

    A record of nearly the greatest size leaves no room for what is said of it: then that alone is written. One without
    key and value, which aiokafka sends nowhere, gets an empty value.

    Raises:
        ParleyError: log_unavailable: the record must not be let go.
    """
    about = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "group": group,
        "error": type(error).__name__,
        "reason": str(error)[:500],
        "attempts": attempts,
    }
    partition = record.partition % partitions
    try:
        headers = (*record.headers, *_headers(about))
        value = NOTHING if record.key is None and record.value is None else record.value
        offset = await producer.send(DLQ, value, key=record.key, partition=partition, headers=headers)
    except ParleyError as error_of_send:
        if error_of_send.kind.code != "request_too_large":
            raise
        about["reason"] = f"{about['reason']} (too large to be kept here: it is where it was until retention takes it)"
        offset = await producer.send(DLQ, NOTHING, key=None, partition=partition, headers=_headers(about))
    LETTERS.labels(group).inc()
    return offset


def _headers(about: Mapping[str, object]) -> tuple[tuple[str, bytes], ...]:
    return tuple((PREFIX + name, str(value).encode()) for name, value in about.items())
