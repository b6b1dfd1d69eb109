"""Client libraries say the same thing again and again while a server is away: once in a while is enough.

The roles say themselves what it means for them; what a library adds is one line now and then, without its stack.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection

EVERY_S = 10.0
"""From one line of a kind to the next."""
KINDS = 1_000
"""Kinds of lines that are remembered; a library that puts figures into them must not fill the memory."""


class Seldom(logging.Filter):
    """Lets one line of a kind pass in `every_s` seconds, with the number of those that were left out before it.

    A kind is a logger and a message before its figures are filled in. Other loggers than those named, and their
    children, say what they like.
    """

    def __init__(
        self, loggers: Collection[str], every_s: float = EVERY_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__()
        self._loggers = frozenset(loggers)
        self._every_s = every_s
        self._clock = clock
        self._said: dict[tuple[str, str], float] = {}
        self._left_out: dict[tuple[str, str], int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """False: it has been said just now."""
        if record.name.split(".", 1)[0] not in self._loggers:
            return True
        kind, now = (record.name, str(record.msg)), self._clock()
        if now - self._said.get(kind, -self._every_s) < self._every_s:
            self._left_out[kind] = self._left_out.get(kind, 0) + 1
            return False
        if len(self._said) >= KINDS:
            self._said.clear()
            self._left_out.clear()
        self._said[kind] = now
        self._in_one_line(record, self._left_out.pop(kind, 0))
        return True

    @staticmethod
    def _in_one_line(record: logging.LogRecord, left_out: int) -> None:
        line = record.getMessage().strip().split("\n", 1)[0]
        if record.exc_info is not None and record.exc_info[1] is not None:
            line = f"{line} {record.exc_info[1]!r}"
        record.msg = f"{line} (and {left_out} times before)" if left_out else line
        record.args = record.exc_info = record.exc_text = record.stack_info = None
