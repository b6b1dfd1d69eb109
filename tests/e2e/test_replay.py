"""What the whole system did, done again in shadow: under the same configuration it comes out the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from parley.ids import response_address
from tests.e2e.chat import chatting
from tests.e2e.conftest import System

QUESTIONS = ("Say something.", "And something else, please.", "Thank you, and once more?")


@pytest.fixture(scope="module")
async def third(system: System) -> str:
    """The last response of a conversation of three turns."""
    async with chatting(system) as chat:
        previous: dict[str, str] = {}
        for question in QUESTIONS:
            heard = await chat.say(question, model="synthetic", max_output_tokens=20, **previous)
            previous = {"previous_response_id": heard.response["id"]}
    return previous["previous_response_id"]


async def replayed(system: System, response: str, *arguments: str) -> dict[str, Any]:
    """A replay of the conversation that a response belongs to."""
    session = str(response_address(response).session)
    told = await system.command("replay", "run", "--session", session, "--yes", "--json", *arguments)
    report: dict[str, Any] = json.loads(told)
    return report


@pytest.mark.parametrize("stage", ["moderation", "orchestrator", "worker"])
async def test_the_same_configuration_makes_the_same_of_the_same_turns(
    system: System, third: str, tmp_path: Path, stage: str
) -> None:
    """Decisions with their scores, plans with their contexts, answers word by word."""
    report = await replayed(system, third, "--stage", stage, "--out", str(tmp_path / "out"))
    assert [row["change"] for row in report["rows"]] == ["same"] * 3, report["rows"]
    if stage == "orchestrator":
        assert [row["after"]["turns kept"] for row in report["rows"]] == [0, 1, 2]
        assert [row["before"] for row in report["rows"]] == [row["after"] for row in report["rows"]]
