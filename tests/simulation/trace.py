"""A schedule as lines to read."""

from __future__ import annotations

import sys
from collections.abc import Callable

import orjson
from aiokafka.structs import ConsumerRecord

from tests.simulation.cluster import Record


def tracer() -> Callable[[float, object], None]:
    """Prints each record, commit and incident with its virtual time."""

    def say(at: float, what: object) -> None:
        sys.stdout.write(f"{at:9.3f}  {_record(what) if isinstance(what, ConsumerRecord) else what}\n")

    return say


def _record(record: Record) -> str:
    where = f"{record.topic}-{record.partition}@{record.offset}"
    value = orjson.loads(record.value or b"null")
    return f"{where}  " + "; ".join(_event(event) for event in (value if isinstance(value, list) else [value]))


SHOWN = (
    "turn",
    "pool",
    "why",
    "dispatch",
    "epoch",
    "writer",
    "seq",
    "text",
    "kind",
    "status",
    "decision",
    "waiting",
    "duplicate_of",
    "failure",
)


def _event(event: dict[str, object]) -> str:
    about = [str(event.get("response", ""))[-6:]]
    about += [f"{name}={event[name]}" for name in SHOWN if event.get(name) not in (None, False, ())]
    return f"{event.get('type')} {' '.join(about)}"
