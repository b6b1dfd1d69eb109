"""The output guard: an answer's text goes in as the engine produces it, and out as far as it has been found harmless.

    feeding ──(a window reaches a threshold)──▶ blocked      nothing more is released
       └──────────── finish() ────────────────▶ finished     everything was released

A pure state machine. Everything it does is a function of the text, never of the pieces in which the text came: two
workers that see the same answer cut differently, or an answer continued elsewhere, release and block the same.
A word is complete at the whitespace after it, or at its `LONGEST_WORD`th character; then the window that ends with
it is scored. With a hold-back of L words, text is released up to the end of the word that lies L words behind the
newest scored one. With L = 0 every character is released at once unless it completes a word whose window is blocked.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass

import numpy as np

from parley.safety.classifier import Classifier, Window, squash
from parley.safety.policy import Decision, Policy
from parley.safety.text import LONGEST_WORD, words

_COMPLETE = re.compile(rf"\S{{{LONGEST_WORD}}}|\S+(?=\s)")


@dataclass(frozen=True, slots=True)
class Released:
    """Text that may leave now, and the decision once the answer is blocked. What is not released by then never is."""

    text: str
    blocked: Decision | None = None


class OutputGuard:
    """Guards one answer.

    `prior_text` is what has already left when an answer is continued: all of it, or at least its last window from the
    start of a word on. It is not scored again and not released again.

    Raises PolicyInvalid when policy and model do not fit together.
    """

    def __init__(self, classifier: Classifier, policy: Policy, prior_text: str = "") -> None:
        self._classifier = classifier
        self._policy = policy
        limits = np.minimum(policy.limits("output", classifier.categories), 1.0)
        with np.errstate(divide="ignore"):
            # Compared before squashing, which is dear; a shade low, so that the policy has the last word.
            self._limits = np.log(limits / (1.0 - limits)) - 1e-9
        self._hold_back = policy.hold_back
        self._window = Window(classifier, policy.window)
        self._peak = np.full(len(classifier.categories), -np.inf)
        self._blocked: Decision | None = None
        self._finished = False

        complete = list(_COMPLETE.finditer(prior_text))
        scored_to = complete[-1].end() if complete else 0
        for word in words(prior_text[:scored_to])[-policy.window :]:
            self._window.push(word)
        # Positions count characters from the start of prior_text.
        self._ends = deque([word.end() for word in complete], maxlen=policy.hold_back + 1)
        self._partial = prior_text[scored_to:].lstrip()
        self._seen = len(prior_text)
        self._released = len(prior_text)
        self._held = ""

    @property
    def decision(self) -> Decision:
        """The decision so far, with the highest score of each category over all windows: what the verdict records."""
        return self._blocked or self._policy.decide("output", self._classifier.named(squash(self._peak)))

    def feed(self, text: str) -> Released:
        """The answer's next characters.

        Raises ValueError after finish().
        """
        if self._finished:
            raise ValueError("the answer is finished: a guard serves one answer")
        if self._blocked:
            return Released("", self._blocked)
        unread = self._partial + text
        start = self._seen - len(self._partial)
        self._seen += len(text)
        self._held += text
        harmless_to = self._released
        read = 0
        for complete in _COMPLETE.finditer(unread):
            word, read = complete.group(), complete.end()
            for folded in words(word):
                self._window.push(folded)
            self._ends.append(start + read)
            if len(self._ends) <= self._hold_back:
                continue  # Nothing may leave yet anyway, and the first words alone would be judged without context.
            if self._over_limit():
                if self._hold_back == 0:
                    harmless_to = start + read - (len(word) == LONGEST_WORD)
                break
            if self._hold_back:
                harmless_to = self._ends[0]
        else:
            self._partial = unread[read:].lstrip()
            if self._hold_back == 0:
                harmless_to = self._seen
        return Released(self._release(harmless_to), self._blocked)

    def finish(self) -> Released:
        """The answer has ended: the tail is scored as one last window, and what was held back is released or dropped.

        Raises ValueError when called twice.
        """
        if self._finished:
            raise ValueError("the answer is finished: a guard serves one answer")
        self._finished = True
        if self._blocked:
            return Released("", self._blocked)
        for folded in words(self._partial):
            self._window.push(folded)
        if self._over_limit():
            return Released("", self._blocked)
        return Released(self._release(self._seen))

    def _over_limit(self) -> bool:
        if not self._window:
            return False
        logits = self._window.logits()
        np.maximum(self._peak, logits, out=self._peak)
        if not np.count_nonzero(logits >= self._limits):
            return False
        decision = self._policy.decide("output", self._classifier.named(squash(logits)))
        self._blocked = decision if decision.blocked else None
        return decision.blocked

    def _release(self, position: int) -> str:
        count = max(0, position - self._released)
        text, self._held = self._held[:count], self._held[count:]
        self._released += count
        return text
