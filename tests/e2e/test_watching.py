"""What Prometheus sees of the running system: a turn is told whole, and a consumer that stops is an alert."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
from collections.abc import AsyncIterator

import pytest

from infra.local.problems import StackError
from infra.local.prometheus import ensure_prometheus
from infra.watch.boards import BOARDS
from tests.e2e.chat import chatting
from tests.e2e.conftest import System
from tests.e2e.test_faults import read
from tests.e2e.watching import Watch
from tests.e2e.watching import watch as watching

STAGES = {"edge", "log", "moderation", "orchestration", "queue", "engine", "guard", "fan-out"}
SELDOM = {
    "Deaths, failed runs, turns begun anew",
    "Failures by code",
    "Given up, by group",
    "Partitions without a holder",
    "Age of the last commit, of busy partitions",
}
"""Panels that are empty while nothing is wrong."""


def with_choices(query: str) -> str:
    """As Grafana asks it when everything is chosen."""
    return re.sub(r"\$(pool|group|instance)", ".*", query.replace("$__rate_interval", "1m"))


async def empty_panels(watch: Watch) -> set[str]:
    """The titles of panels that none of their queries has an answer for."""
    empty = set()
    for panel in (panel for board in BOARDS for row in board.rows for panel in row.panels):
        if not any([await watch.ask(with_choices(query.ask)) for query in panel.queries]):
            empty.add(panel.title)
    return empty


@pytest.fixture(scope="module")
async def watch(system: System, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Watch]:
    try:
        programs = await ensure_prometheus(system.settings)
    except StackError as error:
        pytest.skip(f"there is no Prometheus here: {error}")
    async with watching(system, programs, tmp_path_factory.mktemp("prometheus"), "orchestrator", "moderation") as seen:
        yield seen


async def test_everything_answers_and_a_turn_is_told_in_all_its_stages(system: System, watch: Watch) -> None:
    async with chatting(system) as chat:
        await chat.say("hello", model="synthetic", max_output_tokens=16)
    async with asyncio.timeout(30):
        while set(await watch.health()) != {"up"}:
            await asyncio.sleep(0.2)
        while {s["metric"]["stage"] for s in await watch.ask('parley_stage_seconds_count{pool="synthetic"}')} != STAGES:
            await asyncio.sleep(0.2)
    for told in (
        "parley_first_text_seconds_count",
        "parley_text_gap_seconds_count",
        "gen_ai_server_time_to_first_token_seconds_count",
        "gen_ai_server_time_per_output_token_seconds_count",
        "gen_ai_server_request_duration_seconds_count",
        "vllm:time_to_first_token_seconds_count",
        "vllm:inter_token_latency_seconds_count",
        "vllm:generation_tokens_total",
        'parley_turns_ended_total{status="incomplete"}',
    ):
        await watch.until_told(told)
    [slots] = await watch.ask('sum(parley_engine_slots{pool="synthetic"})')
    assert float(slots["value"][1]) == 256
    await watch.until_told('parley_consumer_partitions{group="orchestrator", taking="taking"}')
    await watch.until_told('parley_lag_state{group="orchestrator"} == bool 0')
    members = {"moderation", "orchestrator", "worker-smol", "history-messages", "history-sessions", "parley-usage"}
    beats = await watch.ask("parley_consumer_poll_age_seconds < 10")
    assert members <= {sample["metric"]["group"] for sample in beats}


async def test_every_rule_and_every_panel_is_a_question_that_prometheus_can_answer(watch: Watch) -> None:
    """A query that joins what has no label in common is well-formed, and answers nothing, for ever."""
    empty: set[str] = set()
    try:
        async with asyncio.timeout(30):  # a rate takes two scrapes
            while (empty := await empty_panels(watch)) - SELDOM:
                await asyncio.sleep(0.5)
    except TimeoutError:
        raise AssertionError(f"these panels say nothing: {empty - SELDOM}") from None
    for rule in await watch.rules():
        assert rule.get("lastError", "") == "", rule


async def test_an_orchestrator_that_hangs_is_an_alert_until_it_goes_on(system: System, watch: Watch) -> None:
    """Field case F71 (b): a consumer that stops is seen from outside of it, by an alert that says who, and ends."""

    def stopped(firing: list[dict[str, str]]) -> bool:
        return any(a["alertname"] == "LagStop" and a["group"] == "orchestrator" for a in firing)

    await watch.until(lambda firing: not stopped(firing))
    pid = system.pid_of("orchestrator")
    os.kill(pid, signal.SIGSTOP)
    try:
        async with chatting(system) as chat:
            await chat.send(type="response.create", model="synthetic", input="hello", max_output_tokens=16)
            await watch.until(stopped)
            os.kill(pid, signal.SIGCONT)
            heard = await read(chat.events(), 1, lambda: None)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    assert heard.last["type"] == "response.incomplete"
    await watch.until(lambda firing: not stopped(firing))
