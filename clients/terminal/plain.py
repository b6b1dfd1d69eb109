"""Text from elsewhere, made safe to write to a terminal. Pure."""

from __future__ import annotations

import re

# C0 but newline and tab, DEL and C1 move the cursor, change colours, set titles or type on the user's behalf.
# Directional overrides and isolates show a line in another order than it has. Surrogates can't be written.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def plain(text: str) -> str:
    r"""The text with control characters shown as escapes: ESC becomes `\x1b`, a right-to-left override `\u202e`."""
    return _UNSAFE.sub(lambda found: _escape(found[0]), text)


def one_line(text: str, width: int) -> str:
    """The beginning of a text, on one line of at most so many characters."""
    flat = " ".join(plain(text[: 4 * width]).split())
    return flat if len(flat) <= width else flat[: width - 1] + "…"


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
