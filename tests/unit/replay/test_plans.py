"""Plans of the orchestrator, made again: the fold is its own, so is the planning."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from consumers.orchestrator.planning import plan
from parley.session import Session
from parley.settings import Settings
from parley.topics import TOPICS_FILE
from producers.replay.plans import CONTEXT, FAILS, NEVER, POOL, RUNS, TORN, Replanning, compare
from producers.replay.replanning import with_topics
from producers.replay.report import SAME, Report
from schemas.turns import TurnStarted
from schemas.wire import TurnsEvent
from tests.unit.core.core_events import ended, failed, response, started
from tests.unit.replay.replay_parts import manifest, prompt, taken

PROMPTS = [prompt(n, f"question {n} of the conversation", new_session=n == 1) for n in (1, 2, 3)]


def settings(folder: Path, context: int = 400, **pool: Any) -> Settings:
    """Those of a cluster whose only pool counts words."""
    raw = yaml.safe_load(TOPICS_FILE.read_text())
    name = pool.pop("name", "synthetic")
    raw["pools"] = {name: raw["pools"]["synthetic"] | {"context": context} | pool}
    raw["routing"] = [{"model": "synthetic", "pool": name}]
    file = folder / f"topics-{name}-{context}.yaml"
    file.write_text(yaml.safe_dump(raw))
    return with_topics(Settings(), file)


def a_conversation(live: Settings) -> list[TurnsEvent]:
    """Three turns as the orchestrator plans them, with their ends."""
    session, events = Session(PROMPTS[0].session), list[TurnsEvent]()
    for number, each in enumerate(PROMPTS, start=1):
        events += [plan(live, session, each, (1, number), 9), ended(number)]
        for event in events[-2:]:
            session.apply(event)
    return events


def replanned(settings: Settings, events: Sequence[TurnsEvent]) -> Report:
    prompts = taken(*PROMPTS)
    replanning = Replanning(settings, {each.event.response: each for each in prompts})
    for event in events:
        replanning.fold(event)
    return compare(manifest(), prompts, replanning, {})


def changes(report: Report) -> list[str]:
    return [row.change for row in report.rows]


def test_under_the_same_table_every_plan_is_what_it_was(tmp_path: Path) -> None:
    live = settings(tmp_path)
    report = replanned(live, a_conversation(live))
    assert changes(report) == [SAME, SAME, SAME]
    assert report.rows[2].after["turns kept"] == 2


def test_a_smaller_window_keeps_fewer_turns(tmp_path: Path) -> None:
    report = replanned(settings(tmp_path, 45), a_conversation(settings(tmp_path)))
    assert changes(report)[0] == SAME
    last = report.rows[2]
    assert last.change == CONTEXT
    assert (last.before["turns kept"], last.after["turns kept"], last.after["turns dropped"]) != (2, 2, 0)
    assert int(last.after["tokens"] or 0) < int(last.before["tokens"] or 0)
    assert report.totals["tokens of prompts now"] < report.totals["tokens of prompts before"]


def test_another_pool_is_another_route(tmp_path: Path) -> None:
    report = replanned(settings(tmp_path, name="other"), a_conversation(settings(tmp_path)))
    assert changes(report) == [POOL] * 3
    assert (report.rows[0].before["pool"], report.rows[0].after["pool"]) == ("synthetic", "other")


def test_what_no_longer_fits_at_all_fails_now(tmp_path: Path) -> None:
    report = replanned(settings(tmp_path, 20), a_conversation(settings(tmp_path)))
    assert changes(report) == [FAILS] * 3
    assert report.rows[0].after == {"failure": "context_length_exceeded"}


def test_what_failed_for_want_of_room_may_run_now(tmp_path: Path) -> None:
    too_long = failed(retryable=False).model_copy(update={"code": "context_length_exceeded"})
    events: list[TurnsEvent] = [started(1, pool=None, why="failed", failure=too_long, items=PROMPTS[0].items)]
    assert changes(replanned(settings(tmp_path), events))[0] == RUNS


@pytest.mark.parametrize("why", ["refused", "cancelled", "expired"])
def test_what_ended_before_its_turn_came_was_never_planned(tmp_path: Path, why: str) -> None:
    assert changes(replanned(settings(tmp_path), [started(1, pool=None, why=why)])) == [NEVER] * 3


def test_without_the_sessions_beginning_nothing_is_said_of_its_contexts(tmp_path: Path) -> None:
    live = settings(tmp_path)
    report = replanned(live, a_conversation(live)[2:])
    assert changes(report) == [NEVER, TORN, TORN]


def test_a_decision_that_never_counted_is_passed_over(tmp_path: Path) -> None:
    """A zombie's TurnStarted after the end of its turn: the plan that stands is compared, not that one."""
    live = settings(tmp_path)
    events = a_conversation(live)
    first = events[0]
    assert isinstance(first, TurnStarted)
    zombie = first.model_copy(update={"pool": "gone", "prompt_tokens": 1, "dispatch": (9, 9)})
    report = replanned(live, [*events[:2], zombie, *events[2:]])
    assert changes(report) == [SAME, SAME, SAME]
    assert report.rows[0].response == response(1)
