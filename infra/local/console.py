"""Many processes on one terminal: every line says whose it is."""

from __future__ import annotations

import os
import zlib
from typing import TextIO

RESET = "\x1b[0m"
# Readable on dark and on light grounds.
COLOURS = ("\x1b[36m", "\x1b[32m", "\x1b[33m", "\x1b[35m", "\x1b[34m", "\x1b[96m", "\x1b[92m", "\x1b[95m")

# A line without an end is passed on in pieces of this size.
LONGEST_LINE = 16 << 10


class Lines:
    """Cuts a stream of bytes into lines."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[str]:
        """The lines that `data` completes, without their ends."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        while len(self._rest) > LONGEST_LINE:
            lines.append(self._rest[:LONGEST_LINE])
            self._rest = self._rest[LONGEST_LINE:]
        return [readable(line) for line in lines]

    def end(self) -> list[str]:
        """What is left when the stream has ended."""
        rest, self._rest = self._rest, b""
        return [readable(rest)] if rest else []


def readable(line: bytes) -> str:
    return line.rstrip(b"\r").decode(errors="replace")


class Console:
    """Writes lines to `stream`, each after the name of who said it; in colour on a terminal."""

    def __init__(self, stream: TextIO, *, width: int = 0, colour: bool | None = None) -> None:
        self._stream = stream
        self._width = width
        self._colour = stream.isatty() and "NO_COLOR" not in os.environ if colour is None else colour

    def say(self, line: str) -> None:
        """A line of the supervisor's own."""
        self.write("parley", line)

    def write(self, name: str, line: str) -> None:
        label = f"{name:<{self._width}} |"
        if self._colour:
            # By the name, so that a role has the same colour at every start.
            label = f"{COLOURS[zlib.crc32(name.encode()) % len(COLOURS)]}{label}{RESET}"
        self._stream.write(f"{label} {line}\n")
        self._stream.flush()
