"""An answer that breaks off after any token and is continued elsewhere is the answer that did not break off.

The synthetic engine's own script says the tokens, as it does in Triton: a run is what a worker does with a stream.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest
from core_events import request

from inference_workers.answer import Answer
from inference_workers.engine.progress import CumulativeProgress
from parley.safety.classifier import Classifier
from parley.safety.policy import Policy
from parley.tokenizers import Words

FAMILY = "👩\u200d👩\u200d👧"
TEXT = f"Hello 👋🏽, {FAMILY} 你好。\nUsing it \nUser me, ok\nUs again \nUser: never shown"
HARMFUL = "You are a worthless stupid idiot and everyone hates you, go and kill yourself now, nobody wants you alive. "
PLAIN = "The quick brown fox jumps over the lazy dog, again and again, until evening comes to the quiet village. "


@dataclass
class Log:
    """What is on the route after some runs."""

    text: str = ""
    end: str | None = None
    blocked: bool = False


@dataclass
class Turn:
    """One turn, to be run in pieces."""

    script: ModuleType
    classifier: Classifier
    policy: Policy
    how: dict[str, Any]
    stop: tuple[str, ...] = ()
    max_tokens: int = 10_000

    def run(self, log: Log, tokens: int | None = None) -> None:
        """Go on from what the log says; break off after so many tokens of the engine, if the answer is not over."""
        message = "::script " + json.dumps(self.how)
        prompt = f"<|im_start|>user\n{message}<|im_end|>\n<|im_start|>assistant\n{log.text}"
        left = self.max_tokens - (Words().count(log.text) if log.text else 0)
        engine = self.script.Answer(prompt, self.script.script_of(prompt, self.script.Script(10, 0, 0)), left)
        progress = CumulativeProgress()
        answer = Answer(request(sampling={"stop": self.stop}), self.classifier, self.policy, log.text)
        said = 0
        while engine.finish is None:
            if said == tokens:
                return  # what was held back is lost
            engine.advance()
            said += 1
            step = answer.feed(progress.advance(engine.text, engine.finish is not None))
            log.text += step.text
            if step.over:
                log.end, log.blocked = "stop", answer.blocked is not None
                return
        log.text += answer.finish().text
        log.end, log.blocked = engine.finish, answer.blocked is not None

    def whole(self) -> Log:
        log = Log()
        self.run(log)
        return log


def pieces(text: str, size: int) -> dict[str, Any]:
    """The text in tokens of so many bytes: half characters in nearly all of them."""
    data = text.encode()
    return {"pieces_hex": [data[at : at + size].hex() for at in range(0, len(data), size)]}


@pytest.mark.parametrize("stop", [(), ("\nUser:",), ("好。\nU", "again"), ("\u200d👧",)])
@pytest.mark.parametrize("hold_back", [0, 4])
@pytest.mark.parametrize("size", [1, 3, 5])
def test_cut_after_any_token(
    script_module: ModuleType, classifier: Classifier, policy: Policy, stop: tuple[str, ...], hold_back: int, size: int
) -> None:
    """Field case F19, and half characters: stop strings and emoji across the join."""
    policy = policy.model_copy(update={"hold_back": hold_back})
    turn = Turn(script_module, classifier, policy, pieces(TEXT, size), stop)
    whole = turn.whole()
    assert all(string not in whole.text for string in stop)
    assert "\ufffd" not in whole.text
    for cut in range(1, len(TEXT.encode()) // size + 1):
        log = Log()
        turn.run(log, cut)
        assert whole.text.startswith(log.text)
        if log.end is None:
            turn.run(log, 2)
        if log.end is None:
            turn.run(log)
        assert log == whole, cut


@pytest.mark.parametrize("hold_back", [0, 4])
def test_what_is_blocked_is_blocked_wherever_it_was_cut(
    script_module: ModuleType, classifier: Classifier, policy: Policy, hold_back: int
) -> None:
    """The guard's window reaches over the join."""
    policy = policy.model_copy(update={"hold_back": hold_back})
    text = PLAIN + HARMFUL + PLAIN
    turn = Turn(script_module, classifier, policy, pieces(text, 4))
    whole = turn.whole()
    assert whole.blocked
    for cut in range(1, len(text) // 4):
        log = Log()
        turn.run(log, cut)
        if log.end is None:
            turn.run(log)
        assert log == whole, cut


@pytest.mark.parametrize("hold_back", [0, 4])
def test_the_budget_of_tokens_is_kept_over_any_join(
    script_module: ModuleType, classifier: Classifier, policy: Policy, hold_back: int
) -> None:
    """Field case F22: what was logged counts, what was held back and lost does not."""
    policy = policy.model_copy(update={"hold_back": hold_back})
    turn = Turn(script_module, classifier, policy, {"words": 50}, max_tokens=24)
    whole = turn.whole()
    assert (len(whole.text.split()), whole.end) == (24, "length")
    for cut in range(1, 24):
        log = Log()
        turn.run(log, cut)
        turn.run(log)
        assert log == whole, cut
