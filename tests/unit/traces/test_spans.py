"""A turn's end as a trace, and what of a client's trace is believed."""

from __future__ import annotations

import pytest

from consumers.traces.spans import Span, spans
from producers.edge.acceptance import Author, traced
from schemas.base import Timings, Usage
from tests.unit.core.core_events import USER, ended, failed, response

T0 = 1_700_000_000_000
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TIMES = Timings(
    accepted=T0,
    moderated=T0 + 9,
    dispatched=T0 + 20,
    taken=T0 + 30,
    engine_started=T0 + 35,
    first_token=T0 + 90,
    released=T0 + 120,
)


def told(**fields: object) -> list[Span]:
    about = {"accepted_at": T0, "ended_at": T0 + 500, "timings": TIMES, "engine": "10.0.0.7:8001"}
    return spans(ended(1, **about | fields))


def test_stages_are_the_children_of_the_turn() -> None:
    own, *children = told()
    assert (own.name, own.parent, own.start, own.end, own.first_token) == ("chat m", None, T0, T0 + 500, T0 + 120)
    assert [(child.name, child.start - T0, child.end - T0) for child in children] == [
        ("moderation", 0, 9),
        ("orchestration", 0, 20),
        ("queue", 20, 30),
        ("slot", 30, 35),
        ("text_completion m", 35, 500),
        ("guard", 90, 120),
    ]
    assert {child.parent for child in children} == {own.id}
    assert len({span.id for span in (own, *children)}) == 7
    assert {span.trace for span in children} == {own.trace}


def test_attributes_are_those_of_the_conventions() -> None:
    own, *children = told(usage=Usage(input_tokens=7, output_tokens=40, generated_tokens=41), reason="content_filter")
    assert own.attributes["gen_ai.operation.name"] == "chat"
    assert own.attributes["gen_ai.response.id"] == response(1)
    assert own.attributes["gen_ai.usage.input_tokens"] == 7
    assert own.attributes["gen_ai.response.finish_reasons"] == ("content_filter",)
    [engine] = [child for child in children if child.calls]
    assert (engine.attributes["server.address"], engine.attributes["server.port"]) == ("10.0.0.7", 8001)


def test_nothing_that_was_said_is_in_a_trace() -> None:
    assert "answer 1" not in repr(told())


def test_a_clients_trace_goes_on() -> None:
    own, *children = told(traceparent=PARENT)
    assert (own.trace, own.parent) == ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")
    assert all(child.trace == own.trace and child.parent == own.id for child in children)


def test_the_same_end_is_the_same_trace_however_often_it_is_said() -> None:
    assert told() == told()


def test_a_turn_that_never_ran_has_what_is_known_of_it() -> None:
    [own] = told(status="expired", timings=Timings(accepted=T0), output=())
    assert own.error == "expired"
    [own, *_] = told(status="failed", failure=failed(retryable=True))
    assert (own.error, own.attributes["error.type"]) == ("engine_error", "engine_error")


def test_clocks_that_differ_make_no_negative_time() -> None:
    times = TIMES.model_copy(update={"taken": T0 - 5_000})
    assert all(span.start <= span.end for span in told(timings=times))


@pytest.mark.parametrize(
    ("sent", "believed"),
    [
        (PARENT, PARENT),
        (None, None),
        ("", None),
        (PARENT.upper(), None),
        (PARENT + "-more", None),
        ("ff" + PARENT[2:], None),
        ("00-" + "0" * 32 + "-b7ad6b7169203331-01", None),
        ("00-0af7651916cd43dd8448eb211c80319c-" + "0" * 16 + "-01", None),
        (PARENT + "\n", None),
    ],
)
def test_only_a_traceparent_of_version_00_is_taken_from_a_client(sent: str | None, believed: str | None) -> None:
    assert traced(Author(USER, "free"), sent).trace == believed
