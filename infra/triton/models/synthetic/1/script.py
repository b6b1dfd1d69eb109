"""What the synthetic engine says and when, worked out from the prompt alone. Pure: no Triton, no clock.

Without a script an answer is `w001 w002 w003 …`. The seed changes nothing, so a gap, a repetition or a wrong order
anywhere behind the engine shows in the text itself.

**Continuing.** A prompt that leaves the assistant's turn open with text in it is answered with what comes after that
text, as a language model would: the answer's bytes that are there already are skipped, wherever in a word they end.
(Where they aren't this answer's, their words are counted and the numbers go on.)

**Scripts** are for tests. A line `::script {…}` in the newest user message sets, for its answer only:

- `words`: where it ends, `word`: what stands for `w`;
- `pieces_hex`: instead of words, one token after another as hexadecimal bytes: half a character is possible, and
  shows as U+FFFD in the text so far, as in a real detokeniser;
- `first_ms`, `period_ms`: the pace;
- `finish`: `stop` or `length`, what is said at its end;
- `silent_after`: after so many tokens nothing more comes, and the slot stays taken until the caller gives up;
- `die_after`: the stream ends there without a finish_reason;
- `error_after`: it ends there with an error.

Tokens are counted from the answer's beginning also where it is continued: an answer that broke off at one of these
goes on past it, if all its tokens had been kept.
"""

import json
from dataclasses import dataclass, field, fields

DIRECTIVE = "::script "
USER = "<|im_start|>user\n"
ASSISTANT = "<|im_start|>assistant\n"
END = "<|im_end|>"


@dataclass(frozen=True)
class Script:
    """How one answer goes; times in ms."""

    words: int
    first_ms: float
    period_ms: float
    word: str = "w"
    pieces_hex: list[str] = field(default_factory=list)
    finish: str = "stop"
    silent_after: int | None = None
    die_after: int | None = None
    error_after: int | None = None

    def piece(self, index: int) -> bytes | None:
        """The token at an index, None past the end."""
        if self.pieces_hex:
            return bytes.fromhex(self.pieces_hex[index]) if index < len(self.pieces_hex) else None
        if index >= self.words:
            return None
        return f"{' ' if index else ''}{self.word}{index + 1:03d}".encode()

    def incident(self, index: int) -> str | None:
        """What happens after so many tokens: `silent`, `die`, `error` or nothing."""
        incidents = {"silent": self.silent_after, "die": self.die_after, "error": self.error_after}
        return next((what for what, after in incidents.items() if after == index), None)


def script_of(prompt: str, default: Script) -> Script:
    """The script in the newest user message, over the default.

    :raises ValueError: a directive that isn't a JSON object of known keys.
    """
    message = _newest_user_message(prompt)
    line = next((x for x in message.splitlines() if x.startswith(DIRECTIVE)), None)
    if line is None:
        return default
    try:
        asked = json.loads(line.removeprefix(DIRECTIVE))
    except json.JSONDecodeError as error:
        raise ValueError(f"the script is not JSON: {error}") from error
    known = {x.name for x in fields(Script)}
    if not isinstance(asked, dict) or not asked.keys() <= known:
        raise ValueError(f"a script is an object with any of {', '.join(sorted(known))}")
    return Script(**{**vars(default), **asked})


class Answer:
    """The tokens of one run, one at a time, and the text that they make."""

    def __init__(self, prompt: str, script: Script, max_tokens: int) -> None:
        self._script = script
        self._index, self._skip = _resume(script, _open_text(prompt).encode())
        self._start = self._index
        self._left = max_tokens
        self._bytes = b""
        self.finish: str | None = None

    @property
    def incident(self) -> str | None:
        """What befalls the run now."""
        resumed_here = self._index == self._start > 0
        return None if resumed_here else self._script.incident(self._index)

    @property
    def text(self) -> bytes:
        """The text of this run so far, as UTF-8."""
        return self._bytes.decode(errors="replace").encode() if self._script.pieces_hex else self._bytes

    def advance(self) -> None:
        """One token more; `finish` says when it was the last, as early as that can be known."""
        piece = self._script.piece(self._index)
        if piece is not None:
            self._bytes += piece[self._skip :]
            self._skip = 0
            self._index += 1
            self._left -= 1
        if self._script.piece(self._index) is None:
            self.finish = self._script.finish
        elif self._left == 0:
            self.finish = "length"


def _newest_user_message(prompt: str) -> str:
    _, mark, rest = prompt.rpartition(USER)
    return rest.partition(END)[0] if mark else prompt


def _open_text(prompt: str) -> str:
    """The text of an assistant's turn that the prompt leaves open."""
    _, mark, rest = prompt.rpartition(ASSISTANT)
    return rest if mark and END not in rest else ""


def _resume(script: Script, said: bytes) -> tuple[int, int]:
    """Where an answer goes on: the index of the next token, and how many of its bytes have been said."""
    index, rest = 0, said
    while rest and (piece := script.piece(index)) is not None:
        if not rest.startswith(piece):
            if piece.startswith(rest):
                return index, len(rest)
            return len(said.split()), 0
        rest = rest[len(piece) :]
        index += 1
    return index, 0
