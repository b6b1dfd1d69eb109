"""Where a turn's time went, as its records tell it."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel
from rich.console import Console

from parley.timeline.fold import Entry
from parley.timeline.waterfall import Gaps, Run, Stage, Waterfall, gaps, waterfall
from parley.timeline.waterfall_show import FIRST, REST, as_json, drawn
from parley.topics import AUDIT, PROMPTS, TOKENS, TURNS, VERDICTS
from schemas.base import Epoch, Timings
from schemas.operations import ContentRead
from schemas.prompts import PromptAccepted, Verdict
from schemas.turns import Feedback
from tests.unit.core.core_events import (
    ROUTE,
    SESSION,
    USER,
    delta,
    ended,
    fence,
    opened,
    request,
    response,
    said,
    started,
    terminal,
)

T0 = 1_700_000_000_000
QUEUE = "chat.inference.synthetic.free"


class Turn:
    """A turn's entries, at milliseconds after its acceptance."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def put(self, ms: int, topic: str, event: BaseModel, void: str | None = None) -> None:
        number = len(self.entries)
        self.entries.append(Entry(T0 + ms, topic, 3, number, event.type, response(1), event, void))  # type: ignore[attr-defined]

    def fall(self) -> Waterfall:
        found = waterfall(response(1), sorted(self.entries, key=lambda entry: entry.at))
        assert found is not None
        return found


def prompt(**fields: Any) -> PromptAccepted:
    about = {"response": response(1), "session": SESSION, "user": USER, "tier": "free", "accepted_at": T0}
    rest = {"model": "auto", "items": (said("hi"),), "new_session": True, "route": ROUTE}
    return PromptAccepted(**about | rest | fields)


def verdict(stage: str = "input") -> Verdict:
    about = {"response": response(1), "session": SESSION, "stage": stage, "decision": "allow"}
    return Verdict.model_validate(about | {"policy": "p1", "model": "m", "at": T0})


def begun(waiting: bool = False) -> Turn:
    """Accepted, judged, numbered and sent to a pool."""
    turn = Turn()
    turn.put(10, PROMPTS, prompt())
    turn.put(25, TOKENS, opened(waiting=waiting))
    turn.put(40, VERDICTS, verdict())
    turn.put(500 if waiting else 20, TURNS, started(1))
    turn.put(505 if waiting else 30, QUEUE, request(1))
    return turn


def times(taken: int, engine: int, token: int) -> Timings:
    return Timings(taken=T0 + taken, engine_started=T0 + engine, first_token=T0 + token)


def whole() -> Turn:
    turn = begun()
    turn.put(60, TOKENS, fence())
    for seq, ms in enumerate((200, 210, 220, 300)):
        turn.put(ms, TOKENS, delta(seq, "a"))
    turn.put(310, TOKENS, terminal(4))
    turn.put(330, TURNS, ended(1, timings=times(50, 90, 150)))
    turn.put(340, VERDICTS, verdict("output"))
    return turn


def span(fall: Waterfall, name: str) -> tuple[int, int | None]:
    """A stage's ends, in ms from acceptance on."""
    [stage] = [stage for stage in fall.stages if stage.name == name]
    return stage.start - T0, None if stage.end is None else stage.end - T0


def test_what_happens_to_a_turn_later_is_no_time_of_it() -> None:
    """A thumb the next day, an operator who looks at it, a zombie that wakes up: it did not take that long."""
    turn = whole()
    turn.put(40_000, TOKENS, delta(4, "z", "zombie"), "after the end")
    turn.put(60_000, TURNS, Feedback(response=response(1), session=SESSION, user=USER, rating="up", at=1))
    about = {"who": "ada@desk", "command": "parley log", "session": SESSION, "response": response(1), "what": "it"}
    turn.put(86_400_000, AUDIT, ContentRead.model_validate(about | {"at": 1}))
    assert turn.fall().last - T0 == 340
    assert "completed after 340 ms" in printed(turn.fall())


def test_every_stage_of_a_turn_is_told() -> None:
    fall = whole().fall()
    assert {stage.name: span(fall, stage.name) for stage in fall.stages} == {
        "log": (0, 10),
        "moderation": (10, 40),
        "orchestration": (10, 20),
        "context": (20, 30),
        "queue": (30, 50),
        "taking": (50, 60),
        "slot": (50, 90),
        "engine": (90, 150),
        "guard": (150, 200),
        "answer": (200, 300),
        "end": (300, 310),
        "proof": (310, 330),
        "verdict": (330, 340),
    }
    assert (fall.ttft_ms, fall.status, fall.turn, fall.pool, fall.tier) == (200, "completed", 1, "synthetic", "free")
    assert fall.notes == []


def test_moderation_runs_beside_the_orchestrator() -> None:
    fall = whole().fall()
    moderation, context = span(fall, "moderation"), span(fall, "context")
    assert moderation[0] < context[0] < (moderation[1] or 0)


def test_a_turn_that_waits_for_the_one_before_it_says_so() -> None:
    fall = begun(waiting=True).fall()
    assert span(fall, "orchestration") == (10, 25)
    assert span(fall, "waiting") == (25, 500)
    assert span(fall, "context") == (500, 505)
    assert span(fall, "queue") == (505, None)
    assert (fall.status, fall.ttft_ms, fall.notes) == (None, None, ["the turn has not ended"])


