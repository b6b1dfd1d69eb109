"""Hundreds of days on which everything goes wrong, each from its seed; see the package's docstring."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from parley.settings import ROOT
from tests.simulation.scenarios import SCENARIOS

FIXED = (0, 250)
"""First seed and count, always run."""
SECONDS = 50
"""A slow machine starts no more of them after so long; fewer than `LEAST` is a failure."""
LEAST = 60


def run(*arguments: str) -> Iterator[dict[str, Any]]:
    """Outcomes of seeds, from a process of its own: the real Kafka client of this one stays as it is."""
    command = [sys.executable, "-m", "tests.simulation", "--json", *arguments]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": "0"}, capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 1), done.stderr
    assert done.stdout, done.stderr
    for line in done.stdout.splitlines():
        yield json.loads(line)


@pytest.fixture(scope="module")
def outcomes() -> list[dict[str, Any]]:
    first, count = FIXED
    return list(run("--first", str(first), "--count", str(count), "--seconds", str(SECONDS)))


def test_whatever_goes_wrong_every_promise_is_kept_and_all_heals(outcomes: list[dict[str, Any]]) -> None:
    broken = {outcome["seed"]: outcome["problems"] for outcome in outcomes if outcome["problems"]}
    assert not broken, "python -m tests.simulation --seed N --trace"
    assert len(outcomes) >= LEAST


def test_the_schedules_are_worth_their_time(outcomes: list[dict[str, Any]]) -> None:
    """They end turns in every way, and each kind of end is met often."""
    ends: dict[str, int] = {}
    for outcome in outcomes:
        for kind, count in outcome["ends"].items():
            ends[kind.split(" ")[0]] = ends.get(kind.split(" ")[0], 0) + count
    assert {"completed", "incomplete", "cancelled", "failed", "refused", "duplicate"} <= ends.keys()
    assert ends["completed"] > len(outcomes)
    assert "none" not in ends


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_fault_that_was_found_here_stays_mended(scenario: str) -> None:
    assert [outcome["problems"] for outcome in run("--scenario", scenario)] == [[]]


def test_a_seed_is_a_schedule() -> None:
    """The same events in the same order, whatever ran before."""
    (alone,), (_, after) = run("--seed", "5"), run("--seed", "4", "--seed", "5")
    assert alone == after
