"""Which partition a key belongs to, as every Kafka client computes it."""

from __future__ import annotations

from aiokafka.partitioner import murmur2


def partition_of(key: bytes, count: int) -> int:
    """Kafka's default partitioner: murmur2 of the key over `count` partitions."""
    return int((murmur2(key) & 0x7FFFFFFF) % count)


def session_key(session_hex: str) -> bytes:
    """The Kafka key of everything that belongs to a session: its UUID in hex."""
    return session_hex.encode()
