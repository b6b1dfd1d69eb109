"""Running a role's own code where nobody can be hurt: the same topics under other names, and marked records.

Roles do everything through a few ports: a group gives them records, a producer takes what they say. A shadow swaps
those. Its producer can't name a live topic, since whatever name it is given comes out as `replay.ID.name`; its group is
`replay.ID.name` too; and each record carries the replay's id, which live roles, views and other replays refuse.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from parley.errors import ParleyError
from parley.log.held import Held, Role
from parley.log.ranges import Record
from producers.replay.events import response_of
from schemas.wire import REPLAY_HEADER, BadRecord, Headers, header

PREFIX = "replay."
SOURCE_HEADER = "x-replay-source"
"""On all that a replay writes: the live record that it comes from, as chat.prompts-3@120."""
INPUTS_HEADER = "x-replay-inputs"
"""On what a role is fed: the fingerprint of the policy, model or pool that it is fed for."""
_MARKS = frozenset({REPLAY_HEADER, SOURCE_HEADER, INPUTS_HEADER})
_HOPS = frozenset({"traceparent", "tracestate", "baggage"})
"""Headers of a hop: they would tie what a replay does to what happened then."""


@dataclass(frozen=True, slots=True)
class Shadow:
    """The names and marks of one replay."""

    id: str
    sources: dict[str, str] = field(default_factory=dict)
    """Of each response that the shadow has been given: where its live record lies."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,39}", self.id):
            raise ParleyError(
                "invalid_request", f"{self.id!r} names no replay: small letters, digits and hyphens, 40 at most"
            )

    @property
    def prefix(self) -> str:
        """What all names of this replay begin with, and no other's do."""
        return f"{PREFIX}{self.id}."

    def name(self, live: str) -> str:
        """The replay's own name in the place of a live topic's or group's; of a name of its own, that name."""
        return live if live.startswith(self.prefix) else self.prefix + live

    def owns(self, headers: Headers) -> bool:
        """A record with these headers was written by this replay."""
        return header(headers, REPLAY_HEADER) == self.id

    def marked(self, headers: Headers) -> Headers:
        """Headers of what this replay writes."""
        pairs = [pair for pair in headers if pair[0] != REPLAY_HEADER and pair[0] not in _HOPS]
        source = self.sources.get(header(headers, "response") or "")
        if source is not None and header(headers, SOURCE_HEADER) is None:
            pairs.append((SOURCE_HEADER, source.encode()))
        return (*pairs, (REPLAY_HEADER, self.id.encode()))

    def as_live(self, record: Record) -> Record:
        """One of the replay's own records as the role would meet it live."""
        source, response = header(record.headers, SOURCE_HEADER), response_of(record)
        if source is not None and response is not None:
            self.sources[response] = source
        pairs = tuple(pair for pair in record.headers if pair[0] not in _MARKS)
        return replace(record, topic=record.topic.removeprefix(self.prefix), headers=pairs)


class ShadowRole:
    """A production role, given the replay's own records as if they were live, and nothing else."""

    def __init__(self, role: Role, shadow: Shadow) -> None:
        self._role = role
        self._shadow = shadow

    async def take(self, taken: list[Held]) -> None:
        """As the role does."""
        await self._role.take(taken)

    def record(self, held: Held, record: Record) -> None:
        """As the role does; what another hand wrote into the replay's topic is let go.

        Raises:
            BadRecord: as the role.
        """
        if self._shadow.owns(tuple(record.headers)):
            self._role.record(held, self._shadow.as_live(record))
        else:
            held.end(record.offset)

    async def give_up(self, held: Held, record: Record, error: BadRecord) -> None:
        """As the role does."""
        await self._role.give_up(held, self._shadow.as_live(record), error)

    def drop(self, held: Held) -> None:
        """As the role does."""
        self._role.drop(held)
