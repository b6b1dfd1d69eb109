"""The public objects: a response and the messages in it, with every field that the specification requires."""

from __future__ import annotations

from typing import Any

from parley.ids import response_address
from schemas.base import Failure, Item, JsonObject, Text, Usage

Json = dict[str, Any]

ECHO_DEFAULTS: Json = {
    "model": "",
    "previous_response_id": None,
    "conversation": None,
    "instructions": None,
    "tools": [],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "truncation": "auto",
    "text": {"format": {"type": "text"}},
    "temperature": 1.0,
    "top_p": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "top_logprobs": 0,
    "reasoning": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "store": True,
    "background": False,
    "service_tier": "default",
    "metadata": {},
    "safety_identifier": None,
    "prompt_cache_key": None,
    "user": None,
}
"""What a response repeats of its request, where the request said nothing. A prompt's `echo` holds what differs."""


def response_object(response: str, echo: JsonObject) -> Json:
    """A response that has just been created: in progress, without output.

    Its fields depend on the id and the echo only, so that every edge says the same.
    """
    known = {name: echo.get(name, default) for name, default in ECHO_DEFAULTS.items()}
    return {
        "id": response,
        "object": "response",
        "created_at": response_address(response).accepted_ms // 1000,
        "completed_at": None,
        "status": "in_progress",
        "incomplete_details": None,
        "error": None,
        "output": [],
        "usage": None,
        **known,
    }


def usage_object(usage: Usage) -> Json:
    """Token counts in the specification's form. Output tokens are those released to the reader."""
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }


def failure_object(failure: Failure) -> Json:
    """The error of a failed response; whether to try again is said in a field of ours."""
    return {"code": failure.code, "message": failure.message, "parley:retryable": failure.retryable}


def text_part(text: str) -> Json:
    """A part of an answer's text."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def refusal_part(refusal: str) -> Json:
    """A part that says that something was not answered."""
    return {"type": "refusal", "refusal": refusal}


def message_object(item_id: str, status: str, content: list[Json], role: str = "assistant") -> Json:
    """A message item."""
    return {"id": item_id, "type": "message", "status": status, "role": role, "content": content}


def item_object(item: Item) -> Json:
    """A kept item as a public message: what a user sent is input text, what the assistant said output text."""
    content: list[Json] = []
    for part in item.parts:
        if not isinstance(part, Text):
            content.append(refusal_part(part.refusal))
        elif item.role == "assistant":
            content.append(text_part(part.text))
        else:
            content.append({"type": "input_text", "text": part.text})
    return message_object(item.id, item.status, content, item.role)
