"""Counting tokens as a pool's engine would."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Protocol

from tokenizers import Tokenizer as Encoder


class Tokenizer(Protocol):
    """Counts the tokens of a text."""

    def count(self, text: str) -> int:
        """Tokens in `text`; special tokens in it count as one each."""


class Words:
    """The synthetic engine's: a word is a token."""

    def count(self, text: str) -> int:
        """Words in `text`."""
        return len(text.split())


class Encoded:
    """A tokenizer in Hugging Face's JSON format."""

    def __init__(self, path: Path) -> None:
        self._encoder = Encoder.from_file(str(path))
        self._encoder.no_truncation()
        self._encoder.no_padding()
        self.count = lru_cache(maxsize=4096)(self._count)  # turns of a session are counted again with each prompt

    def _count(self, text: str) -> int:
        return len(self._encoder.encode(text, add_special_tokens=False))


@lru_cache(maxsize=16)
def load_tokenizer(name: str, directory: Path) -> Tokenizer:
    """The tokenizer that a pool names.

    Raises:
        FileNotFoundError: there is no such file; the message says how to make it.
    """
    if name == "words":
        return Words()
    path = directory / f"{name}.json"
    if not path.exists():
        raise FileNotFoundError(f"the tokenizer {path} is missing: `make setup` exports it from the model")
    return Encoded(path)
