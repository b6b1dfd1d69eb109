"""What is on the wire is what schemas/json says, and readers refuse what they would misread."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import UUID

import jsonschema
import pytest
from pydantic import BaseModel, ValidationError

from schemas import export
from schemas.base import NO_EPOCH, Failure, Item, Refusal, Route, Sampling, Text, Timings, Usage
from schemas.operations import ContentRead, OffsetsMoved, PartitionMoved, PoolDrain, PoolStatus, UsageLimit
from schemas.prompts import Cancel, InferenceRequest, OutputItem, PromptAccepted, Verdict
from schemas.routes import (
    Delta,
    Fence,
    Opened,
    Terminal,
    decode_route_record,
    encode_delta,
    encode_route_record,
)
from schemas.turns import Feedback, SessionChanged, SessionDeleted, TurnEnded, TurnStarted
from schemas.wire import EVENTS, BadRecord, decoder, encode

RESPONSE = "resp_" + "A" * 56
SESSION = UUID("01934b1e-0000-7000-8000-0000000000aa")
USER = UUID("7d2f0c6e-3b9b-4f4e-9f6f-000000000001")
ROUTE = Route(topic="chat.tokens", partition=3, start=41)
QUESTION = Item(id="msg_" + "B" * 59, role="user", parts=(Text(text="Wie geht’s? 🙂"),))
ANSWER = Item(
    id="msg_" + "C" * 59, role="assistant", status="incomplete", parts=(Text(text="Gut"), Refusal(refusal="Halt."))
)
VERDICT = Verdict(
    response=RESPONSE,
    session=SESSION,
    stage="input",
    decision="block",
    categories=("violence",),
    scores={"violence": 0.97},
    policy="p1",
    model="m1",
    at=1,
)

EXAMPLES: tuple[BaseModel, ...] = (
    PromptAccepted(
        response=RESPONSE,
        session=SESSION,
        user=USER,
        tier="paid",
        accepted_at=1,
        model="auto",
        items=(QUESTION,),
        sampling=Sampling(temperature=0.5, stop=("\n",)),
        new_session=True,
        route=ROUTE,
        echo={"metadata": {"k": "v"}},
    ),
    VERDICT,
    Cancel(response=RESPONSE, session=SESSION, user=USER, at=1),
    InferenceRequest(
        response=RESPONSE,
        session=SESSION,
        user=USER,
        tier="free",
        turn=2,
        parent=RESPONSE,
        dispatch=(3, 1),
        pool="smol",
        model="smollm2-135m-instruct",
        prompt="<|im_start|>user\n",
        prompt_tokens=4,
        max_tokens=100,
        sampling=Sampling(),
        output=OutputItem(id=ANSWER.id),
        route=ROUTE,
        deadline=10,
        moderation_deadline=5,
        verdict=VERDICT,
        template="chatml",
        timings=Timings(accepted=1),
    ),
    Opened(session=SESSION, user=USER, created_at=1, waiting=True, duplicate_of=RESPONSE),
    Fence(epoch=(1, 2, 3, 4), writer="w"),
    Delta(writer="w", seq=0, text="Gut", tokens=1),
    Terminal(
        writer="w",
        seq=1,
        kind="failed",
        failure=Failure(code="engine_error", message="it failed", retryable=True),
        model="m",
        usage=Usage(input_tokens=4, output_tokens=1, generated_tokens=2),
        ended_at=2,
    ),
    TurnStarted(
        response=RESPONSE,
        session=SESSION,
        user=USER,
        tier="paid",
        turn=1,
        parent=None,
        items=(QUESTION,),
        pool=None,
        why="cancelled",
        model="auto",
        dispatch=(1, 0),
        route=ROUTE,
        deadline=10,
        moderation_deadline=5,
        accepted_at=1,
    ),
    TurnEnded(
        response=RESPONSE,
        session=SESSION,
        user=USER,
        tier="paid",
        turn=1,
        parent=None,
        dispatch=(1, 0),
        epoch=NO_EPOCH,
        status="expired",
        output=(ANSWER,),
        delta_lengths=(1, 2),
        model="m",
        code="0.1.0",
        accepted_at=1,
        ended_at=2,
    ),
    SessionChanged(session=SESSION, user=USER, at=1, opened=True, metadata={"k": "v"}),
    SessionDeleted(session=SESSION, user=USER, at=1),
    Feedback(response=RESPONSE, session=SESSION, user=USER, rating="up", at=1),
    PoolStatus(pool="smol", worker="w", slots=16, running=3, queued={"paid": 1}, oldest_queued_ms={"paid": 20}, at=1),
    PoolDrain(pool="smol", engine="10.0.0.1:8001", drained=True, who="ada@desk", at=1),
    OffsetsMoved(
        who="ada@desk",
        command="parley group reset",
        group="history-messages",
        topic="chat.turns",
        moved=(PartitionMoved(partition=3, before=None, after=9),),
        at=1,
    ),
    UsageLimit(user=USER, limit="tokens_per_hour", over=True, until=9, at=1),
    ContentRead(who="ada@desk", command="parley log", session=SESSION, response=RESPONSE, what=RESPONSE, at=1),
)

each = pytest.mark.parametrize("event", EXAMPLES, ids=lambda event: str(event.type))


def with_fields(event: BaseModel, **fields: Any) -> bytes:
    return json.dumps(json.loads(encode(event)) | fields).encode()


def test_there_is_an_example_of_every_event() -> None:
    assert [type(event) for event in EXAMPLES] == list(EVENTS.values())


def test_the_exported_schemas_are_those_of_the_code() -> None:
    assert export.differences() == []


def test_check_names_what_is_missing_changed_or_left_over(tmp_path: Path) -> None:
    export.export(tmp_path)
    assert export.differences(tmp_path) == []
    (tmp_path / "cancel.json").unlink()
    (tmp_path / "fence.json").write_text("{}\n")
    (tmp_path / "gone.json").write_text("{}\n")
    assert export.differences(tmp_path) == ["cancel.json", "fence.json", "gone.json"]
    export.export(tmp_path)
    assert export.differences(tmp_path) == []


def test_an_unknown_argument_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert export.main(["--chekc"]) == 2
    assert "usage" in capsys.readouterr().err
    assert export.main(["--check"]) == 0


@each
def test_what_is_written_satisfies_the_exported_schema(event: BaseModel) -> None:
    schema = json.loads((export.FOLDER / f"{event.type}.json").read_text())  # type: ignore[attr-defined]
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(json.loads(encode(event)), schema)


@each
def test_an_event_comes_back_as_it_was(event: BaseModel) -> None:
    assert decoder(type(event))(encode(event)) == event


@each
def test_an_unknown_version_is_refused(event: BaseModel) -> None:
    with pytest.raises(BadRecord, match=r"^v: "):
        decoder(type(event))(with_fields(event, v=99))


@each
def test_fields_of_newer_writers_are_ignored(event: BaseModel) -> None:
    assert decoder(type(event))(with_fields(event, invented_later={"a": [1]})) == event


@each
def test_another_events_type_is_refused(event: BaseModel) -> None:
    with pytest.raises(BadRecord, match=r"^type: "):
        decoder(type(event))(with_fields(event, type="something.else"))


@each
@pytest.mark.parametrize("wrong", [["a list"], 1.5, {"an": "object"}], ids=["list", "number", "object"])
def test_a_required_field_of_a_wrong_type_is_refused(event: BaseModel, wrong: Any) -> None:
    name = next(name for name, field in type(event).model_fields.items() if field.is_required())
    with pytest.raises(BadRecord, match=f"^{name}"):
        decoder(type(event))(with_fields(event, **{name: wrong}))


@each
def test_a_missing_required_field_is_named(event: BaseModel) -> None:
    name = next(name for name, field in type(event).model_fields.items() if field.is_required())
    fields = json.loads(encode(event))
    del fields[name]
    with pytest.raises(BadRecord, match=f"^{name}: "):
        decoder(type(event))(json.dumps(fields).encode())


@pytest.mark.parametrize(
    "value",
    [None, b"", b"\xff\xfe{", b"null", b"[]", b"{", b'"text"'],
    ids=["none", "empty", "bytes", "null", "list", "cut", "text"],
)
def test_bytes_that_are_no_event_are_a_bad_record(value: bytes | None) -> None:
    with pytest.raises(BadRecord):
        decoder(TurnStarted, TurnEnded)(value)


def test_numbers_are_not_read_from_text() -> None:
    with pytest.raises(BadRecord, match="at"):
        decoder(Cancel)(with_fields(EXAMPLES[2], at="1"))


def test_a_refusal_does_not_repeat_what_somebody_wrote() -> None:
    with pytest.raises(BadRecord) as caught:
        decoder(Delta)(with_fields(EXAMPLES[6], text={"secret": "hunter2"}))
    assert "hunter2" not in str(caught.value)


def test_a_topic_of_several_events_tells_them_by_type() -> None:
    decode = decoder(TurnStarted, TurnEnded, SessionChanged, SessionDeleted, Feedback)
    for event in EXAMPLES[8:13]:
        assert decode(encode(event)) == event
    with pytest.raises(BadRecord):
        decode(encode(EXAMPLES[2]))


def test_a_route_record_is_a_list_of_events() -> None:
    events = tuple(event for event in EXAMPLES if isinstance(event, Opened | Fence | Delta | Terminal))
    assert decode_route_record(encode_route_record(events)) == events
    with pytest.raises(ValidationError):
        decode_route_record(encode(EXAMPLES[5]))


def test_a_delta_encoded_fast_is_the_same_bytes() -> None:
    delta = Delta(writer="w", seq=7, text='a "quoted"\n🙂 ü\u2028', tokens=2)
    assert encode_delta("w", 7, delta.text, 2) == encode_route_record((delta,))
