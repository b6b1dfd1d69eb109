"""Hundreds of days on which everything goes wrong, each from its seed; see the package's docstring."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from parley.settings import ROOT
from tests.simulation.mutations import MUTATIONS
from tests.simulation.scenarios import SCENARIOS

SEEDS = 60
"""Always the same ones, from 0 on: about 30 s of one core. More: `python -m tests.simulation --count`."""
CPU_S = 60
"""A slow core begins no more of them after so much time; fewer than `LEAST` is a failure."""
LEAST = 50

Outcome = dict[str, Any]


def run(*arguments: str) -> list[Outcome]:
    """What came of schedules, from a process of its own: the Kafka client of this one stays the real one."""
    command = [sys.executable, "-m", "tests.simulation", "--json", *arguments]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": "0"}, capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 1), done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def outcomes() -> list[Outcome]:
    return run("--first", "0", "--count", str(SEEDS), "--seconds", str(CPU_S))


@pytest.fixture(scope="module")
def repaired() -> dict[str, Outcome]:
    return {outcome["name"]: outcome for outcome in run(*(f"--scenario={name}" for name in SCENARIOS))}


def test_whatever_goes_wrong_every_promise_is_kept_and_all_heals(outcomes: list[Outcome]) -> None:
    broken = {outcome["name"]: outcome["problems"] for outcome in outcomes if outcome["problems"]}
    assert not broken, "to see what happened: python -m tests.simulation --seed N --trace"
    assert len(outcomes) >= LEAST


def test_the_schedules_are_worth_their_time(outcomes: list[Outcome]) -> None:
    """Turns end in every way there is, and every one ends."""
    ends = [kind.split(" ")[0] for outcome in outcomes for kind, count in outcome["ends"].items() for _ in range(count)]
    assert {"completed", "incomplete", "cancelled", "failed", "refused", "duplicate"} <= set(ends)
    assert "none" not in ends
    assert ends.count("completed") > len(outcomes)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_fault_that_was_found_here_stays_mended(repaired: dict[str, Outcome], scenario: str) -> None:
    assert repaired[scenario]["problems"] == []


def test_a_seed_is_a_schedule(outcomes: list[Outcome]) -> None:
    """The same events in the same order, whatever ran before."""
    assert run("--seed", "5") == outcomes[5:6]


@pytest.mark.long
@pytest.mark.parametrize("rule", MUTATIONS)
def test_a_rule_that_is_taken_away_is_missed(rule: str) -> None:
    assert run("--without", rule, "--count", "1000")[-1]["problems"]
