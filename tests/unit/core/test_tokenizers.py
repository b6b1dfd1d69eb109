"""Counting tokens as a pool's engine would."""

from __future__ import annotations

from pathlib import Path

import pytest

from parley.settings import ROOT
from parley.tokenizers import Tokenizer, Words, load_tokenizer


def test_a_word_is_a_token_of_the_synthetic_engine() -> None:
    assert Words().count("  one two\nthree ") == 3
    assert Words().count("") == 0


def test_a_real_one_counts_special_tokens_as_one_each(smollm2: Tokenizer) -> None:
    assert smollm2.count("<|im_start|>") == 1
    assert smollm2.count("<|im_end|>\n") == 2
    assert smollm2.count("<|im_end |>") > 1
    assert smollm2.count("") == 0


def test_it_adds_no_tokens_of_its_own(smollm2: Tokenizer) -> None:
    assert smollm2.count("Hello") + smollm2.count(" world") == smollm2.count("Hello world")


def test_a_tokenizer_is_loaded_once() -> None:
    directory = ROOT / ".cache" / "tokenizers"
    assert load_tokenizer("words", directory) is load_tokenizer("words", directory)


def test_a_missing_one_says_how_to_make_it(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="make setup"):
        load_tokenizer("smollm2", tmp_path)
