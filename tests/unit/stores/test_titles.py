"""Titles from the first prompt."""

from __future__ import annotations

from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.stores.sessions import TITLE_LIMIT, title_from
from schemas.base import Item, Text

ID = "msg_" + "A" * 59


def item(text: str, role: Literal["user", "assistant", "system", "developer"] = "user") -> Item:
    return Item(id=ID, role=role, parts=(Text(text=text),))


@pytest.mark.parametrize(
    ("said", "title"),
    [
        ("Why is the sky blue?", "Why is the sky blue?"),
        ("  two\n\n lines\tand  gaps ", "two lines and gaps"),
        ("x" * 60, "x" * 60),
        ("x" * 61, "x" * 59 + "…"),
        ("words " * 12, "words " * 9 + "words…"),
        ("a\0b", "a�b"),
        (" \n ", None),
    ],
)
def test_a_title_is_the_prompt_on_one_line_cut_at_a_word(said: str, title: str | None) -> None:
    assert title_from([item(said)]) == title


def test_only_what_the_user_said_makes_a_title() -> None:
    assert title_from([item("Be brief.", "system"), item("  "), item("Hello")]) == "Hello"
    assert title_from([item("Be brief.", "developer")]) is None


@given(st.text(max_size=200))
def test_no_title_is_longer_than_the_limit_or_has_white_space_at_its_ends(said: str) -> None:
    title = title_from([item(said)])
    if title is not None:
        assert 0 < len(title) <= TITLE_LIMIT
        assert title == title.strip()
