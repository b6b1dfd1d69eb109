"""What a person types, pastes and presses."""

from __future__ import annotations

import asyncio

from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from clients.terminal.prompting import Prompt


async def typed(*keys: str) -> list[str]:
    """The messages that come of these keys, up to leaving."""
    with create_pipe_input() as keyboard:
        prompt = Prompt(["/new", "/open"], input=keyboard, output=DummyOutput())
        # From a thread: a pipe holds less than a long paste has.
        typing = asyncio.create_task(asyncio.to_thread(lambda: [keyboard.send_text(each) for each in keys]))
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
