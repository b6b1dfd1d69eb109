"""The document of all topics is valid, complete and the code's."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from parley.contract import asyncapi
from parley.topics import load_topics
from schemas.export import FOLDER
from schemas.wire import EVENTS

TOPICS = load_topics()
DOCUMENT = asyncapi.document(TOPICS)
SPECIFICATION = json.loads((Path(__file__).parents[2] / "data" / "asyncapi-3.0.0.json").read_text())
"""Of the AsyncAPI initiative (@asyncapi/specs 6.11.1, Apache-2.0)."""


def test_the_file_is_the_codes() -> None:
    assert asyncapi.FILE.read_text() == asyncapi.render(TOPICS), "run `parley schemas export`"


def test_it_is_valid_by_the_specification() -> None:
    jsonschema.Draft7Validator(SPECIFICATION).validate(DOCUMENT)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft7Validator(SPECIFICATION).validate(DOCUMENT | {"channels": 1})


def test_every_topic_has_a_channel_and_every_event_a_message_with_its_schema() -> None:
    assert set(DOCUMENT["channels"]) == {*TOPICS.topics, "chat.tokens.s.session"}
    messages = DOCUMENT["components"]["messages"]
    on_routes = {"opened", "fence", "delta", "terminal"}
    assert set(EVENTS) - on_routes <= set(messages)
    for name in set(EVENTS) & set(messages):
        assert messages[name]["payload"]["schema"] == {"$ref": f"./json/{name}.json"}
    listed = {item["$ref"] for item in messages["route.record"]["payload"]["schema"]["items"]["oneOf"]}
    assert listed == {f"./json/{name}.json" for name in on_routes}


def test_what_it_refers_to_exists() -> None:
    for name in EVENTS:
        assert (FOLDER / f"{name}.json").exists()
    for channel in DOCUMENT["channels"].values():
        for message in channel["messages"].values():
            assert message["$ref"].rpartition("/")[2] in DOCUMENT["components"]["messages"]
    for operation in DOCUMENT["operations"].values():
        assert operation["channel"]["$ref"].removeprefix("#/channels/") in DOCUMENT["channels"]


def test_who_reads_and_writes_is_told() -> None:
    operations = DOCUMENT["operations"]
    assert operations["orchestrator.sends.chat.control"]["action"] == "send"
    assert operations["worker.reads.chat.inference.smol.paid"]["action"] == "receive"
    assert "history.sends.chat.turns" not in operations
