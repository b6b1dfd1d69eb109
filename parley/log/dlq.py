"""The dead-letter queue: a record that can't be processed, as it was, with where it came from and why.

Whoever gives up on a record that belongs to a turn has ended the turn first (protocol.md, section 8).
"""

from __future__ import annotations

from aiokafka.structs import ConsumerRecord

from parley.log.producer import Producer
from parley.topics import DLQ

PREFIX = "x-dlq-"


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
    headers = tuple((PREFIX + name, str(value).encode()) for name, value in about.items())
    return await producer.send(
        DLQ, record.value, key=record.key, partition=record.partition % partitions, headers=(*record.headers, *headers)
    )
