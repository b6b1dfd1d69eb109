"""Text from models and other people can't act on the terminal."""

from __future__ import annotations

import pytest

from clients.terminal.plain import one_line, plain


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b]0;title\x07", r"\x1b[31mred\x1b]0;title\x07"),
        ("over\rwritten\x08", r"over\x0dwritten\x08"),
        ("\x9b2J", r"\x9b2J"),
        ("abc\u202edef", r"abc\u202edef"),
        ("\ud83d alone", r"\ud83d alone"),
        ("tab\tand\nline, 日本語 👋 é", "tab\tand\nline, 日本語 👋 é"),
    ],
)
def test_control_characters_are_shown_not_obeyed(text: str, shown: str) -> None:
    assert plain(text) == shown
    shown.encode()


def test_a_title_is_one_short_line() -> None:
    assert one_line("a\n b\x1b" + "c" * 100, 12) == r"a b\x1bccccc"[:11] + "…"
