"""How a process is a member of a group, whatever it does with its partitions."""

from __future__ import annotations

from typing import Any

from parley.log.answers import mend_answers
from parley.settings import Settings


def member_options(settings: Settings, group: str) -> dict[str, Any]:
    """Arguments of an aiokafka consumer that joins `group`: offsets are committed by hand, and nothing is skipped."""
    mend_answers()
    kafka = settings.kafka
    return {
        "bootstrap_servers": kafka.bootstrap,
        "group_id": group,
        "group_instance_id": settings.instance,
        "enable_auto_commit": False,
        "auto_offset_reset": "earliest",
        "session_timeout_ms": kafka.session_timeout_ms,
        "heartbeat_interval_ms": kafka.heartbeat_interval_ms,
        "rebalance_timeout_ms": kafka.rebalance_timeout_ms,
        "max_poll_interval_ms": kafka.max_poll_interval_ms,
        "request_timeout_ms": kafka.request_timeout_ms,
        "retry_backoff_ms": kafka.retry_backoff_ms,
    }
