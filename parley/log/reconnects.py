"""aiokafka (0.14) tries again without end and nearly without pause: it lacks two of the usual client's waits.

Between two attempts to connect to one node (`reconnect.backoff.ms`, up to `reconnect.backoff.max.ms`), and between two
questions for metadata (`retry.backoff.ms`). While brokers are away each client of a process knocked at each of them 20
times a second, for each of its callers; while a partition has no leader, or a topic that is read is deleted, a client
asked for metadata as fast as it was answered.
"""

from __future__ import annotations

import asyncio
import functools
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from aiokafka.client import AIOKafkaClient, ConnectionGroup

LONGEST_S = 0.5
"""Between two attempts to connect to a node: how long a broker that is back may wait for its clients."""
JITTER = 0.2

Getting = Callable[..., Awaitable[Any]]


@dataclass(slots=True)
class _Knocking:
    """Attempts at one node."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    failed: int = 0
    """In a row."""
    not_before: float = 0.0


def mend_reconnects() -> None:
    """Have aiokafka wait, in this process, from now on. Calling it again changes nothing."""
    if not hasattr(AIOKafkaClient._get_conn, "__wrapped__"):
        AIOKafkaClient._get_conn = patient(AIOKafkaClient._get_conn)
        AIOKafkaClient._metadata_update = unhurried(AIOKafkaClient._metadata_update)


def patient(get: Getting) -> Getting:
    """A client's `_get_conn` that connects to a node once for all its callers, and pauses after it could not.

    The pause doubles from the client's own backoff to LONGEST_S. Meanwhile the node is not ready (None).
    """
    knocking: WeakKeyDictionary[AIOKafkaClient, defaultdict[Any, _Knocking]] = WeakKeyDictionary()

    @functools.wraps(get)
    async def getting(self: Any, node_id: Any, *, group: Any = ConnectionGroup.DEFAULT, **how: Any) -> Any:
        conn = self._conns.get((node_id, group))
        if conn is not None and conn.connected():
            return conn
        node = knocking.setdefault(self, defaultdict(_Knocking))[node_id, group]
        now = asyncio.get_running_loop().time
        async with node.lock:
            if now() < node.not_before:
                return None
            conn = await get(self, node_id, group=group, **how)
            if conn is not None or self.cluster.broker_metadata(node_id) is None:  # of one unknown nobody has asked
                node.failed = 0
                return conn
            pause = min(LONGEST_S, self._retry_backoff * 2**node.failed)
            node.failed = min(node.failed + 1, 16)
            node.not_before = now() + pause * random.uniform(1 - JITTER, 1 + JITTER)
            return None

    return getting


def unhurried(update: Getting) -> Getting:
    """A client's `_metadata_update` that pauses for the client's own backoff before it asks for the same once more."""
    asked: WeakKeyDictionary[AIOKafkaClient, tuple[frozenset[str], float]] = WeakKeyDictionary()

    @functools.wraps(update)
    async def updating(self: Any, cluster: Any, topics: Any) -> Any:
        now, wanted = asyncio.get_running_loop().time, frozenset(topics or ())
        before, when = asked.get(self, (None, 0.0))
        if wanted == before:
            await asyncio.sleep(when + self._retry_backoff - now())  # less than nothing is no pause
        try:
            return await update(self, cluster, topics)
        finally:
            asked[self] = wanted, now()

    return updating
