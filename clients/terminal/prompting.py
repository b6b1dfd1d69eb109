"""Where messages come from: a person at a prompt, or the lines of a pipe."""

from __future__ import annotations

import asyncio
import io
import sys
import threading
from collections.abc import AsyncIterator

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.filters import Condition
from prompt_toolkit.input import Input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.output import Output

LONG_PASTE = 2_000
"""Characters from which a paste is kept aside: the prompt is drawn again at every key, long texts make that slow."""


class Pastes:
    """Long pasted texts, and the marks that stand for them at the prompt."""

    def __init__(self) -> None:
        self._kept: dict[str, str] = {}

    def keep(self, text: str) -> str:
        """The mark for a text."""
        lines = text.count("\n") + 1
        size = f"{lines:,} lines" if lines > 1 else f"{len(text):,} characters"
        mark = f"[paste {len(self._kept) + 1}: {size}]"
        self._kept[mark] = text
        return mark

    def expand(self, typed: str) -> str:
        """What was meant: every mark that is still there replaced by its text."""
        for mark, text in self._kept.items():
            typed = typed.replace(mark, text)
        return typed


class Prompt:
    """A prompt with editing and history. Enter sends; a paste is one message, however many lines it has."""

    def __init__(self, commands: list[str], *, input: Input | None = None, output: Output | None = None) -> None:
        self._pastes = Pastes()
        self._session: PromptSession[str] = PromptSession(
            multiline=True,
            key_bindings=self._bindings(),
            completer=WordCompleter(commands, sentence=True),
            complete_while_typing=Condition(lambda: self._session.default_buffer.text.startswith("/")),
            prompt_continuation="  ",
            input=input,
            output=output,
        )

    async def messages(self) -> AsyncIterator[str]:
        """What is sent, until the person leaves."""
        while True:
            try:
                typed = await self._session.prompt_async("› ")
            except EOFError:
                return
            yield _sendable(self._pastes.expand(typed))

    def _bindings(self) -> KeyBindings:
        keys = KeyBindings()

        # A line that was typed before the prompt was there ends in a line feed.
        @keys.add(Keys.Enter)
        @keys.add(Keys.ControlJ)
        def send(event: KeyPressEvent) -> None:
            event.current_buffer.validate_and_handle()

        @keys.add(Keys.Escape, Keys.Enter)
        def new_line(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text("\n")

        @keys.add(Keys.ControlC)
        def clear_or_leave(event: KeyPressEvent) -> None:
            if event.current_buffer.text:
                event.current_buffer.reset()
            else:
                event.app.exit(exception=EOFError)

        @keys.add(Keys.BracketedPaste)
        def paste(event: KeyPressEvent) -> None:
            text = event.data.replace("\r\n", "\n").replace("\r", "\n")
            event.current_buffer.insert_text(self._pastes.keep(text) if len(text) > LONG_PASTE else text)

        return keys


def _sendable(text: str) -> str:
    """Bytes that were no text come as surrogates, which JSON can't carry: a question mark for each."""
    return text.encode(errors="replace").decode()


async def piped_lines() -> AsyncIterator[str]:
    """The lines of standard input."""
    loop, lines = asyncio.get_running_loop(), asyncio.Queue[str | None]()
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")  # a byte that is no text ends neither the chat nor its reading

    def read() -> None:
        for line in sys.stdin:
            loop.call_soon_threadsafe(lines.put_nowait, line.rstrip("\n"))
        loop.call_soon_threadsafe(lines.put_nowait, None)

    # A thread of its own that nobody waits for: a read from a pipe can't be cancelled.
    threading.Thread(target=read, name="stdin", daemon=True).start()
    while (line := await lines.get()) is not None:
        yield line
