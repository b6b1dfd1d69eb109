"""What is written where: answers to standard output, everything about them to standard error."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.status import Status
from rich.table import Table
from rich.text import Text

from clients.terminal.plain import one_line, plain


class Screen:
    """A terminal, or the two pipes in its place: then answers are all that standard output holds."""

    def __init__(self, out: Console | None = None, notes: Console | None = None) -> None:
        self._out = out or Console(highlight=False, markup=False, emoji=False)
        self._notes = notes or Console(stderr=True, highlight=False, markup=False, emoji=False)
        self._status: Status | None = None
        self._mid_line = False

    @property
    def is_terminal(self) -> bool:
        """A person types and reads."""
        return sys.stdin.isatty() and self._out.is_terminal

    def piece(self, text: str) -> None:
        """A piece of an answer, at once and as it is: the terminal breaks the lines."""
        if text:
            self.busy(None)
            self._out.out(plain(text), end="", highlight=False)
            self._mid_line = not text.endswith("\n")

    def line_end(self) -> None:
        """Begin a new line, unless one has begun."""
        if self._mid_line:
            self._out.out("", highlight=False)
            self._mid_line = False

    def said(self, text: str) -> None:
        """What the user said earlier."""
        self.line_end()
        self._out.print(Text(f"› {plain(text)}", style="bold"))

    def note(self, text: str, style: str = "dim") -> None:
        """Something about the chat, on a line of its own."""
        self.busy(None)
        if self._out.is_terminal:
            self.line_end()
        self._notes.print(Text(plain(text), style=style), soft_wrap=True)

    def error(self, text: str) -> None:
        """What went wrong."""
        self.note(text, style="red")

    def conversations(self, rows: Sequence[tuple[str, str]]) -> None:
        """Titles and times, numbered from 1."""
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
        table.add_column(justify="right")
        table.add_column(overflow="ellipsis", no_wrap=True)
        table.add_column(style="dim", no_wrap=True)
        for number, (title, when) in enumerate(rows, 1):
            table.add_row(str(number), Text(one_line(title, 60)), when)
        self._out.print(table)

    def busy(self, doing: str | None) -> None:
        """Say what is being waited for, while nothing of an answer is there; None: nothing."""
        if self._status is not None:
            self._status.stop()
            self._status = None
        if doing is not None and self._notes.is_terminal and not self._mid_line:
            self._status = self._notes.status(Text(doing, style="dim"), spinner="dots")
            self._status.start()


@contextlib.contextmanager
def keys_unseen() -> Iterator[None]:
    """While an answer comes, what is typed does not appear in it; it is there at the next prompt."""
    if not sys.stdin.isatty():
        yield
        return
    import termios

    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    silent = before.copy()
    silent[3] &= ~termios.ECHO
    termios.tcsetattr(terminal, termios.TCSADRAIN, silent)
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
