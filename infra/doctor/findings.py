"""What a check found: how bad it is, and what to do about it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from parley.settings import Settings


class Level(IntEnum):
    """How bad it is. Worse is greater."""

    OK = 0
    WARN = 1
    """It works, but not as it should, or can't be told from here."""
    FAIL = 2
    """Users notice, or will."""


EXIT_CODES = {Level.OK: 0, Level.WARN: 3, Level.FAIL: 5}
"""For scripts, as `parley lag --check`: 1 and 2 are errors of the command itself."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    check: str
    level: Level
    found: str
    todo: str = ""
    """What to do; empty when all is well."""


Check = Callable[[Settings], Awaitable[list[Finding]]]
"""Looks at one part of the stack. A ParleyError of it is a failure of that part, not of the command."""


def ok(check: str, found: str) -> Finding:
    """All is well."""
    return Finding(check, Level.OK, found)


def warn(check: str, found: str, todo: str) -> Finding:
    """Something to look at."""
    return Finding(check, Level.WARN, found, todo)


def fail(check: str, found: str, todo: str) -> Finding:
    """Something to mend."""
    return Finding(check, Level.FAIL, found, todo)


def exit_code(findings: Iterable[Finding]) -> int:
    """Of the worst."""
    return EXIT_CODES[max((finding.level for finding in findings), default=Level.OK)]


def as_json(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    """For scripts."""
    return [
        {"check": f.check, "level": f.level.name.lower(), "found": f.found, "todo": f.todo or None} for f in findings
    ]
