"""The one taxonomy of errors: API errors, WebSocket closes, log lines and metrics are all made from it.

docs/errors.md holds the same table for users; a test compares the two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from schemas.base import Failure

Fault = Literal["caller", "service", "engine"]


@dataclass(frozen=True, slots=True)
class Kind:
    """One row of the taxonomy."""

    code: str
    http: int
    type: str
    """The class of the error in the specification's envelope."""
    retryable: bool
    fault: Fault
    close: int | None = None
    """WebSocket close code, where the socket does not live on."""


_ROWS = (
    Kind("invalid_request", 400, "invalid_request_error", False, "caller"),
    Kind("invalid_json", 400, "invalid_request_error", False, "caller"),
    Kind("unsupported", 400, "invalid_request_error", False, "caller"),
    Kind("context_length_exceeded", 400, "invalid_request_error", False, "caller"),
    Kind("model_not_found", 404, "invalid_request_error", False, "caller"),
    Kind("invalid_api_key", 401, "authentication_error", False, "caller", close=1008),
    Kind("origin_not_allowed", 403, "permission_error", False, "caller", close=1008),
    Kind("not_found", 404, "not_found_error", False, "caller"),
    Kind("previous_response_not_found", 404, "not_found_error", False, "caller"),
    Kind("response_in_progress", 409, "conflict_error", True, "caller"),
    Kind("conversation_busy", 429, "rate_limit_error", True, "caller"),
    Kind("request_too_large", 413, "invalid_request_error", False, "caller", close=1009),
    Kind("idempotency_key_reused", 422, "invalid_request_error", False, "caller"),
    Kind("rate_limit_exceeded", 429, "rate_limit_error", True, "caller", close=1008),
    Kind("websocket_connection_limit_reached", 400, "invalid_request_error", True, "service", close=1000),
    Kind("overloaded", 503, "server_error", True, "service", close=1013),
    Kind("slow_reader", 503, "server_error", True, "caller", close=1013),
    Kind("shutting_down", 503, "server_error", True, "service", close=1012),
    Kind("log_unavailable", 503, "server_error", True, "service", close=1013),
    Kind("store_unavailable", 503, "server_error", True, "service"),
    Kind("store_inconsistent", 503, "server_error", True, "service"),
    Kind("moderation_unavailable", 503, "server_error", True, "service"),
    Kind("start_deadline_exceeded", 503, "server_error", True, "service"),
    Kind("answer_deadline_exceeded", 503, "server_error", True, "engine"),
    Kind("engine_unavailable", 503, "server_error", True, "engine"),
    Kind("engine_error", 500, "server_error", True, "engine"),
    Kind("engine_refused", 500, "server_error", False, "engine"),
    Kind("unprocessable", 500, "server_error", True, "service"),
    Kind("expired", 503, "server_error", True, "service"),
    Kind("internal", 500, "server_error", True, "service", close=1011),
)

KINDS: dict[str, Kind] = {kind.code: kind for kind in _ROWS}


class ParleyError(Exception):
    """An error of the taxonomy: a code of KINDS, what to do about it, and the parameter it is about."""

    def __init__(self, code: str, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.kind = KINDS[code]
        self.message = message
        self.param = param

    def failure(self) -> Failure:
        """The same as part of an event."""
        return Failure(code=self.kind.code, message=self.message, retryable=self.kind.retryable)


def failure(code: str, message: str) -> Failure:
    """A failure of the taxonomy for an event.

    Raises:
        KeyError: no such code.
    """
    return Failure(code=code, message=message, retryable=KINDS[code].retryable)