def test_runs_after_a_takeover_are_shown_with_the_time_that_nobody_wrote() -> None:
    turn = begun()
    turn.put(60, TOKENS, fence((1, 1, 1, 1), "old"))
    turn.put(100, TOKENS, delta(0, "a", "old"))
    turn.put(110, TOKENS, delta(1, "b", "old"))
    turn.put(2_000, TOKENS, fence((1, 1, 2, 1), "new"))
    turn.put(2_050, TOKENS, delta(2, "z", "old"), "not the current writer")
    turn.put(2_200, TOKENS, delta(2, "c", "new"))
    turn.put(2_230, TOKENS, delta(3, "d", "new"))
    turn.put(2_240, TOKENS, terminal(4, "new"))
    turn.put(2_250, TURNS, ended(1, epoch=(1, 1, 2, 1), timings=times(1_950, 1_960, 2_150)))
    fall = turn.fall()
    assert [(run.epoch, run.writer, len(run.deltas)) for run in fall.runs] == [
        ((1, 1, 1, 1), "old", 2),
        ((1, 1, 2, 1), "new", 2),
    ]
    assert span(fall, "queue") == (30, 60), "the first holder's times are not known: only its fence"
    assert span(fall, "takeover") == (110, 2_000)
    assert span(fall, "taking") == (1_950, 2_000)
    assert [(s.start - T0, s.end and s.end - T0) for s in fall.stages if s.name == "engine"] == [
        (60, 100),
        (1_960, 2_150),
    ]
    assert (fall.voids, fall.gaps.longest, fall.gaps.longest_before) == (1, 30, 3), "a takeover is no gap of a run"


def test_a_turn_that_ended_before_any_text_has_no_first_text() -> None:
    turn = begun()
    turn.put(60, TOKENS, fence())
    turn.put(90, TOKENS, terminal(0, kind="cancelled"))
    turn.put(95, TURNS, ended(1, status="cancelled", timings=Timings(taken=T0 + 50)))
    fall = turn.fall()
    assert (fall.ttft_ms, fall.status, span(fall, "engine"), span(fall, "proof")) == (
        None,
        "cancelled",
        (60, 90),
        (90, 95),
    )
    assert "no text" in printed(fall)


def test_a_clock_that_differs_is_held_between_the_appends_and_named() -> None:
    turn = whole()
    skewed = [e for e in turn.entries if e.event is not None and e.kind != "turn.ended"]
    turn.entries = skewed
    turn.put(330, TURNS, ended(1, timings=times(50 - 400, 90 - 400, 150 - 400)))
    fall = turn.fall()
    assert fall.notes == ["the worker's clock is 380 ms behind the log's"]
    assert span(fall, "queue") == (30, 30)
    assert all(stage.end is None or stage.start <= stage.end for stage in fall.stages)


def test_an_edge_whose_clock_is_ahead_does_not_make_negative_times() -> None:
    turn = Turn()
    turn.put(10, PROMPTS, prompt(accepted_at=T0 + 5_000))
    fall = turn.fall()
    assert (fall.began, fall.notes[0]) == (T0 + 10, "the edge's clock is 4990 ms ahead of the log's")


def test_what_retention_has_left_is_told() -> None:
    turn = Turn()
    turn.put(330, TURNS, started(1, accepted_at=T0))
    turn.put(330, TURNS, ended(1, accepted_at=T0))
    fall = turn.fall()
    assert (fall.status, fall.stages) == ("completed", [])
    assert "no longer in the log" in fall.notes[0]


def test_nothing_of_a_response_is_no_waterfall() -> None:
    assert waterfall(response(2), whole().entries) is None


def run(*deltas: int, epoch: Epoch = (1, 1, 1, 1)) -> Run:
    return Run(epoch, "w", 0, deltas)


@pytest.mark.parametrize(
    ("runs", "told"),
    [
        ([], Gaps()),
        ([run(5)], Gaps()),
        ([run(*range(0, 1_010, 10))], Gaps(100, 10, 10, 10, 1)),
        ([run(0, 10, 20, 20, 90)], Gaps(4, 10, 70, 70, 4)),
        ([run(0, 10), run(5_000, 5_020, 5_025)], Gaps(3, 10, 20, 20, 3)),
    ],
    ids=["no runs", "one delta", "even", "one long", "two runs"],
)
def test_gaps_are_those_that_there_were(runs: list[Run], told: Gaps) -> None:
    assert gaps(runs) == told


def printed(fall: Waterfall) -> str:
    console = Console(width=160)
    with console.capture() as capture:
        console.print(drawn(fall))
    return capture.get()


def test_it_is_drawn_to_scale_in_two_parts() -> None:
    text = printed(whole().fall())
    first, rest = text[text.index(FIRST) : text.index(REST)], text[text.index(REST) :]
    assert [line.split()[0] for line in first.splitlines()[2:] if line.strip()] == [
        *("log", "moderation", "orchestration", "context", "queue", "taking", "slot", "engine", "guard"),
    ]
    bars = {line.split()[0]: line.count("━") for line in text.splitlines() if "━" in line}
    assert (bars["engine"], bars["guard"], bars["answer"]) == (15, 12, 34), "48 columns are 200 ms, then 140 ms"
    assert "between 4 deltas: p50 10 ms, p99 80 ms, longest 80 ms before seq 3" in rest


def test_what_is_too_short_to_draw_is_marked() -> None:
    fall = whole().fall()
    fall.stages = [Stage("log", fall.began, fall.began + 1), Stage("engine", fall.began, None)]
    assert "╷" in printed(fall)


def test_json_has_the_same_in_ms_from_acceptance_on() -> None:
    told = as_json(whole().fall())
    assert (told["ttft_ms"], told["total_ms"], told["gaps"]["longest_ms"]) == (200, 340, 80)
    assert told["stages"][0] == {
        "stage": "log",
        "start_ms": 0,
        "end_ms": 10,
        "clock": "edge",
        "note": "the prompt, from the edge to all in-sync replicas",
    }
    assert told["runs"][0]["first_delta_ms"] == 200
