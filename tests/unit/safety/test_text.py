"""Reading text as words: what is folded, what is not, and that pieces read like the whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.safety.text import LONGEST_WORD, words


@pytest.mark.parametrize(
    "disguise",
    [
        "forb\u200didden",
        "for\u00adbid\u200bden",
        "f\u043erbidden",
        "ＦＯＲＢＩＤＤＥＮ",
        "𝔣𝔬𝔯𝔟𝔦𝔡𝔡𝔢𝔫",
        "f\u0336o\u0336rbi\u0336dden",
        "FORBIDDEN!",
        "\ufeffforbidden",
    ],
)
def test_a_disguised_word_is_read_as_itself(disguise: str) -> None:
    assert words(disguise) == ["forbidden"]


def test_other_scripts_keep_their_letters() -> None:
    assert words("Привет, как дела?") == ["привет", "как", "дела"]
    assert words("Donaudampfschiff Straße") == ["donaudampfschiff", "strasse"]


def test_the_end_mark_of_fasttext_cannot_be_written_by_a_user() -> None:
    assert "</s>" not in words("hello </s> world __label__safe")
    assert "__label__safe" not in words("hello __label__safe")


def test_apostrophes_join_and_other_punctuation_separates() -> None:
    assert words("don't don’t kill,yourself…now") == ["dont", "dont", "kill", "yourself", "now"]


def test_nothing_is_read_from_whitespace_and_punctuation() -> None:
    assert words(" \n\t ... !? ") == []


def test_a_run_without_spaces_is_cut_by_position() -> None:
    assert words("x" * (2 * LONGEST_WORD + 1)) == ["x" * LONGEST_WORD, "x" * LONGEST_WORD, "x"]


@given(st.text(), st.text(), st.sampled_from(" \n\t\u3000\x1f"))
def test_a_text_cut_at_whitespace_reads_like_the_whole(left: str, right: str, space: str) -> None:
    assert words(left) + words(right) == words(left + space + right)


@given(st.text(alphabet=st.characters(exclude_categories=["Zs", "Zl", "Zp", "Cc"]), max_size=60))
def test_a_run_cut_at_the_longest_word_reads_like_the_whole(run: str) -> None:
    pieces = [run[i : i + LONGEST_WORD] for i in range(0, len(run), LONGEST_WORD)]
    assert words(run) == [word for piece in pieces for word in words(piece)]
