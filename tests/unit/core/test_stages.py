"""Where a turn's time went, from the times that it carries."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType
from typing import Any

import core_events
import pytest
from prometheus_client import REGISTRY

from consumers.orchestrator import ending as orchestrators
from inference_workers import course as workers
from inference_workers import metrics
from parley import stages
from parley.errors import KINDS, failure
from schemas.base import Timings, Usage
from schemas.turns import TurnEnded

TIMES = Timings(
    accepted=1_000,
    opened=1_010,
    moderated=1_040,
    dispatched=1_030,
    taken=1_035,
    engine_started=1_135,
    first_token=1_335,
    released=1_340,
    ended=3_000,
)


def ended(pool: str | None, **fields: Any) -> TurnEnded:
    given = {
        "tier": "paid",
        "pool": pool,
        "timings": TIMES,
        "usage": Usage(input_tokens=7, output_tokens=11, generated_tokens=12),
        "accepted_at": 1_000,
        "ended_at": 3_000,
    }
    return core_events.ended(1, **given | fields)


def told(name: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(name, labels)


def test_each_stage_is_the_time_between_its_two_ends() -> None:
    assert dict(stages.stages(TIMES)) == {
        "log": pytest.approx(0.015),  # 10 ms to the orchestrator, 5 ms to the worker
        "moderation": pytest.approx(0.04),
        "orchestration": pytest.approx(0.02),
        "queue": pytest.approx(0.1),
        "engine": pytest.approx(0.2),
        "guard": pytest.approx(0.005),
    }


def test_a_stage_that_was_not_reached_is_not_told() -> None:
    refused = Timings(accepted=1_000, opened=1_010, moderated=1_040, dispatched=1_030, taken=1_035)
    assert set(dict(stages.stages(refused))) == {"log", "moderation", "orchestration"}
    assert dict(stages.stages(Timings(accepted=1_000, ended=1_500))) == {}


def test_clocks_that_differ_make_no_negative_time() -> None:
    assert dict(stages.stages(Timings(accepted=1_000, moderated=990))) == {"moderation": 0}


def test_an_end_is_counted_once_with_its_fault() -> None:
    why = failure("moderation_unavailable", "no verdict")
    stages.expect("stages-a", [why.code])
    labels = {"pool": "stages-a", "tier": "paid", "status": "failed", "code": why.code, "fault": "service"}
    assert told("parley_turns_ended_total", **labels) == 0, "known before it happens"
    stages.observe(ended("stages-a", status="failed", failure=why))
    assert told("parley_turns_ended_total", **labels) == 1
    assert told("parley_stage_seconds_count", pool="stages-a", tier="paid", stage="engine") == 1


def test_an_end_without_a_pool_is_known_before_it_happens_and_an_expired_turn_under_both_its_names() -> None:
    stages.expect(None, orchestrators.FAILURES)
    for status, code in (("failed", "overloaded"), ("failed", "expired"), ("expired", "expired")):
        labels = {"pool": "none", "tier": "free", "status": status, "code": code, "fault": "service"}
        before = told("parley_turns_ended_total", **labels)
        assert before is not None, (status, code)
        stages.observe(ended(None, tier="free", status=status, failure=failure(code, "no")))
        assert told("parley_turns_ended_total", **labels) == before + 1


@pytest.mark.parametrize(
    ("role", "expected", "elsewhere"),
    [
        (orchestrators, orchestrators.FAILURES, {"unprocessable"}),  # on a route, and not in the state log
        (workers, workers.FAILURES, {"log_unavailable"}),  # stops the worker, and ends no turn
    ],
)
def test_a_role_expects_every_failure_of_ours_that_its_code_names(
    role: ModuleType, expected: tuple[str, ...], elsewhere: set[str]
) -> None:
    """`increase` of a series that begins with its first failure is 0."""
    sources = [path.read_text() for path in Path(str(role.__file__)).parent.rglob("*.py")]
    named = {code for text in sources for code in re.findall(r'(?:failure\(|Error\(|code = )"([a-z_]+)"', text)}
    ours = {code for code in named & KINDS.keys() if KINDS[code].fault != "caller"}
    assert ours, "the pattern finds them"
    assert ours - elsewhere <= set(expected)


def test_a_continued_turn_tells_no_stage_since_its_times_are_its_last_runs() -> None:
    one = ended("stages-b", continued_at=(40,))
    stages.observe(one)
    metrics.observe(one, "stages-b", said=2_900)
    assert told("parley_stage_seconds_count", pool="stages-b", tier="paid", stage="engine") is None
    model = {"model_name": "m", "pool": "stages-b", "tier": "paid"}
    assert told("vllm:time_to_first_token_seconds_count", **model) in (None, 0)
    assert told("vllm:generation_tokens_total", **model) == 12


def test_a_turn_is_told_under_the_names_that_dashboards_know() -> None:
    metrics.observe(ended("stages-c"), "stages-c", said=2_340)
    engine = {"model_name": "m", "pool": "stages-c", "tier": "paid"}
    public = {"gen_ai_operation_name": "chat", "gen_ai_request_model": "m", "pool": "stages-c", "tier": "paid"}
    assert told("gen_ai_server_time_to_first_token_seconds_sum", **public) == pytest.approx(0.34)
    assert told("gen_ai_server_time_per_output_token_seconds_sum", **public) == pytest.approx(0.1)
    assert told("gen_ai_server_request_duration_seconds_sum", **public, error_type="") == pytest.approx(2)
    assert told("gen_ai_client_token_usage_sum", **public, gen_ai_token_type="output") == 11
    assert told("vllm:time_to_first_token_seconds_sum", **engine) == pytest.approx(0.3)
    assert told("vllm:e2e_request_latency_seconds_sum", **engine) == pytest.approx(1.965)
    assert told("vllm:request_success_total", **engine, finished_reason="stop") == 1
