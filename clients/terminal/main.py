"""`parley chat`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from clients.terminal.api import Api, Place, Trouble
from clients.terminal.chat import Chat, no_model
from clients.terminal.conversation import Problem
from clients.terminal.link import Link
from clients.terminal.plain import plain
from clients.terminal.prompting import Prompt, piped_lines
from clients.terminal.screen import Screen

INTERRUPTED = 130


def run(url: str, key: str | None, model: str) -> int:
    """Chat until the person leaves or the lines of a pipe end.

    Gives the exit code: 0; 1 when it can't begin, or from a pipe when an answer failed; 130 after Ctrl-C.
    """
    try:
        place = find(url, key)
        return asyncio.run(chat(place, model))
    except Trouble as trouble:
        sys.stderr.write(f"parley: {plain(trouble.problem.message)}.\n")
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED


async def chat(place: Place, model: str) -> int:
    """The chat itself.

    Raises:
        Trouble: no edge answers, the key is not valid, or there is no such model.
    """
    screen = Screen()
    async with Api(place) as api:
        models = await api.models()
        if model not in models:
            raise Trouble(no_model(model, models))
        link = Link(place)
        person = Chat(api, link, screen, models, model)
        try:
            if not screen.is_terminal:
                await person.run(piped_lines())
                return 1 if person.failures else 0
            screen.note("Parley. /help shows the commands, Ctrl-D leaves.")
            await person.run(Prompt([f"/{name}" for name in person.commands]).messages())
            return 0
        finally:
            await link.close()


def find(url: str, key: str | None) -> Place:
    """The edge that is meant, with the given key or the local stack's.

    Raises:
        Trouble: there is no such address, or no key.
    """
    url = url.rstrip("/")
    if not url.startswith(("http://", "https://")):
        raise Trouble(Problem("invalid_request", f"--url must begin with http:// or https://, unlike {url!r}"))
    key = key or (local_key() if Place(url, "").near else None)
    if not key:
        raise Trouble(Problem("invalid_api_key", "there is no API key: give one with --key or PARLEY_KEY"))
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise Trouble(Problem("invalid_api_key", "this is no API key: they have letters, digits, _ and - only"))
    return Place(url, key)


def local_key() -> str | None:
    """The key of the stack on this machine, if there is one."""
    from infra.local.settings import DEMO_KEY, LocalSettings

    path: Path = LocalSettings().data / DEMO_KEY
    return path.read_text().strip() if path.is_file() else None
