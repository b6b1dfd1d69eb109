"""From what the engine says to what may be released: stop strings, then the guard's sliding window. Pure.

Everything is a function of the folded text and the new text, never of how the engine cut it, so an answer that is
continued by another worker ends the same.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from inference_workers.engine.stops import StopStrings
from parley.safety.classifier import Classifier
from parley.safety.guard import OutputGuard, Released
from parley.safety.policy import Decision, Policy
from schemas.prompts import InferenceRequest


@dataclass(frozen=True, slots=True)
class Step:
    """What one piece of engine output leads to."""

    text: str
    """To be released now."""
    over: bool = False
    """Nothing more will be released: a stop string has come, or the guard has blocked."""


class Answer:
    """The text of one run of a turn on its way from the engine to the route."""

    def __init__(self, request: InferenceRequest, classifier: Classifier, policy: Policy, prior: str) -> None:
        self._stops = StopStrings(request.sampling.stop, prior)
        self._guard = OutputGuard(classifier, policy, prior)
        self.blocked: Decision | None = None

    @property
    def stopped(self) -> bool:
        """A stop string of the request has ended the answer."""
        return self._stops.matched is not None

    @property
    def decision(self) -> Decision:
        """The guard's decision so far."""
        return self._guard.decision

    def feed(self, text: str) -> Step:
        """The engine has said more."""
        released = self._guard.feed(self._stops.feed(text))
        if released.blocked is None and self.stopped:
            # A stop string ends the answer as the engine does: what the guard holds back is its last window.
            tail = self._guard.finish()
            released = Released(released.text + tail.text, tail.blocked)
        self.blocked = released.blocked
        return Step(released.text, over=self.stopped or released.blocked is not None)

    def finish(self) -> Step:
        """The engine has ended: what was held back is scored as a last window and released, or dropped."""
        held = self._guard.feed(self._stops.finish())
        last = held if held.blocked is not None else self._guard.finish()
        self.blocked = last.blocked
        text = held.text if last is held else held.text + last.text
        return Step(text, over=True)


def seed_of(request: InferenceRequest, logged: int) -> int:
    """The engine's seed for a run that begins after `logged` characters: repeatable, and another one at each join."""
    given = request.sampling.seed
    material = f"{request.response if given is None else given}:{logged}".encode()
    return int.from_bytes(hashlib.sha256(material).digest()[:8]) >> 1
