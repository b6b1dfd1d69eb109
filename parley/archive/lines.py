"""A record as a line of JSON, and back: byte for byte, with text left readable."""

from __future__ import annotations

import base64
from typing import Any

import orjson
from aiokafka.structs import ConsumerRecord

from parley.log.ranges import Record

LOG_APPEND_TIME = 1
"""Kafka's timestamp type of every topic here."""


def line_of(record: Record) -> bytes:
    """One line, with its end."""
    return orjson.dumps(
        {
            "partition": record.partition,
            "offset": record.offset,
            "at": record.timestamp,
            "key": _text(record.key),
            "headers": [[name, _text(value)] for name, value in record.headers],
            "value": _text(record.value),
        },
        option=orjson.OPT_APPEND_NEWLINE,
    )


def record_of(topic: str, line: bytes) -> Record:
    """The record of a line."""
    told = orjson.loads(line)
    return ConsumerRecord(
        topic=topic,
        partition=told["partition"],
        offset=told["offset"],
        timestamp=told["at"],
        timestamp_type=LOG_APPEND_TIME,
        key=_bytes(told["key"]),
        value=_bytes(told["value"]),
        checksum=None,
        serialized_key_size=0,
        serialized_value_size=0,
        headers=tuple((name, _bytes(value)) for name, value in told["headers"]),
    )


def _text(value: bytes | None) -> str | dict[str, str] | None:
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def _bytes(told: Any) -> bytes | None:
    if told is None:
        return None
    return told.encode() if isinstance(told, str) else base64.b64decode(told["base64"])
