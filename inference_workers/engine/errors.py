"""What can go wrong between a worker and its engine, as errors of Parley's taxonomy."""

from __future__ import annotations

from parley.errors import ParleyError


class EngineError(ParleyError):
    """The engine failed in the middle of something; another engine, or the same later, may do better.

    Its text is for logs: it may hold what the server said, never what a user said.
    """

    code = "engine_error"

    def __init__(self, message: str) -> None:
        super().__init__(self.code, message)

    @property
    def retryable(self) -> bool:
        """Whether another run of the turn may succeed."""
        return self.kind.retryable


class EngineUnavailable(EngineError):
    """No engine answers at the address, or its model is not there."""

    code = "engine_unavailable"


class EngineSilent(EngineError):
    """A stream said nothing for longer than the limit. A dead model process looks like this, and like nothing else."""

    code = "engine_unavailable"


class EngineRefused(EngineError):
    """The engine won't do this request, however often it is asked."""

    code = "engine_refused"
