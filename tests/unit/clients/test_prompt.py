"""What a person types, pastes and presses."""

from __future__ import annotations

import asyncio
import io

import pytest
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from clients.terminal.prompting import Prompt, piped_lines


async def typed(*keys: str | bytes) -> list[str]:
    """The messages that come of these keys, up to leaving."""
    with create_pipe_input() as keyboard:
        prompt = Prompt(["/new", "/open"], input=keyboard, output=DummyOutput())
        # From a thread: a pipe holds less than a long paste has.
        sent = [each.encode() if isinstance(each, str) else each for each in keys]
        typing = asyncio.create_task(asyncio.to_thread(lambda: [keyboard.send_bytes(each) for each in sent]))
        async with asyncio.timeout(20):
            messages = [message async for message in prompt.messages()]
        await typing
        return messages


def paste(text: str) -> str:
    return f"\x1b[200~{text}\x1b[201~"


LEAVE = "\x04"


async def test_enter_sends_and_ctrl_d_leaves() -> None:
    assert await typed("Hello\r", "Again\r", LEAVE) == ["Hello", "Again"]


async def test_a_line_typed_while_an_answer_came_is_sent_at_the_prompt() -> None:
    assert await typed("ahead\n", "now\r", LEAVE) == ["ahead", "now"]


async def test_ctrl_c_clears_what_is_typed_and_leaves_when_there_is_nothing() -> None:
    assert await typed("not this\x03", "this\r", "\x03") == ["this"]


async def test_alt_enter_begins_a_new_line() -> None:
    assert await typed("one\x1b\rtwo\r", LEAVE) == ["one\ntwo"]


async def test_a_paste_of_many_lines_is_one_message() -> None:
    assert await typed(paste("one\r\ntwo\rthree"), "\r", LEAVE) == ["one\ntwo\nthree"]


async def test_a_long_paste_is_one_message_and_kept_as_it_was() -> None:
    """F10: 300 kB with newlines."""
    text = "\n".join(["x" * 59] * 5_000)
    assert await typed("Look: ", paste(text), " What is it?\r", LEAVE) == [f"Look: {text} What is it?"]


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
async def test_a_byte_that_is_no_text_does_not_end_a_pipe(monkeypatch: pytest.MonkeyPatch, errors: str) -> None:
    pipe = io.TextIOWrapper(io.BytesIO(b"one\ncaf\xe9\ntwo\n"), encoding="utf-8", errors=errors)
    monkeypatch.setattr("sys.stdin", pipe)
    async with asyncio.timeout(5):
        assert [line async for line in piped_lines()] == ["one", "caf\N{REPLACEMENT CHARACTER}", "two"]


async def test_what_is_typed_can_be_sent_whatever_the_terminal_took_it_for() -> None:
    assert await typed(b"caf\xe9", "\r", LEAVE) == ["caf?"]
