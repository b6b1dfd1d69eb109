"""From a turn's route to its public events. Pure: the numbers and bytes are a function of the fold alone.

`Projection` wraps the fold (parley.transcript) and turns every event that counts into events of the Open Responses
specification, numbered from 0 (protocol.md, section 3; docs/api.md, "Events, in order"):

======================  ==============================================================================================
the route says          the client gets
======================  ==============================================================================================
Opened                  response.created; response.queued if the turn waits
Fence, the first        response.in_progress
Delta, the first        response.output_item.added, response.content_part.added; then as every delta
Delta                   response.output_text.delta
Terminal                what is open is closed; a refusal is added; response.completed, .incomplete or .failed
======================  ==============================================================================================

Nothing is said before Opened, which a fence may precede: what was folded earlier is said when Opened arrives. An edge
that has the prompt acknowledged may say response.created before Opened (`announce`); its number is 0 all the same.
An Opened that points to another response, or reports a conflict of keys, has no public events.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import orjson

from parley.ids import message_id
from parley.transcript import Transcript, Void
from producers.edge.resource import (
    Json,
    failure_object,
    message_object,
    refusal_part,
    response_object,
    text_part,
    usage_object,
)
from schemas.base import JsonObject
from schemas.routes import Delta, Fence, Opened, Terminal

OUTPUT_ITEM = "output_item"
"""The field of a prompt's echo that holds the id of the message that the answer will be."""

TERMINAL_EVENTS = {
    "completed": "response.completed",
    "refused": "response.completed",
    "incomplete": "response.incomplete",
    "cancelled": "response.incomplete",
    "failed": "response.failed",
}
"""The client's last event, by the terminal's kind. Neither specification nor SDKs know an event for `cancelled`."""

_LINE_BREAKS = ((b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"), (b"\xc2\x85", b"\\u0085"))
"""Characters that some readers of event streams take for the end of a line, and how JSON says them otherwise."""


class PublicEvent(NamedTuple):
    """One event for clients: its type and its JSON, the same bytes over SSE and WebSocket."""

    type: str
    data: bytes


class Projection:
    """The public side of one response: feed it the route's events in log order, read `events`."""

    __slots__ = (
        "_delta_head",
        "_delta_tail",
        "_in_progress",
        "_item",
        "_said",
        "events",
        "id",
        "response",
        "transcript",
    )

    def __init__(self, response: str) -> None:
        self.id = response
        self.transcript = Transcript()
        self.events: list[PublicEvent] = []
        """All events so far; an event's index is its sequence number."""
        self.response: Json | None = None
        """The response object as the last lifecycle event showed it; None before response.created."""
        self._in_progress = False
        self._said = 0
        self._item = ""
        self._delta_head = b""
        self._delta_tail = b""

    @property
    def ended(self) -> bool:
        """The last event has been said."""
        return self.transcript.terminal is not None and self.response is not None

    def snapshot(self) -> Json | None:
        """The response as it is now, with what has been said of an answer that is still running."""
        if self.response is None or not self._said or self.ended:
            return self.response
        item = message_object(self._item, "in_progress", [text_part(self.transcript.text)])
        return self.response | {"output": [item]}

    def announce(self, echo: JsonObject) -> None:
        """Say response.created. Whoever calls it knows that the prompt is in the log and will get its own Opened."""
        if self.response is not None:
            return
        self.response = response_object(self.id, echo)
        self._item = str(echo.get(OUTPUT_ITEM) or message_id(self.id, 1))
        self._lifecycle("response.created")

    def apply(self, event: Opened | Fence | Delta | Terminal) -> Void | None:
        """Fold one event of the route. None: it counted; else why it is void."""
        void = self.transcript.apply(event)
        if void is not None:
            return void
        if isinstance(event, Opened) and event.duplicate_of is None and not event.conflict:
            self.announce(event.echo)
            if event.waiting:
                self._lifecycle("response.queued", status="queued")
        if self.response is not None and self.transcript.opened is not None:
            self._catch_up()
        return None

    def _catch_up(self) -> None:
        fold = self.transcript
        if fold.fence is not None and not self._in_progress:
            self._in_progress = True
            self._lifecycle("response.in_progress", status="in_progress")
        while self._said < len(fold.deltas):
            self._delta(fold.deltas[self._said])
            self._said += 1
        if fold.terminal is not None:
            self._end(fold.terminal)

    def _delta(self, text: str) -> None:
        if not self._said:
            self._open_item()
            self._open_part(0, text_part(""))
            self._delta_head = b'{"type":"response.output_text.delta","sequence_number":'
            self._delta_tail = (
                b',"item_id":'
                + orjson.dumps(self._item)
                + b',"output_index":0,"content_index":0,"logprobs":[],"delta":'
            )
        data = b"%b%d%b%b}" % (self._delta_head, len(self.events), self._delta_tail, orjson.dumps(text))
        self.events.append(PublicEvent("response.output_text.delta", data if text.isascii() else _one_line(data)))

    def _end(self, terminal: Terminal) -> None:
        content: list[Json] = []
        if self._said:
            content.append(text_part(self.transcript.text))
            self._part(0, "response.output_text.done", text=content[0]["text"], logprobs=[])
            self._part(0, "response.content_part.done", part=content[0])
        if terminal.refusal is not None:
            if not self._said:
                self._open_item()
            self._refuse(len(content), terminal.refusal)
            content.append(refusal_part(terminal.refusal))
        output: list[Json] = []
        if content:
            whole = terminal.kind in ("completed", "refused")
            output.append(message_object(self._item, "completed" if whole else "incomplete", content))
            self._say("response.output_item.done", output_index=0, item=output[0])
        self._lifecycle(TERMINAL_EVENTS[terminal.kind], output=output, **outcome(terminal))

    def _open_item(self) -> None:
        self._say("response.output_item.added", output_index=0, item=message_object(self._item, "in_progress", []))

    def _open_part(self, index: int, part: Json) -> None:
        self._part(index, "response.content_part.added", part=part)

    def _refuse(self, index: int, refusal: str) -> None:
        self._open_part(index, refusal_part(""))
        self._part(index, "response.refusal.delta", delta=refusal)
        self._part(index, "response.refusal.done", refusal=refusal)
        self._part(index, "response.content_part.done", part=refusal_part(refusal))

    def _part(self, index: int, type_: str, **fields: Any) -> None:
        self._say(type_, item_id=self._item, output_index=0, content_index=index, **fields)

    def _lifecycle(self, type_: str, **changes: Any) -> None:
        assert self.response is not None
        self.response = self.response | changes
        self._say(type_, response=self.response)

    def _say(self, type_: str, **fields: Any) -> None:
        data = orjson.dumps({"type": type_, "sequence_number": len(self.events), **fields})
        self.events.append(PublicEvent(type_, _one_line(data)))


def outcome(terminal: Terminal) -> Json:
    """The fields of a response that its end sets."""
    status = "completed" if terminal.kind == "refused" else terminal.kind
    reason = terminal.reason or "unknown"
    return {
        "status": status,
        "completed_at": terminal.ended_at // 1000 if status == "completed" else None,
        "model": terminal.model,
        "usage": usage_object(terminal.usage),
        "error": failure_object(terminal.failure) if terminal.failure is not None else None,
        "incomplete_details": {"reason": reason} if status == "incomplete" else None,
        **({"parley:dropped_turns": terminal.dropped_turns} if terminal.dropped_turns else {}),
    }


def _one_line(data: bytes) -> bytes:
    if not data.isascii():
        for raw, escaped in _LINE_BREAKS:
            data = data.replace(raw, escaped)
    return data
