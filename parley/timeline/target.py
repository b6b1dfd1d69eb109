"""What an operator asks for: a conversation, a response, or a session's UUID."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from parley.errors import ParleyError
from parley.ids import (
    ResponseAddress,
    UnknownId,
    parse_message_id,
    response_address,
    session_created_ms,
    session_of,
)

PREFIXES = ("conv_", "resp_", "msg_")
"""What public ids begin with."""


@dataclass(frozen=True, slots=True)
class Target:
    """A session, or one response of it."""

    text: str
    """As it was given."""
    session: UUID
    response: str | None = None

    @property
    def address(self) -> ResponseAddress | None:
        """What the response's id says; None for a session."""
        return response_address(self.response) if self.response else None

    @property
    def born_ms(self) -> int | None:
        """When the id was made, in ms: nothing of it is older. None for a session whose id comes from a key."""
        return self.address.accepted_ms if self.address else session_created_ms(self.session)


def parse_target(text: str) -> Target:
    """The target that `text` names: conv_…, resp_…, msg_… (its response), or a UUID.

    Raises:
        ParleyError: invalid_request.
    """
    try:
        if text.startswith("conv_"):
            return Target(text, session_of(text))
        if text.startswith("msg_"):
            return _response(text, parse_message_id(text)[0])
        if text.startswith("resp_"):
            return _response(text, text)
        return Target(text, UUID(text))
    except ValueError as error:  # UnknownId is one
        known = f": {error}" if isinstance(error, UnknownId) and str(error) != "not an id" else ""
        raise ParleyError(
            "invalid_request", f"{text!r} names nothing{known}. Give a conv_…, resp_… or msg_… id, or a session's UUID."
        ) from None


def _response(text: str, response: str) -> Target:
    return Target(text, response_address(response).session, response)
