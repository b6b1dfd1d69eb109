"""A bad policy, from the first alert to the test that keeps it away: the story of docs/incident.md, as a test.

It prints what an operator would see; `pytest tests/e2e/test_incident.py -m long -s` is where the page's output is from.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import yaml

from infra.local.aside import settings_aside
from infra.local.prometheus import ensure_prometheus
from parley.ids import response_address
from parley.settings import ROOT, Settings
from tests.e2e.chat import Heard, chatting
from tests.e2e.conftest import System
from tests.e2e.watching import watch

pytestmark = [pytest.mark.stack, pytest.mark.long]

GOOD = ROOT / Settings().moderation.policy
PROMPTS = (
    "How do I boil an egg so that the yolk stays soft?",
    "Which trains go from Lyon to Turin?",
    "Explain recursion to a ten-year-old.",
    "What is the difference between a list and a tuple in Python?",
    "How can I cut an onion without crying?",
    "How do I kill a process that hangs on Linux?",
    "Write a short thank-you note to my neighbour.",
    "What should I see in Lisbon in two days?",
    "How do I shoot a portrait at sunset?",
    "How do I beat egg whites until they are stiff?",
    "Why is the sky blue?",
    "How do I execute a stored procedure in PostgreSQL?",
    "Give me three ideas for a rainy afternoon.",
    "How much water does a cactus need?",
    "How do I strip paint from an old chair?",
    "What is the fastest way to chop wood?",
    "How do I attack the king's side in the Sicilian?",
    "Translate good morning into Polish.",
    "What makes a function easy to read?",
    "How do I terminate a contract with my gym?",
    "How do I stop my cat from fighting with the dog?",
    "What does the blast furnace do in a steel works?",
    "How do I get rid of ants in the kitchen?",
    "How do I hit a backhand in tennis?",
    "Who won the battle of Waterloo?",
    "How do I crush garlic without a press?",
    "How do I punch holes in leather?",
    "Which knife do I need for filleting fish?",
    "How do I whip cream by hand?",
    "How do I bomb proof my garden against slugs?",
)
ROUNDS = 2
SLIPPED = 8
"""Of these are above the threshold for violence once its point has slipped by one digit."""


async def converse(system: System, prompts: tuple[str, ...]) -> list[Heard]:
    """One conversation."""
    heard: list[Heard] = []
    async with chatting(system) as chat:
        for prompt in prompts:
            before = {"previous_response_id": heard[-1].response["id"]} if heard else {}
            heard.append(await chat.say(prompt, model="synthetic", max_output_tokens=16, **before))
    return heard


async def shown(system: System, *command: str) -> str:
    """What a command prints, printed here as well."""
    output = await system.command(*command)
    print(f"\n$ parley {' '.join(command)}\n{output}")
    return output


async def test_from_the_alert_to_the_test_that_keeps_it_away(tmp_path: Path) -> None:
    policy = yaml.safe_load(GOOD.read_text())
    policy["categories"]["violence"]["input"]["threshold"] /= 10
    bad = tmp_path / "bad.yaml"
    bad.write_text(yaml.safe_dump(policy | {"version": "slipped"}))
    settings = settings_aside(tmp_path / "data")
    programs = await ensure_prometheus(settings)
    system = System(settings, tmp_path / "log", {"PARLEY_MODERATION__POLICY": str(bad)})
    try:
        await system.start()

        # Harmless prompts are refused, and nothing else is wrong.
        async with watch(system, programs, tmp_path / "prometheus", "moderation") as seen:
            heard: list[Heard] = []
            for _ in range(ROUNDS):
                talks = [converse(system, PROMPTS[n : n + 10]) for n in range(0, len(PROMPTS), 10)]
                heard += [one for said in await asyncio.gather(*talks) for one in said]
            refused = [one for one in heard if "response.refusal.done" in one.types]
            assert len(refused) == SLIPPED * ROUNDS
            await seen.until(lambda firing: any(alert["alertname"] == "ModerationBlocksMuch" for alert in firing))
            [alert] = [alert for alert in await seen.firing() if alert["alertname"] == "ModerationBlocksMuch"]
            print(f"\nfiring: {alert}")
            assert alert["policy"] == "slipped"
        lag = await shown(system, "lag", "--once", "--group", "moderation")
        assert "STOP" not in lag

        # What was it? By the verdicts alone; nobody's text is read.
        blocked = (
            "log",
            "chat.verdicts",
            "--type",
            "verdict",
            "--where",
            '.event.decision == "block"',
            "--since",
            "1h",
        )
        verdicts = await shown(system, *blocked)
        assert verdicts.count("block") >= SLIPPED * ROUNDS

        # What would the policy have said that was there before?
        folder = tmp_path / "replay"
        run = ("replay", "run", "--since", "1h", "--stage", "moderation", "--policy", str(GOOD), "--out", str(folder))
        await shown(system, *run)
        assert not folder.exists(), "without --yes nothing is done"
        await shown(system, *run, "--yes")
        report = json.loads((folder / "report.json").read_text())
        changes = Counter(row["change"] for row in report["rows"])
        assert changes == {"same": (len(PROMPTS) - SLIPPED) * ROUNDS, "newly allowed": SLIPPED * ROUNDS}
        assert (folder / "report.html").stat().st_size > 1_000

        # And a test of it that needs nothing of all this.
        fixtures = tmp_path / "incidents"
        session = str(response_address(refused[0].response["id"]).session)
        export = ("replay", "export", "--as-fixture", "--session", session, "--out", str(fixtures), "--yes")
        await shown(system, *export)
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(fixtures)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        print(done.stdout)
        assert done.returncode == 0, done.stdout
        text = "".join(path.read_text() for path in fixtures.iterdir())
        assert not any(prompt in text for prompt in PROMPTS)
    finally:
        await system.stop()
