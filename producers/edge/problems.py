"""Errors as clients see them: one envelope over HTTP, one event over WebSocket, both from the taxonomy."""

from __future__ import annotations

import secrets
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ValidationError

from parley.errors import ParleyError
from producers.edge.resource import Json

RETRY_AFTER_S = 1
"""What a client is told to wait before it tries again."""
REQUEST_ID = "x-request-id"
BEHIND = {
    "log_unavailable": "The log does not answer at the moment. Try again, with the same Idempotency-Key.",
    "store_unavailable": "A store does not answer at the moment. Try again.",
}
"""What clients are told of the services behind the edge: their own words name hosts, topics and logins."""
M = TypeVar("M", bound=BaseModel)


def new_request_id() -> str:
    """A name under which an answer can be found in the logs."""
    return f"req_{secrets.token_hex(8)}"


def envelope(error: ParleyError) -> Json:
    """The specification's error body."""
    return {"error": _payload(error)}


def socket_error(error: ParleyError) -> bytes:
    """The specification's error event of a WebSocket."""
    return orjson.dumps({"type": "error", "status": error.kind.http, "error": _payload(error)})


def headers(error: ParleyError) -> dict[str, str]:
    """Headers that go with an error."""
    found = {"retry-after": str(RETRY_AFTER_S)} if error.kind.retryable else {}
    if error.kind.http == 401:
        found["www-authenticate"] = "Bearer"
    if error.kind.http == 422:
        found["x-should-retry"] = "false"
    return found


def parse_json(body: bytes | str) -> Json:
    """A JSON object.

    Raises:
        ParleyError: invalid_json.
    """
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ParleyError("invalid_json", f"The body is not JSON: {error}.") from None
    if not isinstance(value, dict):
        raise ParleyError("invalid_json", "The body must be a JSON object.")
    return value


def parse(model: type[M], value: Json) -> M:
    """A value of this model.

    Raises:
        ParleyError: invalid_request, about the first field that is wrong.
    """
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise _invalid(error) from None


def _invalid(error: ValidationError) -> ParleyError:
    # Of a union's branches, the one that got furthest is the one that was meant.
    worst: Any = max(error.errors(include_url=False), key=lambda each: len(each["loc"]))
    names = [part for part in worst["loc"] if isinstance(part, int) or _is_field(part)]
    param = "".join(f"[{name}]" if isinstance(name, int) else f".{name}" for name in names).lstrip(".")
    if worst["type"] == "extra_forbidden":
        return ParleyError("invalid_request", f"Unknown parameter: {param}.", param=param)
    said = worst["msg"].removeprefix("Value error, ").replace("valid tuple", "list").replace("Tuple", "List")
    return ParleyError("invalid_request", f"{param}: {said}." if param else f"{said}.", param=param or None)


def _is_field(part: str) -> bool:
    """Not one of pydantic's names for the branches of a union."""
    return part.isidentifier() and part.islower() and part != "str"


def _payload(error: ParleyError) -> Json:
    code = error.kind.code
    return {"type": error.kind.type, "code": code, "message": BEHIND.get(code, error.message), "param": error.param}
