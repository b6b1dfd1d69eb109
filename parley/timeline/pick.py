"""Which records of a topic are wanted. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from parley.errors import ParleyError
from parley.log.ranges import Record
from parley.timeline.decode import session_of
from parley.timeline.fold import Entry


@dataclass(frozen=True, slots=True)
class Pick:
    """All of what is given must hold."""

    session: UUID | None = None
    response: str | None = None
    user: UUID | None = None
    types: frozenset[str] = frozenset()
    """Event types, or `dead letter`, `unreadable`, `tombstone`, `record`; empty: any."""

    def wants(self, record: Record, entry: Entry) -> bool:
        """Whether the entry is one of them."""
        if self.types and entry.kind not in self.types:
            return False
        if self.response is not None and entry.response != self.response:
            return False
        if self.user is not None and getattr(entry.event, "user", None) != self.user:
            return False
        return self.session is None or session_of(record, entry) == self.session.hex


class Where:
    """A jq program over entries as `--json` shows them; an entry is kept when it says neither false nor null.

    It sees no more than is shown: a filter that looks into what is hidden would show it, bit by bit.

    Raises:
        ParleyError: invalid_request: the program is none.
    """

    def __init__(self, program: str) -> None:
        import jq  # an eighth of a second, for those who ask

        try:
            self._program = jq.compile(program)
        except ValueError as error:
            raise ParleyError("invalid_request", f"--where is no jq program: {str(error).splitlines()[0]}") from None
        self.failed = 0
        """Entries on which it failed, and which are left out."""
        self.failure = ""
        """Of the first of them."""

    def keeps(self, shown: dict[str, Any]) -> bool:
        """Whether the program is for this entry."""
        try:
            first = next(iter(self._program.input_value(shown)), None)
        except ValueError as error:
            self.failed += 1
            self.failure = self.failure or str(error)
            return False
        return first is not None and first is not False


Test = Callable[[Record, Entry], bool]
