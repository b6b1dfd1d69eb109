"""Every topic, event, reader and writer as an AsyncAPI 3 document, made from topics.yaml and the events. Pure."""

from __future__ import annotations

from typing import Any

import yaml
from pydantic import BaseModel

from parley import __version__
from parley.log.topic_rules import span
from parley.topics import TOKENS, Topic, Topics
from schemas import export
from schemas.wire import EVENTS

FILE = export.FOLDER.parent / "asyncapi.yaml"
DIALECT = "application/schema+json;version=draft-2020-12"
KAFKA_BINDING = "0.5.0"
ROUTE_RECORD = "route.record"
"""What a record of a token topic is: a list of events."""
ABOUT = (
    "What Parley's roles tell each other over Kafka. Made by `parley schemas export` from topics.yaml and the events. "
    "Payloads are the schemas in json/. Each record has a header `type`; records of a turn name it in `response`."
)


def document(topics: Topics) -> dict[str, Any]:
    """The document as plain values."""
    session = topics.session_topic("{session}")
    tokens = topics.topics[TOKENS]
    shown = [*topics.topics.values(), session.model_copy(update={"writers": tokens.writers, "readers": tokens.readers})]
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Parley",
            "version": __version__,
            "description": ABOUT,
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/json",
        "channels": {_name(topic): _channel(topic, topics) for topic in shown},
        "operations": {name: told for topic in shown for name, told in _operations(topic)},
        "components": {"messages": _messages(shown, tokens)},
    }


def render(topics: Topics) -> str:
    """The document as YAML. The same code and file always give the same text."""
    return yaml.safe_dump(document(topics), sort_keys=False, allow_unicode=True, width=120)


def _name(topic: Topic) -> str:
    """The channel's: `{session}` is no part of a key."""
    return topic.name.replace("{", "").replace("}", "")


def _carried(topic: Topic) -> tuple[str, ...]:
    """Names of the messages on a topic."""
    events = set(topic.events)
    if events and events <= {"opened", "fence", "delta", "terminal"}:
        return (ROUTE_RECORD,)
    return tuple(event.replace(" ", ".") for event in topic.events)


def _channel(topic: Topic, topics: Topics) -> dict[str, Any]:
    kept = "compacted by key" if topic.retention_ms is None else f"kept for {span(topic.retention_ms / 1000)}"
    config: dict[str, Any] = {"cleanup.policy": [topic.cleanup]}
    if topic.retention_ms is not None:
        config["retention.ms"] = topic.retention_ms
    channel: dict[str, Any] = {
        "address": topic.name,
        "description": f"Keyed by {topic.key}; {kept}.",
        "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in _carried(topic)},
        "bindings": {
            "kafka": {
                "partitions": topic.partitions,
                "replicas": topics.replication,
                "topicConfiguration": config,
                "bindingVersion": KAFKA_BINDING,
            }
        },
    }
    if "{session}" in topic.name:
        channel["parameters"] = {"session": {"description": "The session's UUID as 32 hex digits."}}
    return channel


def _operations(topic: Topic) -> list[tuple[str, dict[str, Any]]]:
    channel = {"$ref": f"#/channels/{_name(topic)}"}
    sides = [("sends", "send", role) for role in topic.writers] + [("reads", "receive", role) for role in topic.readers]
    return [
        (f"{role}.{verb}.{_name(topic)}", {"action": action, "channel": channel, "tags": [{"name": role}]})
        for verb, action, role in sides
    ]


def _messages(shown: list[Topic], tokens: Topic) -> dict[str, Any]:
    names = dict.fromkeys(name for topic in shown for name in _carried(topic))
    return {name: _message(name, tokens) for name in sorted(names)}


def _message(name: str, tokens: Topic) -> dict[str, Any]:
    if name == ROUTE_RECORD:
        items = {"oneOf": [{"$ref": f"./json/{event}.json"} for event in tokens.events]}
        about = "A list of events of one turn's route, in order."
        return _told(name, about, {"type": "array", "items": items, "minItems": 1})
    event: type[BaseModel] | None = EVENTS.get(name)
    if event is None:
        return {
            "name": name,
            "summary": "Not an event: bytes of another kind.",
            "contentType": "application/octet-stream",
        }
    return _told(name, " ".join((event.__doc__ or "").split()), {"$ref": f"./json/{name}.json"})


def _told(name: str, summary: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": name,
        "summary": summary,
        "payload": {"schemaFormat": DIALECT, "schema": schema},
    }
