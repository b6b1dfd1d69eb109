"""Stop strings, cut from text that arrives in pieces of any size. Pure."""

from __future__ import annotations

from collections.abc import Iterable


class StopStrings:
    """Releases text up to the first stop string, and holds back what may be the beginning of one.

    The stop string that is complete first wins, of two that end together the longer: so the result does not depend
    on how the text was cut into pieces. What was released before the answer was taken over (``prior``) counts for
    recognising a stop string, and is never taken back.

    States: open, until a stop string is complete or `finish` is called; then nothing more is released.

    :raises ValueError: an empty stop string.
    """

    def __init__(self, stops: Iterable[str], prior: str = "") -> None:
        self._stops = tuple(stops)
        if "" in self._stops:
            raise ValueError("a stop string is empty")
        self._reach = max((len(stop) for stop in self._stops), default=1) - 1
        self._tail = prior[len(prior) - self._reach :] if self._reach < len(prior) else prior
        self._held = ""
        self._matched: str | None = None

    @property
    def matched(self) -> str | None:
        """The stop string that ended the text."""
        return self._matched

    def feed(self, new: str) -> str:
        """What may be released now that ``new`` has arrived."""
        if self._matched is not None:
            return ""
        if not self._stops:
            return new
        text = self._tail + self._held + new
        released = len(self._tail)
        if found := self._first_match(text, unseen=released + len(self._held)):
            start, self._matched = found
            self._held = ""
            return text[released : max(start, released)]
        keep = max(released, len(text) - self._beginning(text))
        self._held = text[keep:]
        self._tail = text[max(0, keep - self._reach) : keep]
        return text[released:keep]

    def finish(self) -> str:
        """What was still held back, when no more text comes."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, text: str, unseen: int) -> tuple[int, str] | None:
        """Where the first stop string to be complete begins; one that ends before ``unseen`` was seen before."""
        best: tuple[int, int, str] | None = None
        for stop in self._stops:
            start = text.find(stop, max(0, unseen - len(stop) + 1))
            if start >= 0 and (best is None or (start + len(stop), start) < best[:2]):
                best = (start + len(stop), start, stop)
        return best[1:] if best else None

    def _beginning(self, text: str) -> int:
        """The length of the longest end of the text that begins a stop string."""
        lengths = (n for stop in self._stops for n in range(1, len(stop)) if text.endswith(stop[:n]))
        return max(lengths, default=0)
