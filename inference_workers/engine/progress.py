"""From what an engine says to what is new in it. Pure: bytes in, text out."""

from __future__ import annotations

import codecs
from abc import ABC, abstractmethod

from inference_workers.engine.errors import EngineError

REPLACEMENT = "\ufffd"
"""What a detokeniser shows for bytes that are no character, or none yet."""
MOST_HELD = 3
"""A character of UTF-8 has four bytes at most, so at most three of them can be waiting for the rest."""


class Progress(ABC):
    """The new text in each response of one stream. A pool declares which kind it speaks; it is never guessed."""

    @abstractmethod
    def advance(self, said: bytes, over: bool) -> str:
        """What may be released now that it may not have been before.

        :param said: the text of a response.
        :param over: it is the last one.
        :raises EngineError: text that was released before has changed.
        """


class CumulativeProgress(Progress):
    """Every response holds the whole text so far, as TensorRT-LLM's do. Responses may be skipped.

    Half a character at the end shows as U+FFFD: those are held back, until they have become a character, or text
    after them shows that they will not, or the answer is over.
    """

    def __init__(self) -> None:
        self._released = ""

    def advance(self, said: bytes, over: bool) -> str:
        text = said.decode(errors="replace")
        if not over and text.endswith(REPLACEMENT):
            text = _without_half_character(text)
            # A tokenizer of single bytes shows even the whole characters before a half one as U+FFFD.
            if self._released.startswith(text.rstrip(REPLACEMENT)):
                return ""
        if not text.startswith(self._released):
            raise EngineError("the engine changed text that it had sent")
        new = text[len(self._released) :]
        self._released = text
        return new


class PieceProgress(Progress):
    """Every response holds only what is new; a character may be spread over several."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def advance(self, said: bytes, over: bool) -> str:
        return self._decoder.decode(said, final=over)


def _without_half_character(text: str) -> str:
    whole = len(text.rstrip(REPLACEMENT))
    return text[: max(whole, len(text) - MOST_HELD)]
