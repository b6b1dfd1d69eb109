"""The prompt that the model gets: system message, as much of the past as fits, the newest message.

Pure. A sliding window over exchanges (a user's message and what follows it): whole exchanges fall out, oldest first;
the system message and the newest message never do. Rendered in ChatML.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from parley.errors import ParleyError
from parley.session import Turn
from parley.tokenizers import Tokenizer
from parley.topics import Pool
from schemas.base import Item

TEMPLATE_VERSION = "chatml-1"
MIN_ANSWER_TOKENS = 16
"""The specification's least max_output_tokens: less room than this is none."""
LONGEST_RESERVE = 4
"""An answer's budget keeps the past out of at most this part (a quarter) of the window: a greedy budget must not cost
the question that "yes" answers. The answer is cut to what is left."""
PIECE = 8_192
"""Characters that are counted at once of a text that may be far too long: a megabyte takes a second to count."""
_SEAM_TOKENS = 16
"""More tokens than a text can gain by being cut in two."""
_OPEN = "<|im_start|>assistant\n"
_CONTROL = re.compile(r"<\|(\w+)\|>")


@dataclass(frozen=True, slots=True)
class Context:
    """A prompt within a pool's context window."""

    prompt: str
    prompt_tokens: int
    max_tokens: int
    """What is left for the answer, at most what was asked for."""
    dropped_turns: int
    """Exchanges of the past that did not fit."""


@dataclass(frozen=True, slots=True)
class _Message:
    role: str
    text: str

    def render(self) -> str:
        # What somebody wrote must not end its message, begin another, or end the text.
        text = _CONTROL.sub(r"<|\1 |>", self.text)
        return f"<|im_start|>{self.role}\n{text}<|im_end|>\n"


def build_context(
    pool: Pool,
    tokenizer: Tokenizer,
    past: Sequence[Turn],
    items: Sequence[Item],
    *,
    instructions: str | None = None,
    max_output_tokens: int | None = None,
    truncate: bool = True,
) -> Context:
    """The prompt for `items` after the turns of `past` (oldest first).

    Raises:
        ParleyError: context_length_exceeded: even without the past there is no room for an answer, or something would
            have to be left out and `truncate` is False.
    """
    turns = [list(_messages(said)) for said in (*((*turn.items, *turn.output) for turn in past), items)]
    system = [m.text for turn in turns for m in turn if m.role == "system"]
    if instructions:
        system.insert(0, instructions)
    head = _Message("system", "\n\n".join(system or [pool.system]))
    exchanges = [exchange for turn in turns for exchange in _exchanges(m for m in turn if m.role != "system")]
    wanted = min(max_output_tokens or pool.default_max_tokens, pool.max_tokens)
    reserved = max(MIN_ANSWER_TOKENS, min(wanted, pool.context // LONGEST_RESERVE))

    def count(messages: Iterable[_Message]) -> int:
        return sum(tokenizer.count(message.render()) for message in messages)

    newest = exchanges.pop() if exchanges else []
    far_over = any(_over(tokenizer, message.text, pool.context) for message in (head, *newest))
    tokens = 0 if far_over else count([head, *newest]) + tokenizer.count(_OPEN)
    if far_over or tokens + MIN_ANSWER_TOKENS > pool.context:
        size = f"more than {pool.context}" if far_over else tokens
        raise ParleyError(
            "context_length_exceeded",
            f"this message has {size} tokens; {pool.model} takes {pool.context} with at least {MIN_ANSWER_TOKENS} "
            "for the answer: send less at once",
            param="input",
        )
    kept: list[list[_Message]] = [newest]
    while exchanges:
        more = count(exchanges[-1])
        if tokens + more + reserved > pool.context:
            break
        tokens += more
        kept.insert(0, exchanges.pop())
    if exchanges and not truncate:
        raise ParleyError(
            "context_length_exceeded",
            f"the conversation no longer fits {pool.model}'s {pool.context} tokens: allow truncation or start anew",
            param="truncation",
        )
    prompt = "".join(m.render() for m in [head, *(m for exchange in kept for m in exchange)]) + _OPEN
    return Context(prompt, tokens, min(wanted, pool.context - tokens), len(exchanges))


def _over(tokenizer: Tokenizer, text: str, limit: int) -> bool:
    """A long text surely has more than `limit` tokens: found out without counting much further than that."""
    tokens = 0
    for at in range(0, len(text) if len(text) > PIECE else 0, PIECE):
        tokens += tokenizer.count(text[at : at + PIECE]) - _SEAM_TOKENS
        if tokens > limit:
            return True
    return False


def _messages(items: Iterable[Item]) -> Iterable[_Message]:
    for item in items:
        role = "system" if item.role in ("system", "developer") else item.role
        if item.text:
            yield _Message(role, item.text)


def _exchanges(messages: Iterable[_Message]) -> list[list[_Message]]:
    """A turn's messages, cut before each user's message that follows an answer: what is kept begins with a user.

    Turns are cut apart before: a prompt that was never answered is past, not a part of the newest message.
    """
    cut: list[list[_Message]] = []
    for message in messages:
        if not cut or (message.role == "user" and any(m.role == "assistant" for m in cut[-1])):
            cut.append([])
        cut[-1].append(message)
    return cut
