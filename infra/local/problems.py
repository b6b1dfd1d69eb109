"""The one error of this package."""

from __future__ import annotations


class StackError(Exception):
    """Parley cannot start or go on here. The message is one sentence that says what is wrong and what to do."""
