"""The prompt that the model gets: system message, as much of the past as fits, the newest message.

Pure. A sliding window over exchanges (a user's message and what follows it): whole exchanges fall out, oldest first;
the system message and the newest message never do. Rendered in ChatML.
"""

from __future__ import annotations

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
_OPEN = "<|im_start|>assistant\n"


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
        # What somebody wrote must not end its message or begin another.
        text = self.text.replace("<|im_start|>", "<|im_start |>").replace("<|im_end|>", "<|im_end |>")
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
    spoken = [message for turn in past for message in _messages((*turn.items, *turn.output))] + list(_messages(items))
    system = [m.text for m in spoken if m.role == "system"]
    if instructions:
        system.insert(0, instructions)
    head = _Message("system", "\n\n".join(system or [pool.system]))
    exchanges = _exchanges(m for m in spoken if m.role != "system")
    wanted = min(max_output_tokens or pool.default_max_tokens, pool.max_tokens)

    def count(messages: Iterable[_Message]) -> int:
        return sum(tokenizer.count(message.render()) for message in messages)

    newest = exchanges.pop() if exchanges else []
    tokens = count([head, *newest]) + tokenizer.count(_OPEN)
    if tokens + MIN_ANSWER_TOKENS > pool.context:
        raise ParleyError(
            "context_length_exceeded",
            f"this message has {tokens} tokens; {pool.model} takes {pool.context} with at least {MIN_ANSWER_TOKENS} "
            "for the answer: send less at once",
            param="input",
        )
    kept: list[list[_Message]] = [newest]
    while exchanges:
        more = count(exchanges[-1])
        if tokens + more + wanted > pool.context:
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


def _messages(items: Iterable[Item]) -> Iterable[_Message]:
    for item in items:
        role = "system" if item.role in ("system", "developer") else item.role
        if item.text:
            yield _Message(role, item.text)


def _exchanges(messages: Iterable[_Message]) -> list[list[_Message]]:
    """Cut before each user's message that follows an answer, so that what is kept begins with a user."""
    cut: list[list[_Message]] = []
    for message in messages:
        if not cut or (message.role == "user" and any(m.role == "assistant" for m in cut[-1])):
            cut.append([])
        cut[-1].append(message)
    return cut
