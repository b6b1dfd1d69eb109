"""The chat: what a person says, and what comes of it."""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import orjson

from clients.terminal.api import MAX_BYTES, Api, Trouble
from clients.terminal.conversation import Answer, Problem, State, Turn, turns
from clients.terminal.link import Link, Lost
from clients.terminal.screen import Screen, keys_unseen

COMMAND = re.compile(r"/([a-z]+)(?: +(.*))?")
"""On a line of its own; `/usr/bin/env` is none."""
MESSAGE_OVERHEAD = 200
"""Bytes of a message that are neither the text nor known when it is measured."""
SESSIONS = 20
HISTORY_ITEMS = 50

HELP = """\
/sessions     earlier conversations
/open N       go on in one of them
/new          begin a new one
/model NAME   which model answers; without a name: which there are
/retry        send the last message again, after it failed
/quit         leave
Ctrl-C stops an answer. Alt-Enter begins a new line; a paste is one message."""


class Chat:
    """One person's chat."""

    def __init__(self, api: Api, link: Link, screen: Screen, models: list[str], model: str) -> None:
        self._api = api
        self._link = link
        self._screen = screen
        self._models = models
        self._model = model
        self._conversation: str | None = None
        self._listed: list[dict[str, Any]] = []
        self._last: Answer | None = None
        self._leaving = False
        self._stopping: asyncio.Task[None] | None = None
        self.failures = 0
        self.commands: dict[str, Callable[[str], Awaitable[None]]] = {
            "help": self._help,
            "sessions": self._sessions,
            "open": self._open,
            "new": self._new,
            "model": self._choose,
            "retry": self._retry,
            "quit": self._quit,
        }

    async def run(self, messages: AsyncIterator[str]) -> None:
        """Act on each message or command, until there are no more.

        Raises:
            Trouble: the key is not valid any more.
        """
        async for text in messages:
            try:
                await self._act(text)
            except Trouble as trouble:
                if trouble.problem.code == "invalid_api_key":
                    raise
                self.failures += 1
                self._screen.error(trouble.problem.message)
            if self._leaving:
                return

    async def _act(self, text: str) -> None:
        if not text.strip():
            return
        command = COMMAND.fullmatch(text.strip())
        if command is None:
            await self._say(text)
        elif command[1] in self.commands:
            await self.commands[command[1]]((command[2] or "").strip())
        else:
            self._screen.error(f"There is no /{command[1]}; /help shows what there is.")

    async def _say(self, text: str) -> None:
        request = {"model": self._model, "input": text, "idempotency_key": secrets.token_hex(16)}
        size = len(orjson.dumps(request)) + MESSAGE_OVERHEAD
        if size > MAX_BYTES:
            self.failures += 1
            self._screen.error(f"This message has {size / MAX_BYTES:.2f} MiB; at most 1 MiB can be sent. Shorten it.")
            return
        if self._conversation is None:
            self._conversation = await self._api.open_conversation()
        await self._show(Answer({**request, "conversation": self._conversation}))

    async def _show(self, answer: Answer) -> None:
        """Show an answer as it comes, to its end or until it is left to itself."""
        self._last = answer
        left = asyncio.Event()
        with keys_unseen(), interrupts(lambda: self._interrupted(answer, left)):
            hearing = asyncio.create_task(self._hear(answer))
            leaving = asyncio.create_task(left.wait())
            await asyncio.wait((hearing, leaving), return_when=asyncio.FIRST_COMPLETED)
            leaving.cancel()
            if not hearing.done():
                hearing.cancel()
                await asyncio.gather(hearing, return_exceptions=True)
                await self._link.close()
                self._screen.note("Left alone; it goes on by itself, /open shows it.")
                return
            self._screen.busy(None)
            await hearing
        self._end(answer)

    async def _hear(self, answer: Answer) -> None:
        self._screen.busy(DOING[answer.state])
        async for shown in self._link.follow(answer):
            if isinstance(shown, Lost):
                self._screen.note("Connection lost; reconnecting…")
            elif shown:
                self._screen.piece(shown)
            elif not answer.shown and not answer.state.ended:
                self._screen.busy("Stopping…" if answer.stopping else DOING[answer.state])

    def _interrupted(self, answer: Answer, left: asyncio.Event) -> None:
        if answer.stopping:
            left.set()
            return
        answer.stopping = True
        self._stopping = asyncio.create_task(self._link.stop(answer))

    def _end(self, answer: Answer) -> None:
        self._screen.line_end()
        if answer.state is State.FAILED:
            self.failures += 1
            self._screen.error(answer.remark)
        elif answer.remark:
            self._screen.note(answer.remark)

    async def _help(self, _: str) -> None:
        self._screen.note(HELP, style="")

    async def _sessions(self, _: str) -> None:
        self._listed = await self._api.conversations(SESSIONS)
        if not self._listed:
            self._screen.note("There are no conversations yet.")
        else:
            self._screen.conversations(
                [(each["title"] or "untitled", ago(each["updated_at"])) for each in self._listed]
            )

    async def _open(self, argument: str) -> None:
        if not self._listed:
            self._listed = await self._api.conversations(SESSIONS)
        if not argument.isdecimal() or not 1 <= int(argument[:4]) <= len(self._listed):
            self._screen.error("/open takes a number that /sessions shows.")
            return
        chosen: str = self._listed[int(argument[:4]) - 1]["id"]
        items, more = await self._api.items(chosen, HISTORY_ITEMS)
        self._conversation, self._last = chosen, None
        if more:
            self._screen.note("Earlier messages are left out.")
        for turn in turns(items):
            await self._show_kept(turn)

    async def _show_kept(self, turn: Turn) -> None:
        for said in turn.said:
            self._screen.said(said)
        answer = Answer({"model": self._model, "input": "\n".join(turn.said)}, turn.response)
        if turn.running:
            await self._show(answer)
            return
        if turn.end_is_unknown:
            kept = await self._api.response(turn.response)
            if kept["status"] in ("queued", "in_progress"):
                await self._show(answer)
                return
        else:
            kept = {"id": turn.response, "status": "completed", "output": [turn.output]}
        answer.settle(kept)
        self._last = answer
        self._screen.piece(answer.shown)
        self._screen.line_end()
        if answer.remark:
            self._screen.note(answer.remark)

    async def _new(self, _: str) -> None:
        self._conversation = self._last = None
        self._screen.note("A new conversation.")

    async def _choose(self, name: str) -> None:
        if not name:
            self._screen.note("\n".join(f"{'*' if each == self._model else ' '} {each}" for each in self._models), "")
        elif name in self._models:
            self._model = name
        else:
            self._screen.error(no_model(name, self._models).message)

    async def _retry(self, _: str) -> None:
        last = self._last
        if last is None or last.request is None or last.state is not State.FAILED:
            self._screen.error("Nothing failed.")
        elif last.id is None and last.request.get("idempotency_key"):
            # Whether it was accepted isn't known: the same key asks for the same turn.
            await self._show(Answer(last.request))
        else:
            await self._say(last.request["input"])

    async def _quit(self, _: str) -> None:
        self._leaving = True


DOING = {
    State.SENDING: "Sending…",
    State.WAITING: "Waiting for its turn…",
    State.RUNNING: "Thinking…",
}


def no_model(name: str, models: list[str]) -> Problem:
    """A model that nobody has."""
    return Problem("model_not_found", f"there is no model {name!r}; there are: {', '.join(models)}", retryable=False)


def ago(moment: int) -> str:
    """Seconds since the epoch, as a person would say it."""
    seconds = max(0, time.time() - moment)
    for size, name in ((86_400, "day"), (3_600, "hour"), (60, "minute")):
        if seconds >= size:
            count = int(seconds // size)
            return f"{count} {name}{'s' if count > 1 else ''} ago"
    return "just now"


@contextlib.contextmanager
def interrupts(act: Callable[[], None]) -> Iterator[None]:
    """While entered, Ctrl-C does this."""
    loop = asyncio.get_running_loop()
    before = signal.getsignal(signal.SIGINT)
    loop.add_signal_handler(signal.SIGINT, act)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, before)
