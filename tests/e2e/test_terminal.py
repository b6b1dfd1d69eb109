"""`parley chat` on the whole system: through a pipe, and at a pseudo-terminal as a person has it."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import pty
import re
import signal
import struct
import sys
import termios
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from tests.e2e.conftest import System

ESCAPES = re.compile(r"\x1b(\[[0-9;?]*[ -/]*[@-~]|\][^\x07]*\x07|[()][A-Z0-9]|[=>78])")


def script(**what: object) -> str:
    return f"::script {json.dumps(what)}"


def words(count: int) -> str:
    return " ".join(f"w{number:03d}" for number in range(1, count + 1))


def command(system: System, *options: str, key: bool = True) -> list[str]:
    given = ["--key", system.key] if key else []
    return [sys.executable, "-m", "parley", "chat", "--url", system.base_url, "--model", "synthetic", *given, *options]


async def piped(system: System, *lines: str, options: tuple[str, ...] = (), key: bool = True) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a chat that reads these lines."""
    process = await asyncio.create_subprocess_exec(
        *command(system, *options, key=key),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={name: value for name, value in os.environ.items() if name != "PARLEY_KEY"}
        | {"PARLEY_LOCAL_DATA": str(system.settings.data)},
    )
    out, err = await asyncio.wait_for(process.communicate("".join(f"{x}\n" for x in lines).encode()), 60)
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def test_a_pipe_gets_the_answers_and_nothing_else(system: System) -> None:
    first, second = script(words=3, first_ms=10, period_ms=10), script(words=4, first_ms=10, period_ms=10)
    assert await piped(system, first, second) == (0, f"{words(3)}\n{words(4)}\n", "")


async def test_the_local_stack_s_key_is_found(system: System) -> None:
    code, out, _ = await piped(system, script(words=1, first_ms=10, period_ms=10), key=False)
    assert (code, out) == (0, "w001\n")


async def test_earlier_conversations_are_listed_and_gone_on_with(system: System) -> None:
    await piped(system, "A chat to find again", options=("--model", "synthetic"))
    async with asyncio.timeout(20):
        while True:
            _, listed, _ = await piped(system, "/sessions")
            if "A chat to find again" in listed:
                break
    number = next(line.split()[0] for line in listed.splitlines() if "A chat to find again" in line)
    code, out, _ = await piped(system, f"/open {number}", script(words=2, first_ms=10, period_ms=10))
    assert code == 0
    assert "› " in out
    assert out.endswith(f"{words(2)}\n")


async def test_what_an_answer_wants_of_the_terminal_is_shown_not_done(system: System) -> None:
    pieces = ["\x1b[2J", "\x1b]0;owned\x07", "ok"]
    hexed = [piece.encode().hex() for piece in pieces]
    _, out, _ = await piped(system, script(pieces_hex=hexed, first_ms=10, period_ms=10))
    assert out == r"\x1b[2J\x1b]0;owned\x07ok" + "\n"


async def test_a_failed_answer_says_why_and_how_to_try_again(system: System) -> None:
    code, out, err = await piped(system, script(words=30, first_ms=10, period_ms=10, error_after=12))
    assert code == 1
    assert words(30).startswith(out.strip())
    assert "/retry" in err


async def test_a_message_over_the_limit_is_refused_and_the_next_one_answered(system: System) -> None:
    code, out, err = await piped(system, "x" * 1_100_000, script(words=1, first_ms=10, period_ms=10))
    assert "at most 1 MiB" in err
    assert (code, out) == (1, "w001\n")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--key", "pk_wrong"), "the API key is not valid"),
        (("--url", "http://127.0.0.1:1"), "no edge answers at http://127.0.0.1:1"),
        (("--url", "somewhere"), "--url must begin with http"),
        (("--model", "nobody"), "there is no model 'nobody'"),
    ],
)
async def test_what_is_wrong_is_said_in_one_line(system: System, options: tuple[str, ...], said: str) -> None:
    code, out, err = await piped(system, "Hi", options=options)
    assert (code, out) == (1, "")
    assert said in err
    assert err.count("\n") == 1


@dataclass
class Terminal:
    """A chat at a pseudo-terminal."""

    process: asyncio.subprocess.Process
    fd: int
    raw: str = ""

    @property
    def text(self) -> str:
        """What was written, without what moves the cursor and colours it."""
        return ESCAPES.sub("", self.raw).replace("\r\n", "\n")

    def type(self, keys: str) -> None:
        os.write(self.fd, keys.encode())

    async def paste(self, text: str) -> None:
        """A terminal takes a few kilobytes at once."""
        data = f"\x1b[200~{text}\x1b[201~".encode()
        while data:
            data = data[await asyncio.to_thread(os.write, self.fd, data[:1024]) :]

    async def until(self, pattern: str, after: int = 0, timeout: float = 30) -> re.Match[str]:
        deadline = time.monotonic() + timeout
        while (found := re.search(pattern, self.text[after:], re.DOTALL)) is None:
            assert time.monotonic() < deadline, f"{pattern!r} never came:\n{self.text[-2000:]}"
            await asyncio.sleep(0.02)
        return found

    def read(self) -> None:
        with contextlib.suppress(OSError):
            self.raw += os.read(self.fd, 65_536).decode(errors="replace")


@contextlib.asynccontextmanager
async def terminal(system: System) -> AsyncIterator[Terminal]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 200, 0, 0))
    process = await asyncio.create_subprocess_exec(
        *command(system),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=_take_terminal,
        env=os.environ | {"TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"},
    )
    os.close(theirs)
    at = Terminal(process, ours)
    asyncio.get_running_loop().add_reader(ours, at.read)
    try:
        await at.until("/help shows the commands")
        yield at
    finally:
        asyncio.get_running_loop().remove_reader(ours)
        if process.returncode is None:
            process.kill()
        await process.wait()
        os.close(ours)


def _take_terminal() -> None:
    """Make standard input the terminal that Ctrl-C goes through."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


async def test_a_person_chats_stops_an_answer_and_leaves(system: System) -> None:
    async with terminal(system) as at:
        at.type(script(words=5, first_ms=10, period_ms=10) + "\r")
        await at.until(words(5))
        at.type(script(words=2000, word="v", first_ms=10, period_ms=20) + "\r")
        await at.until("v020")
        at.type("\x03")
        await at.until("Stopped")
        at.type(script(words=7, first_ms=10, period_ms=10) + "\r")
        await at.until(words(7), after=at.text.rindex("Stopped"))
        await asyncio.sleep(1)  # the prompt is back a moment after the last word
        at.type("not sent\x03\x03")
        assert await asyncio.wait_for(at.process.wait(), 10) == 0


async def test_a_terminal_that_is_killed_finds_the_answer_again_from_its_beginning(system: System) -> None:
    """F01 at the terminal."""
    async with terminal(system) as at:
        at.type(script(words=100, first_ms=10, period_ms=80) + "\r")
        await at.until("w030")
        at.process.send_signal(signal.SIGKILL)
        await at.process.wait()
    async with terminal(system) as again:
        again.type("/open 1\r")
        await again.until(words(100))


async def test_a_paste_of_300_kilobytes_is_one_message(system: System) -> None:
    """F10: it is over the model's context, so the edge says so; the next message is answered."""
    async with terminal(system) as at:
        await at.paste("\n".join(["x" * 59] * 5_000))
        await at.until(r"\[paste 1: 5,000 lines\]")
        at.type("\r")
        await at.until("(?i)context|characters", after=at.text.rindex("5,000 lines"))
        at.type(script(words=3, first_ms=10, period_ms=10) + "\r")
        await at.until(words(3))
