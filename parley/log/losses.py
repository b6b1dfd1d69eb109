"""When records that can't be used are no bad records but a bad deployment (protocol.md, section 8). Pure.

One record in a thousand that nobody can read is given up, and the rest goes on. A consumer that can read hardly any
would empty its topic into the dead-letter queue: it has to stop and say so.
"""

from __future__ import annotations

from collections import deque

OF = 100
"""Records that are looked back on."""
LIMIT = 20
"""Losses among those; with one more the partition stands still. Twenty in a row are among them."""


class Losses:
    """Which of a partition's last hundred records were given up, under one holder."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: deque[bool] = deque(maxlen=OF - 1)

    def kept(self) -> None:
        """A record was used."""
        self._last.append(False)

    def lost(self) -> None:
        """A record was given up."""
        self._last.append(True)

    @property
    def too_many(self) -> bool:
        """One more may not be given up."""
        return sum(self._last) >= LIMIT
