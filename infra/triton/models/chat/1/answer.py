"""The text of an answer that grows by token ids. Pure: no engine, no Triton."""

from collections.abc import Callable, Sequence


class Answer:
    """Token ids so far, and the text that may be shown of them.

    All ids are decoded together, every time: a token alone loses the space before it in some tokenizers, and half
    a character in all of them. Half a character at the end shows as U+FFFD until its other half comes; whoever
    reads a stream holds it back. (400 ids decode in 45 µs.)
    """

    def __init__(self, decode: Callable[[list[int]], str], stops: Sequence[str] = ()) -> None:
        """:raises ValueError: an empty stop string."""
        if "" in stops:
            raise ValueError("sampling_param_stop holds an empty string")
        self._decode = decode
        self._stops = stops
        self.ids: list[int] = []

    def text(self, over: bool) -> tuple[str, str | None]:
        """What may be shown, and the stop string that ends it, if one does.

        :param over: no more ids come, so nothing is held back.
        """
        text = self._decode(self.ids) if self.ids else ""
        found = min(((text.index(stop), stop) for stop in self._stops if stop in text), default=None)
        if found:
            at, stop = found
            return text[:at], stop
        return (text if over else text[: len(text) - self._held(text)]), None

    def _held(self, text: str) -> int:
        """The number of characters at the end that may begin a stop string."""
        starts = (n for stop in self._stops for n in range(1, len(stop)) if text.endswith(stop[:n]))
        return max(starts, default=0)
