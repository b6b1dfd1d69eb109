"""Records and manifests for tests of replays: everything that a test does not name has a value that does not matter."""

from __future__ import annotations

from typing import Any

from aiokafka.structs import ConsumerRecord
from pydantic import BaseModel

from parley.log.partitions import session_key
from parley.log.ranges import Record
from parley.topics import PROMPTS
from producers.replay.manifest import Manifest
from producers.replay.prompts import Prompt
from producers.replay.slices import Slice
from schemas.prompts import PromptAccepted
from schemas.wire import Headers, encode, headers
from tests.unit.core.core_events import ROUTE, SESSION, USER, response, said


def record(
    value: BaseModel | bytes, topic: str = PROMPTS, offset: int = 0, key: bytes | None = None, more: Headers = ()
) -> Record:
    """A record of partition 3, with the headers that roles give it."""
    data = value if isinstance(value, bytes) else encode(value)
    about = more if isinstance(value, bytes) else (*_headers(value), *more)
    key = session_key(SESSION.hex) if key is None else key
    return ConsumerRecord(topic, 3, offset, 1_000 + offset, 1, key, data, None, len(key), len(data), about)


def prompt(number: int = 1, text: str = "one", **fields: Any) -> PromptAccepted:
    """The prompt of turn `number`."""
    given: dict[str, Any] = {
        "response": response(number),
        "session": SESSION,
        "user": USER,
        "tier": "free",
        "accepted_at": 5,
        "model": "synthetic",
        "items": (said(text, of=response(number)),),
        "new_session": number == 1,
        "route": ROUTE,
    }
    return PromptAccepted(**given | fields)


def taken(*events: PromptAccepted) -> list[Prompt]:
    """Prompts with their records."""
    return [Prompt(event, record(event, offset=n)) for n, event in enumerate(events)]


def manifest(**fields: Any) -> Manifest:
    given: dict[str, Any] = {
        "id": "r1",
        "stage": "moderation",
        "operator": "ada@desk",
        "code": "0",
        "began_at": 1,
        "slice": Slice(topic=PROMPTS, spans={3: (0, 9)}),
    }
    return Manifest(**given | fields)


def _headers(event: BaseModel) -> Headers:
    fields = event.model_dump()
    return headers(fields["type"], response=fields.get("response"))
